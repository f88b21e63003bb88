"""The losses of structured prediction: Fenchel-Young losses of the regularizers there are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks
from ..ops.sparsemap.solution import Limits
from ..structures._base import AbstractStructure
from ..structures._coded import CodedStructure
from ..structures._problem import ExtraScores, Problem, Vertices
from ..structures._sparsemap import solved
from ..structures._sparsemap_autograd import Maximum

KINDS = ("perceptron", "svm", "crf", "margin_crf", "sparsemap", "margin_sparsemap")
MARGIN = ("svm", "margin_crf", "margin_sparsemap")


def structured_loss(
    structure: AbstractStructure,
    scores: Tensor,
    target: Tensor | tuple[Tensor, Tensor],
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
    kind: str = "sparsemap",
    cost: Tensor | None = None,
    reduction: str = "mean",
    tol: float = 1e-6,
    max_iter: int = 10_000,
) -> Tensor:
    """The loss max over y' of ⟨θ, y'⟩ − Ω(y'), less the same at the target y, with gradient ŷ − y.

    | kind | Ω, on marginals u of a distribution p | ŷ |
    | --- | --- | --- |
    | "perceptron" | 0 | the best structure |
    | "crf" | −entropy of p | marginals |
    | "sparsemap" | ½‖u‖² | SparseMAP |
    | "svm", "margin_crf", "margin_sparsemap" | that of the one above, less the expected cost | |

    It is nonnegative, convex in θ, and zero where ŷ = y, which for a CRF is never; with a margin y
    must beat every other structure by its cost. It is infinite where y has a part of score −inf.

    Args:
        structure: the set of structures.
        scores: θ, (..., *structure.shape), floating point.
        target: y: codes (..., positions), integers, −1 for none; or what `map_inference` returned;
            or indicators (..., *shape), floating point, and where there are extra scores and
            these are not zeros and ones a pair with those of the extra scores. What lies
            behind the end of a shorter instance is not looked at.
        extra_scores, lengths, mask: as for `map_inference`.
        kind: which loss.
        cost: what each part costs, (..., *shape) or fewer dimensions, for the kinds with a margin:
            the cost of a structure is the sum over its parts, up to a constant that makes y's zero.
            By default the Hamming distance: how many positions differ from y.
        reduction: "none", "mean" or "sum" over the instances.
        tol, max_iter: as for `sparsemap`.
    Returns:
        A scalar, or with "none" one loss per instance.
    Raises:
        TypeError, ValueError: for input of the wrong kind, shape or value.
        NotImplementedError: for a CRF of a structure without a log-partition.

    One inference forward; backward only its result, less the target.

    >>> import torch
    >>> from fenchel import Sequence, structured_loss
    >>> scores = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> structured_loss(Sequence(2, 2), scores, torch.tensor([0, 1]))
    tensor(0.0625)
    >>> structured_loss(Sequence(2, 2), scores, torch.tensor([0, 1]), kind="svm")
    tensor(0.5000)

    References: niculae2018sparsemap, blondel2020learning.
    """
    _checks.structure(structure, AbstractStructure)
    _checks.choice("kind", kind, KINDS)
    if kind.endswith("sparsemap"):
        if torch.compiler.is_compiling():  # as for `sparsemap`
            eager: Any = torch.compiler.disable(structured_loss)
            return eager(
                structure,
                scores,
                target,
                extra_scores,
                lengths=lengths,
                mask=mask,
                kind=kind,
                cost=cost,
                reduction=reduction,
                tol=tol,
                max_iter=max_iter,
            )
        _checks.unmapped(scores, extra_scores)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.number("tol", tol, least=0)
    _checks.size("max_iter", max_iter)
    problem = _widened(structure.problem(scores, extra_scores, lengths, mask))
    if isinstance(target, Vertices):
        target = target.indicator if target.codes is None else target.codes
    y, z = _target(problem, target)
    if kind in MARGIN:
        problem = replace(problem, scores=problem.scores + _cost(problem, y, cost))
    elif cost is not None:
        raise ValueError(f"`cost` must be None for {kind}, which has no margin; use {MARGIN}.")
    value = _value(problem, kind.removeprefix("margin_"), Limits(tol, max_iter))
    if kind.endswith("sparsemap"):
        value = value + (y * y).flatten(1).sum(1) / 2
    at_target = _inner(y, problem.scores)
    if z is not None and problem.extra_scores is not None:
        at_target = at_target + _inner(z, problem.extra_scores.expand_as(z))
    losses = value - at_target
    losses = torch.where((at_target == -torch.inf) & ~value.isnan(), torch.inf, losses)
    losses = losses.reshape(problem.batch)
    losses = losses if reduction == "none" else getattr(losses, reduction)()
    if problem.dtype in _checks.HALF and torch.is_autocast_enabled(scores.device.type):
        return losses.float()  # as F.cross_entropy
    return losses.to(problem.dtype)


class StructuredLoss(nn.Module):
    """`structured_loss` as a module.

    Args:
        structure, kind, reduction, tol, max_iter: as for the function.
    """

    def __init__(
        self,
        structure: AbstractStructure,
        kind: str = "sparsemap",
        reduction: str = "mean",
        tol: float = 1e-6,
        max_iter: int = 10_000,
    ) -> None:
        super().__init__()
        _checks.structure(structure, AbstractStructure)
        _checks.choice("kind", kind, KINDS)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.number("tol", tol, least=0)
        _checks.size("max_iter", max_iter)
        self.structure = structure
        self.kind = kind
        self.reduction = reduction
        self.tol = tol
        self.max_iter = max_iter

    def forward(
        self,
        scores: Tensor,
        target: Tensor | tuple[Tensor, Tensor],
        extra_scores: ExtraScores | None = None,
        *,
        lengths: Any = None,
        mask: Tensor | None = None,
        cost: Tensor | None = None,
    ) -> Tensor:
        return structured_loss(
            self.structure,
            scores,
            target,
            extra_scores,
            lengths=lengths,
            mask=mask,
            kind=self.kind,
            cost=cost,
            reduction=self.reduction,
            tol=self.tol,
            max_iter=self.max_iter,
        )

    def extra_repr(self) -> str:
        return f"{self.structure}, kind={self.kind!r}, reduction={self.reduction!r}"


def _widened(problem: Problem) -> Problem:
    """The same in float64: a loss is the small difference of large numbers."""
    extra = problem.extra_scores
    return replace(
        problem,
        scores=problem.scores.double(),
        extra_scores=None if extra is None else extra.double(),
    )


def _value(problem: Problem, kind: str, limits: Limits) -> Tensor:
    """The maximum (B), whose gradient is ŷ."""
    structure = problem.structure
    if kind in ("perceptron", "svm"):
        return structure.vertices(problem).value
    if kind == "crf":
        return structure.log_partition(
            *structure.arguments(problem.scores, problem.extra_scores, problem.lengths)
        )
    solution = solved(problem, "active_set", limits, False)._solution
    scores, extra_scores = problem.scores.flatten(1).double(), problem.extra_scores
    u = solution.marginals.flatten(1).to(scores.device)
    value = _inner(u, scores) - (u * u).sum(1) / 2
    v = None
    if extra_scores is not None:
        v = solution.extras(tuple(extra_scores.shape[1:])).flatten(1).to(scores.device)
        extra_scores = extra_scores.flatten(1).double()
        value = value + _inner(v, extra_scores.expand_as(v))
    return Maximum.apply(value.detach(), scores, extra_scores, u, v)  # type: ignore[return-value]


def _target(problem: Problem, target: Any) -> tuple[Tensor, Tensor | None]:
    """The parts (B, *shape) and extra parts (B, …) of the target, in the scores' type."""
    structure, scores, extra = problem.structure, problem.scores, problem.extra_scores
    given, z = _checks.target_pair(target)
    coded = structure if isinstance(structure, CodedStructure) else None
    positions = None if coded is None else coded.positions
    codes, y = None, given
    if _checks.structure_target(given, problem.batch, positions, scores) and coded is not None:
        codes = coded.ended(given.long().reshape(len(scores), given.shape[-1]), problem.lengths)
        _checks.codes(codes, coded.parts(codes) >= math.prod(coded.shape))
        y = coded.indicator(codes, scores.dtype)
        _checks.codes(codes, (codes >= 0) & (coded.codes_of(y) != codes))
        _checks.members(codes, structure, coded.holds(codes, problem.lengths))
    y = y.to(scores.dtype).reshape(scores.shape)
    if problem.lengths is not None:
        y = torch.where(structure.within(problem.lengths), y, 0.0)
    if extra is None:
        return y, None
    if codes is not None and coded is not None and z is None:
        return y, coded.extra_indicator(codes, extra)
    shape = problem.form.shapes[0] if problem.form else None
    if shape is None:  # what was not given is zero
        return y, structure.fold_target(y, None, extra, problem.lengths)
    if z is None:
        _checks.vertex("target", y, coded is not None)
        return y, coded.extra_indicator(coded.codes_of(y), extra)  # type: ignore[union-attr]
    _checks.like_extra(z, problem.batch, shape)
    return y, structure.fold_target(y, z.to(scores.dtype), extra, problem.lengths)


def _cost(problem: Problem, y: Tensor, cost: Tensor | None) -> Tensor:
    """What each part (B, *shape) costs; a position without a part in y has cost one for any."""
    if cost is not None:
        return _checks.cost(cost, problem.batch, problem.scores.shape).to(y.dtype)
    dim = problem.structure.options_dim
    taken = y if dim is None else y.sum(dim, keepdim=True)
    return 1 - taken - y


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> of each instance, in which zeros of a delete infinite entries of b."""
    return torch.where(a == 0, 0.0, a * b).flatten(1).sum(1)
