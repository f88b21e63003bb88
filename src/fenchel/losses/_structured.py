"""The losses of structured prediction, as Fenchel-Young losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import _checks
from .._transforms import is_transformed
from ..ops.sparsemap.solution import Limits, inner
from ..structures._base import AbstractStructure
from ..structures._checks import (
    check_codes,
    check_extra_target,
    check_not_mapped,
    check_structure,
    check_target,
    check_target_pair,
    check_valid_codes,
    check_vertex,
)
from ..structures._coded import CodedStructure
from ..structures._factor_graph import GraphProblem
from ..structures._problem import ExtraScores, Problem, RelaxedVertices, Vertices
from ..structures._sparsemap import refuse_graph, solve
from ..structures._sparsemap_autograd import ForwardMaximum, Maximum

if TYPE_CHECKING:
    from ..structures._perturbed import Perturbed

KINDS = ("perceptron", "svm", "crf", "margin_crf", "sparsemap", "margin_sparsemap")
MARGIN = ("svm", "margin_crf", "margin_sparsemap")
_ROUNDING = 1e-9
"""How far below zero a loss may be, relative to what it is the difference of, to count as zero."""


def structured_loss(
    structure: AbstractStructure | Perturbed,
    scores: Tensor,
    target: Tensor | tuple[Tensor, Tensor] | Vertices,
    extra_scores: ExtraScores | None = None,
    *,
    lengths: Any = None,
    mask: Tensor | None = None,
    kind: str | None = None,
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

    It is nonnegative, convex in θ, and zero if ŷ = y; the loss of a CRF is never zero. With a
    margin, y must beat every other structure by its cost. The loss is infinite if a part of y has
    the score −inf.

    A `structures.Perturbed` has the loss E max⟨θ + σZ, y'⟩ − ⟨θ, y⟩ for noise Z, where ŷ is the
    mean of the best structures. It lacks Ω(y), which does not depend on θ and has no closed form,
    so it is not zero at ŷ = y. Its gradient is exact for the noise that is drawn.

    Args:
        structure: the set of structures; or a `structures.Perturbed`, for its loss.
        scores: θ, (..., *structure.shape), floating point.
        target: y: codes (..., positions), integers, −1 for none; or what `map_inference` returned;
            or indicators (..., *shape), floating point. With extra scores, indicators other than
            zeros and ones come as a pair with the indicators of the extra scores. What lies behind
            the end of a shorter instance is ignored.
        extra_scores, lengths, mask: as for `map_inference`.
        kind: which loss; None for "sparsemap", and for a `Perturbed`.
        cost: the cost of each part, (..., *shape) or fewer dimensions, for the kinds with a
            margin. The cost of a structure is the sum over its parts, less that of y. By default
            it is the Hamming distance: the number of positions that differ from y.
        reduction: "none", "mean" or "sum" over the instances.
        tol, max_iter: as for `sparsemap`.
    Returns:
        A scalar, or with "none" one loss per instance.
    Raises:
        TypeError, ValueError: for input of the wrong kind, shape or value.
        NotImplementedError: for a CRF of a structure without a log-partition.

    Forward is one inference; backward only subtracts the target from its result.

    >>> import torch
    >>> from fenchel import Sequence, structured_loss
    >>> scores = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> structured_loss(Sequence(2, 2), scores, torch.tensor([0, 1]))
    tensor(0.0625)
    >>> structured_loss(Sequence(2, 2), scores, torch.tensor([0, 1]), kind="svm")
    tensor(0.5000)

    References: niculae2018sparsemap, blondel2020learning.
    """
    kind = _resolve_kind(structure, kind)
    if kind.endswith("sparsemap"):
        if torch.compiler.is_compiling() and refuse_graph(structure):
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
        check_not_mapped(scores, extra_scores)
    _checks.check_choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.check_number("tol", tol, minimum=0)
    _checks.check_size("max_iter", max_iter)
    base = structure if isinstance(structure, AbstractStructure) else structure.structure
    problem = _to_float64(base.problem(scores, extra_scores, lengths, mask))
    if isinstance(target, Vertices | RelaxedVertices):
        target = _as_given(target)
    y, z = _target(problem, target)
    if kind in MARGIN:
        problem = replace(problem, scores=problem.scores + _cost(problem, y, cost))
    elif cost is not None:
        raise ValueError(f"`cost` must be None for {kind}, which has no margin; use {MARGIN}.")
    if not isinstance(structure, AbstractStructure):
        value = structure.maximum(problem)
    else:
        value = _value(problem, kind.removeprefix("margin_"), Limits(tol, max_iter))
    if kind.endswith("sparsemap"):
        value = value + (y * y).flatten(1).sum(1) / 2
    at_target = inner(y.flatten(1), problem.scores.flatten(1))
    if z is not None and problem.extra_scores is not None:
        at_target = at_target + inner(z.flatten(1), problem.extra_scores.flatten(1))
    losses = value - at_target
    if isinstance(structure, AbstractStructure):
        slack = tol + _ROUNDING * (value.abs() + at_target.abs())
        is_zero = (losses < 0) & (losses > -slack)
        losses = torch.where(is_zero, losses - losses.detach(), losses)
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

    >>> from fenchel import DependencyTree
    >>> loss = StructuredLoss(DependencyTree(2), kind="sparsemap")
    >>> loss(torch.tensor([[[1.0, 0.5], [0.0, 0.0]]]), torch.tensor([[0, 0]]))
    tensor(0.0312)
    """

    def __init__(
        self,
        structure: AbstractStructure | Perturbed,
        kind: str | None = None,
        reduction: str = "mean",
        tol: float = 1e-6,
        max_iter: int = 10_000,
    ) -> None:
        super().__init__()
        kind = _resolve_kind(structure, kind)
        _checks.check_choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.check_number("tol", tol, minimum=0)
        _checks.check_size("max_iter", max_iter)
        self.structure = structure
        self.kind = kind
        self.reduction = reduction
        self.tol = tol
        self.max_iter = max_iter

    def forward(
        self,
        scores: Tensor,
        target: Tensor | tuple[Tensor, Tensor] | Vertices,
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


def _resolve_kind(structure: AbstractStructure | Perturbed, kind: str | None) -> str:
    """The kind of loss; raises unless it fits the structure."""
    if isinstance(structure, AbstractStructure):
        kind = "sparsemap" if kind is None else kind
        _checks.check_choice("kind", kind, KINDS)
        return kind
    from ..structures._perturbed import Perturbed  # which is imported where it is used

    if not isinstance(structure, Perturbed):
        check_structure(structure, AbstractStructure)
    if kind not in (None, "perturbed"):
        raise ValueError(
            f"`kind` must be None for a Perturbed, got {kind!r}; for that loss give its structure, "
            f"{structure.structure}."
        )
    return "perturbed"


def _to_float64(problem: Problem) -> Problem:
    """The problem in float64: a loss is a small difference of large numbers."""
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
        return structure.best_vertices(problem).value
    if kind == "crf":
        return structure.log_partition(
            *structure.arguments(problem.scores, problem.extra_scores, problem.lengths)
        )
    solution = solve(problem, None, limits)._solution
    scores = problem.scores.flatten(1).double()
    is_given = problem.form is not None or isinstance(problem, GraphProblem)
    extra_scores = problem.extra_scores if is_given else None
    u = solution.marginals.flatten(1).to(scores.device)
    value = inner(u, scores) - (u * u).sum(1) / 2
    v = None
    if extra_scores is not None:
        v = solution.extra_marginals(tuple(extra_scores.shape[1:])).flatten(1).to(scores.device)
        extra_scores = extra_scores.flatten(1).double()
        value = value + inner(v, extra_scores)
    maximum = ForwardMaximum if is_transformed() else Maximum
    return maximum.apply(value.detach(), scores, extra_scores, u, v)  # type: ignore[return-value]


def _target(problem: Problem, target: Any) -> tuple[Tensor, Tensor | None]:
    """The parts (B, *shape) and extra parts (B, …) of the target, in the scores' type."""
    structure, scores, extra = problem.structure, problem.scores, problem.extra_scores
    given, z = check_target_pair(target)
    coded = structure if isinstance(structure, CodedStructure) else None
    positions = None if coded is None else coded.positions
    codes, y = None, given
    if check_target(given, problem.batch, positions, scores) and coded is not None:
        codes = coded.mask_padding(
            given.long().reshape(len(scores), given.shape[-1]), problem.lengths
        )
        check_codes(codes, coded.part_indices(codes) >= math.prod(coded.shape))
        y = coded.indicator(codes, scores.dtype)
        check_codes(codes, (codes >= 0) & (coded.codes_of(y) != codes))
        check_valid_codes(codes, structure, coded.is_valid(codes, problem.lengths))
    y = y.to(scores.dtype).reshape(scores.shape)
    if problem.lengths is not None:
        y = torch.where(structure.length_mask(problem.lengths), y, 0.0)
    if extra is None:
        return y, None
    if isinstance(problem, GraphProblem):
        return y, problem.extra_target(y, z)
    if codes is not None and coded is not None and z is None:
        return y, coded.extra_indicator(codes, extra)
    shape = problem.form.shapes[0] if problem.form else None
    if shape is None:  # the first extra score was not given: its target is zero
        return y, structure.merge_target(y, None, extra, problem.lengths)
    if z is None:
        check_vertex("target", y, coded is not None)
        return y, coded.extra_indicator(coded.codes_of(y), extra)  # type: ignore[union-attr]
    check_extra_target(z, problem.batch, shape)
    return y, structure.merge_target(y, z.to(scores.dtype), extra, problem.lengths)


def _as_given(best: Vertices | RelaxedVertices) -> Any:
    """Best structures as a target: codes, or indicators with those of the extra scores."""
    if best.codes is not None:
        return best.codes
    return best.indicator if best.extra is None else (best.indicator, best.extra)


def _cost(problem: Problem, y: Tensor, cost: Tensor | None) -> Tensor:
    """The cost of each part (B, *shape); at a position without a part in y, any part costs one."""
    if cost is not None:
        return problem.broadcast_scores("cost", cost)
    dim = problem.structure.options_dim
    taken = y if dim is None else y.sum(dim, keepdim=True)
    return 1 - taken - y
