"""Expectations over discrete latent variables: exact by sparsity, or estimated.

>>> import fenchel
>>> scores = torch.tensor([1.1, 0.93, 0.37, -0.4])
>>> fenchel.latent.marginalize(scores, lambda item, z: z.float()).value
tensor(0.4150)
"""

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
