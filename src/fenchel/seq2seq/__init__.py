"""Sequence-to-sequence models with sparse attention and sparse outputs."""

from ._config import Config, MappingConfig, ModelConfig

__all__ = ["Config", "MappingConfig", "ModelConfig"]
