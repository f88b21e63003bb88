"""The Fenchel-Young loss of every mapping, along any dimension and reduced over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import _checks
from . import _autograd, _eager
from ._checks import NO_INDEX, check_smoothing, check_target
from ._protocols import HasState, HasTerms

if TYPE_CHECKING:
    from ._base import AbstractMapping


def loss(
    mapping: AbstractMapping,
    scores: Tensor,
    target: Tensor,
    dim: int,
    reduction: str,
    ignore_index: int | None,
    inplace: bool,
    label_smoothing: float,
) -> Tensor:
    """max_Ω(scores) + γΩ(target) − <scores, target>; see `fenchel.fenchel_young_loss`."""
    bound = mapping._class_loss
    is_slow = (
        inplace
        or label_smoothing != 0.0
        or torch.compiler.is_compiling()
        or _has_no_index(target, ignore_index)
    )
    if bound is not None and not is_slow:
        total = bound(mapping, scores, target, dim, reduction, ignore_index)
        if total is not None:
            return total
    if not is_slow and _is_direct(mapping, scores, target, dim, reduction, ignore_index):
        total = _eager.class_loss(scores, target, mapping, reduction, ignore_index)
        if total.is_cuda or total == total:  # NaN may come from a target out of range
            return total
    _checks.check_choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.check_float_tensor("scores", scores)
    if inplace:
        _checks.check_overwritable("scores", scores)
    dim = _checks.check_dim("scores", scores.shape, dim)
    check_smoothing(label_smoothing, mapping)
    if not check_target(target, scores.shape, scores.device, dim, ignore_index):
        dtype = _result_type(torch.promote_types(scores.dtype, target.dtype), scores)
        if label_smoothing:
            target = _smooth(target, scores, dim, label_smoothing)
        losses = _of_distributions(mapping, scores, target, dim)
        losses = losses if reduction == "none" else getattr(losses, reduction)()
        return losses.to(dtype)
    if mapping.total != 1.0:
        raise ValueError(
            f"`target` must be floating point for {mapping.name}, whose solutions do not sum to "
            "one; got class indices."
        )
    if ignore_index is None:
        classes = target.to(torch.int64)
        losses = _of_classes(mapping, scores, classes, None, dim, inplace, label_smoothing)
        losses = losses if reduction == "none" else getattr(losses, reduction)()
        return losses.to(_result_type(scores.dtype, scores))
    kept = target != ignore_index
    classes = torch.where(kept, target, 0).to(torch.int64)
    losses = _of_classes(mapping, scores, classes, kept, dim, inplace, label_smoothing)
    if reduction == "mean":
        losses = losses.sum() / kept.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses.to(_result_type(scores.dtype, scores))


def _has_no_index(target: Tensor, ignore_index: int | None) -> bool:
    """Whether what kernels take for no index is one here: the one to ignore, or a target that would
    be ignored with it."""
    if ignore_index is not None:
        return ignore_index == NO_INDEX
    if not isinstance(target, Tensor) or target.is_nested or target.dtype != torch.int64:
        return False
    return _checks.can_read_values(target) and bool((target == NO_INDEX).any())


def _is_direct(
    mapping: AbstractMapping,
    scores: Tensor,
    target: Tensor,
    dim: int,
    reduction: str,
    ignore_index: int | None,
) -> bool:
    """Whether one autograd function serves: class indices in an eager call on the last dimension,
    for a mapping with a state, of numbers: what is changed in place between forward and backward
    would go unnoticed in a tensor that is not saved."""
    return (
        isinstance(mapping, HasState)
        and reduction in ("mean", "sum")
        and type(target) is Tensor
        and target.dtype == torch.int64
        and (ignore_index is None or type(ignore_index) is int)
        and mapping.is_direct(scores, dim)
        and (scores.is_cpu or scores.is_cuda)
        and target.shape == scores.shape[:-1]
        and target.device == scores.device
        and target.layout is torch.strided
        and not any(isinstance(value, Tensor) for value in vars(mapping).values())
    )


def _of_classes(
    mapping: AbstractMapping,
    scores: Tensor,
    target: Tensor,
    kept: Tensor | None,
    dim: int,
    inplace: bool,
    smoothing: float,
) -> Tensor:
    """The loss of each row, in at least float32, and zero where it is not kept."""
    if smoothing and not isinstance(mapping, HasTerms):
        y = _smooth(_vertices(target, scores, dim), scores, dim, smoothing)
        losses = _of_distributions(mapping, scores, y, dim)
        return losses if kept is None else torch.where(kept, losses, 0.0)
    rows, target = mapping.rows(scores, dim), target.unsqueeze(-1)
    pivot = _pivot(rows.scores, target) if smoothing else target
    value = _autograd.value(rows.scores, rows.parameter, pivot, mapping, inplace)
    if smoothing:
        omega = _smoothing_terms(mapping.at(rows.parameter), rows.scores, target, pivot, smoothing)
    else:
        omega = mapping.vertex_omega(target, rows.scores)
    if isinstance(omega, Tensor):
        value = value + omega.to(value.dtype)
    elif omega:
        value = value + omega
    if kept is not None:
        value = torch.where(kept, value, 0.0)
    return rows.scaled(_drop_rounding(value))


def _of_distributions(mapping: AbstractMapping, scores: Tensor, target: Tensor, dim: int) -> Tensor:
    """The loss of each row, in at least float32."""
    rows = mapping.rows(scores, dim, shifted=True)
    y = target.movedim(dim, -1).to(torch.promote_types(rows.scores.dtype, target.dtype))
    at = mapping.at(rows.parameter)
    score = (y * torch.where((y == 0) & rows.scores.isinf(), 0.0, rows.scores)).sum(-1)
    value = _autograd.value(rows.scores, rows.parameter, None, mapping)
    value = value + (at.kept_omega(y, rows.scores) - score)
    if rows.shift is None:
        return rows.scaled(value)
    # For a target that sums to what solutions do, up to rounding, the shift cancels.
    mass = at.mass(rows.scores)
    gap = mass - y.sum(-1)
    inside = gap.detach().abs() <= 4 * torch.finfo(target.dtype).eps * mass
    value = torch.where(inside, _drop_rounding(value), value)
    gap = gap - torch.where(inside, gap.detach(), 0.0)
    return rows.scaled(value) + rows.shift.squeeze(-1) * gap


def _smooth(target: Tensor, scores: Tensor, dim: int, smoothing: float) -> Tensor:
    """(1 − ε)y + εu of distributions y, with u uniform over the classes that are not deleted."""
    wide = torch.promote_types(target.dtype, torch.float32)
    kept = (scores.detach() != -torch.inf).to(wide)
    share = smoothing / kept.sum(dim, keepdim=True).clamp(min=1)
    return ((1 - smoothing) * target.to(wide) + kept * share).to(target.dtype)


def _vertices(classes: Tensor, scores: Tensor, dim: int) -> Tensor:
    """The vertex of each class, of the scores' shape and in at least float32."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    zeros = torch.zeros_like(scores, dtype=wide)
    return zeros.scatter(dim, classes.unsqueeze(dim), 1.0)


