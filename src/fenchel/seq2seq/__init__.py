"""Sequence-to-sequence models with sparse attention and sparse outputs."""

from ._batches import Batch
from ._config import Config, MappingConfig, ModelConfig
from ._vocabulary import Vocabulary

__all__ = ["Batch", "Config", "MappingConfig", "ModelConfig", "Vocabulary"]
