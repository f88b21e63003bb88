"""Expectations over discrete latent variables: exact by sparsity, or estimated."""

from . import estimators
from ._diagnostics import GradientVariance, History, gradient_variance
from ._expectation import Expectation, embed
from ._k_best import k_best
from ._likelihood import LogLikelihood, log_likelihood
from ._marginalize import marginalize

__all__ = [
    "Expectation",
    "GradientVariance",
    "History",
    "LogLikelihood",
    "embed",
    "estimators",
    "gradient_variance",
    "k_best",
    "log_likelihood",
    "marginalize",
]
