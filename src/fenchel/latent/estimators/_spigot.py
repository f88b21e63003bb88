"""The best outcome, with the gradient of a projection: SPIGOT."""

# pyright: reportIncompatibleMethodOverride=false
# PyTorch declares these methods with *args; the Function here names its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ... import _checks
from ..._transforms import is_transformed
from ...structures._problem import Problem
from ...structures._sparsemap import sparsemap
from .._distributions import AbstractSampled, lengths_of
from .._expectation import Expectation, Loss
from ._base import AbstractSampler, Over, estimated, repeat_items


class Spigot(AbstractSampler):
    """A biased gradient through the best outcome z: z minus the projection of z − η∇ℓ(z) onto the
    polytope, in place of the gradient in the scores.

    z moves against the gradient of the loss, and back to the closest marginals; the scores move
    likewise. Straight-through leaves the projection out. It is deterministic, and needs MAP
    inference alone: SparseMAP is the projection. `loss_fn` gets the vertices, (N, K) for
    categories. Extra scores have no gradient.

    The gradient is not linear in that of the loss: a loss twice as large makes a step twice as
    long, and the projection cuts it. So `value.mean()` and `value.sum()` differ by more than a
    factor, also in their directions; with `mean()` multiply `step` by the number of items.

    Args:
        over: a mapping onto the simplex, `Softmax()` by default, a structure, or a `Perturbed`,
            whose most probable outcome is taken. It also gives `marginals`, `entropy` and `kl`.
        step: η > 0, the length of the step.

    >>> from fenchel import Matching
    >>> from fenchel.latent import marginalize
    >>> scores = torch.tensor([[1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    >>> marginalize(scores, lambda item, z: z[:, 0, 0], Spigot(Matching(2, 2))).value.backward()
    >>> scores.grad
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])

    References: peng2018backpropagating.
    """

    def __init__(self, over: Over | None = None, step: float = 1.0) -> None:
        super().__init__(over)
        _checks.check_number("step", step, above=0)
        self.step = step

    def estimate_by_samples(self, distribution: AbstractSampled, loss: Loss) -> Expectation:
        if is_transformed():
            raise NotImplementedError(
                "Spigot has no rule for torch.func and forward mode; use `backward` or "
                "`torch.autograd.grad`."
            )
        problem = distribution.problem
        best = self.most_probable(distribution)
        z: Any = ProjectedGradient.apply(problem.scores, best, problem, self.step)
        return estimated(distribution, loss(repeat_items(distribution), z), 1)

    def most_probable(self, distribution: AbstractSampled) -> Tensor:
        return distribution.indicator(distribution.mode())

    def extra_repr(self) -> str:
        return f"over={self.over}, step={self.step}"


class ProjectedGradient(Function):
    """The vertices z (B, *shape), with the gradient z − projection of z − step · ∇ℓ(z)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, z: Tensor, problem: Problem, step: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.problem, ctx.step = problem, step
        return z.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (z,), problem = ctx.saved_tensors, ctx.problem
        allowed = problem.scores.detach() > -torch.inf
        point = torch.where(allowed, z - ctx.step * gradient, -torch.inf)
        closest = sparsemap(problem.structure, point, lengths=lengths_of(problem)).marginals
        return z - closest, None, None, None
