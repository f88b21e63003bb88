"""Sequence-to-sequence models with sparse attention and sparse outputs."""

from ._batches import Batch
from ._config import Config, MappingConfig, ModelConfig
from ._configuration import ConfigError, load_config
from ._evaluation import Evaluation, decode, evaluate
from ._explain import Explanation, Node, Position, explain
from ._folder import load, save
from ._hypotheses import Hypothesis, Result
from ._inflection import Inflection
from ._listener import DivergenceError, Listener, Summary
from ._model import Seq2Seq
from ._search import search
from ._training import train
from ._validation import Metrics
from ._vocabulary import Characters, Subwords, Vocabulary, Words

__all__ = [
    "Batch",
    "Characters",
    "Config",
    "ConfigError",
    "DivergenceError",
    "Evaluation",
    "Explanation",
    "Hypothesis",
    "Inflection",
    "Listener",
    "MappingConfig",
    "Metrics",
    "ModelConfig",
    "Node",
    "Position",
    "Result",
    "Seq2Seq",
    "Subwords",
    "Summary",
    "Vocabulary",
    "Words",
    "decode",
    "evaluate",
    "explain",
    "load",
    "load_config",
    "save",
    "search",
    "train",
]
