"""Ways to compute or estimate an expectation over a latent variable and its gradients.

>>> from fenchel import latent
>>> scores = torch.tensor([1.1, 0.93, 0.37, -0.4])
>>> for estimator in (latent.estimators.Exact(), latent.estimators.Exact("softmax")):
...     print(latent.marginalize(scores, lambda item, z: z.float(), estimator).calls)
tensor(2)
tensor(4)
"""

from ._base import AbstractEstimator
from ._baselines import AbstractBaseline, Learned, LeaveOneOut, MovingAverage, SelfCritic
from ._exact import Exact, TopK
from ._gumbel import GumbelSoftmax, StraightThrough
from ._score_function import ScoreFunction
from ._spigot import Spigot
from ._sum_and_sample import SumAndSample

__all__ = [
    "AbstractBaseline",
    "AbstractEstimator",
    "Exact",
    "GumbelSoftmax",
    "Learned",
    "LeaveOneOut",
    "MovingAverage",
    "ScoreFunction",
    "SelfCritic",
    "Spigot",
    "StraightThrough",
    "SumAndSample",
    "TopK",
]
