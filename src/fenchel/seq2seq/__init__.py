"""Sequence-to-sequence models with sparse attention and sparse outputs."""

from .config._loading import ConfigError, load_config
from .config._schema import Config, MappingConfig, ModelConfig
from .data._batches import Batch
from .data._features import Featured
from .data._inflection import Inflection
from .data._normalized import Normalized
from .data._subwords import Subwords
from .data._vocabulary import Characters, Symbols, Vocabulary, Words
from .decoding._constraints import Constraint
from .decoding._decode import decode
from .decoding._hypotheses import Hypothesis, Result
from .decoding._sampling import sample
from .decoding._scoring import Score, score
from .decoding._search import search
from .evaluation._evaluation import Evaluation, evaluate
from .explanations._explain import Explanation, Node, Position, explain
from .exporting._export import export
from .models._folder import load, save
from .models._model import Seq2Seq
from .training._callback import Callback, DivergenceError, Summary
from .training._training import train
from .training._validation import Metrics

__all__ = [
    "Batch",
    "Callback",
    "Characters",
    "Config",
    "ConfigError",
    "Constraint",
    "DivergenceError",
    "Evaluation",
    "Explanation",
    "Featured",
    "Hypothesis",
    "Inflection",
    "MappingConfig",
    "Metrics",
    "ModelConfig",
    "Node",
    "Normalized",
    "Position",
    "Result",
    "Score",
    "Seq2Seq",
    "Subwords",
    "Summary",
    "Symbols",
    "Vocabulary",
    "Words",
    "decode",
    "evaluate",
    "explain",
    "export",
    "load",
    "load_config",
    "sample",
    "save",
    "score",
    "search",
    "train",
]