def _pivot(scores: Tensor, target: Tensor) -> Tensor:
    """The target (..., 1) of each row (..., d), or the best class where the target is deleted."""
    is_deleted = scores.detach().gather(-1, target) == -torch.inf
    return torch.where(is_deleted, scores.detach().argmax(-1, keepdim=True), target)


def _smoothing_terms(
    mapping: AbstractMapping, scores: Tensor, target: Tensor, pivot: Tensor, smoothing: float
) -> Tensor:
    """What smoothing adds to max_Ω(θ) − θ_p for a class p that is not deleted.

    For q = (1 − ε)e_y + εu, with u uniform over the n classes that are not deleted, it is

        Ω(q) + θ_p − <θ, q> = Ω(q) + (1 − ε)(θ_p − θ_y) + ε Σ (θ_p − θᵢ)/n,
        Ω(q) = f(1 − ε + ε/n) + (n − 1) f(ε/n), or f(1 − ε) + n f(ε/n) if y is deleted,

    and no distribution is in memory.

    Args:
        mapping: whose Ω is Σ f(yᵢ), see `HasTerms`.
        scores: θ, (..., d).
        target: y, (..., 1).
        pivot: p, (..., 1): y itself unless it is deleted.
        smoothing: ε in (0, 1].
    Returns:
        (...), in at least float32.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    kept = scores.detach() != -torch.inf
    count = kept.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)
    at = scores.gather(-1, pivot)
    distance = torch.where(kept, at - scores, 0.0).sum(-1) / count.squeeze(-1)
    share, is_deleted = smoothing / count, ~kept.gather(-1, target)
    own = torch.where(is_deleted, 0.0, share)
    others = (count - (~is_deleted).to(count)).squeeze(-1)
    omega = mapping.omega(1 - smoothing + own) + others * mapping.omega(share)
    if smoothing < 1:
        missed = torch.where(is_deleted, at - scores.gather(-1, target), 0.0)
        omega = omega + (1 - smoothing) * missed.squeeze(-1)
    return omega + smoothing * distance


def _drop_rounding(losses: Tensor) -> Tensor:
    """Losses without what rounding leaves of zero or below it, with the gradient that they had."""
    found = losses.detach()
    return losses - torch.where(found < torch.finfo(found.dtype).eps / 2, found, 0.0)


def _result_type(dtype: torch.dtype, scores: Tensor) -> torch.dtype:
    """That type; under autocast at least float32, as for `F.cross_entropy`."""
    if dtype in _checks.HALF and torch.is_autocast_enabled(scores.device.type):
        return torch.float32
    return dtype
