"""normmax and pnormmax on a GPU: the mappings and their Jacobians times a vector."""

from torch import Tensor

from .._triton.jvp import jvp
from .._triton.launch import solution
from .._triton.root import ENTMAX, NORM, SQUARED


def normmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    return solution(scores, alpha, NORM)


def normmax_jvp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    return jvp(y, v, alpha, NORM)


def pnormmax(scores: Tensor, p: float) -> Tensor:
    return solution(scores, p, ENTMAX if p == 2 else SQUARED)  # sparsemax


def pnormmax_jvp(y: Tensor, v: Tensor, p: float) -> Tensor:
    return jvp(y, v, p, SQUARED)
