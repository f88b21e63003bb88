"""Sequence-to-sequence models with sparse attention and sparse outputs."""

from ._batches import Batch
from ._config import Config, MappingConfig, ModelConfig
from ._explain import Explanation, Node, Position, explain
from ._folder import load, save
from ._hypotheses import Hypothesis, Result
from ._model import Seq2Seq
from ._search import search
from ._training import Listener, Summary, train
from ._vocabulary import Vocabulary

__all__ = [
    "Batch",
    "Config",
    "Explanation",
    "Hypothesis",
    "Listener",
    "MappingConfig",
    "ModelConfig",
    "Node",
    "Position",
    "Result",
    "Seq2Seq",
    "Summary",
    "Vocabulary",
    "explain",
    "load",
    "save",
    "search",
    "train",
]
