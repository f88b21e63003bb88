"""The contract of a mapping."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from ..mappings import AbstractMapping
from ..mappings._registry import resolve
from ._promises import check_promises, differences, rows_agree


def check_mapping(mapping: AbstractMapping | str, *, deletes: bool = True) -> None:
    """Checks that a mapping keeps its contract: solutions are optimal and differentiable, for any
    input.

    Args:
        mapping: one onto the simplex, or the name of one; or, if its `total` is None and it states
            `mass`, onto the points of the unit cube with that sum.
        deletes: whether −inf equals deletion. If Ω depends on positions it does not: then an entry
            of score −inf only has the weight zero.
    Raises:
        TypeError: for what is no mapping.
        AssertionError: for the first promise that is broken; the message has the scores.

    It takes a second, and longer for an iterative solver. Every run checks the same scores.

    >>> from fenchel import Entmax
    >>> check_mapping(Entmax(1.25))
    """
    promises = PROMISES if deletes else [p for p in PROMISES if p is not _deletes]
    check_promises(resolve(mapping), promises, (6,))


def _points(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Feasible points (K, d): vertices and random ones."""
    d = scores.shape[1]
    if mapping.total is not None:
        random = torch.rand(20, d, dtype=torch.float64) ** 4
        return torch.cat([torch.eye(d).double(), random / random.sum(1, keepdim=True)])
    mass = mapping.mass(scores[0])
    points = torch.rand(20, d, dtype=torch.float64) ** 4
    for _ in range(300):
        points = (points * (mass / points.sum(1, keepdim=True))).clamp(max=1)
    return points


def _objective(mapping: AbstractMapping, scores: Tensor, y: Tensor) -> Tensor:
    return (scores * y).sum(-1) - mapping.gamma * mapping.omega(y)


def _inputs_stay(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """It does not change its input."""
    before = scores.clone()
    mapping(scores)
    mapping.max(scores)
    return rows_agree(scores, before, 0.0, 0.0)


def _repeats(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """The same scores give the same solution."""
    return rows_agree(mapping(scores), mapping(scores), 0.0, 0.0)


def _keeps_type(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Solutions have the type of the scores, and that type's precision."""
    kept = torch.ones(len(scores), dtype=torch.bool)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        y, expected = mapping(scores.to(dtype)), mapping(scores.to(dtype).double())
        eps = torch.finfo(dtype).eps
        kept = kept & rows_agree(y, expected, 4 * eps, 1e-8 + 4 * eps)
        kept = kept & (y.dtype == mapping.max(scores.to(dtype)).dtype == dtype)
    return kept


def _feasible(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Solutions are nonnegative and sum to their total."""
    y = mapping(scores)
    mass = torch.as_tensor(mapping.mass(scores), dtype=y.dtype)
    top = 1.0 if mapping.total is None else mapping.total
    inside = ((y >= 0) & (y <= top * (1 + 1e-8))).all(-1)
    return inside & torch.isclose(y.sum(-1), mass, rtol=1e-8, atol=1e-10)


def _optimal(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """No feasible point y has a larger ⟨θ, y⟩ − γΩ(y) than the solution."""
    y = mapping(scores)
    best = _objective(mapping, scores, y)
    steps = _points(mapping, scores).unsqueeze(1) - y
    kept = best.isfinite()
    for size in (1.0, 1e-3):
        kept = kept & (_objective(mapping, scores, y + size * steps) <= best + 1e-9).all(0)
    return kept


def _value(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """`max` is ⟨θ, y⟩ − γΩ(y) at the solution y, and by finite differences its gradient is y."""
    y = mapping(scores)
    value = rows_agree(mapping.max(scores), _objective(mapping, scores, y))
    return value & rows_agree(differences(mapping.max, scores), y, 0.0, 1e-4)


def _first_derivatives(mapping: AbstractMapping, scores: Tensor) -> bool:
    """The derivatives of the solution and of `max` are right, backward and forward."""
    x = scores.requires_grad_()
    return all(
        gradcheck(function, (x,), fast_mode=True, check_forward_ad=True, check_batched_grad=True)
        for function in (mapping.__call__, mapping.max)
    )


def _second_derivatives(mapping: AbstractMapping, scores: Tensor) -> bool:
    """The second derivatives of the solution and of `max` are right."""
    x = scores.requires_grad_()
    return all(
        gradgradcheck(function, (x,), fast_mode=True)
        for function in (mapping.__call__, mapping.max)
    )


def _loss(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """`loss` is max(θ) + γΩ(target) − ⟨θ, target⟩, and by finite differences its gradient is
    y − target."""
    kept = torch.ones(len(scores), dtype=torch.bool)
    classes = 2 if mapping.total == 1.0 else 0
    for k, point in enumerate(_points(mapping, scores)[:8:2]):

        def loss(x: Tensor, k: int = k, point: Tensor = point) -> Tensor:
            target = torch.full(x.shape[:-1], 2 * k) if k < classes else point.expand_as(x)
            return mapping.loss(x, target, reduction="none")

        expected = mapping.max(scores) + mapping.gamma * mapping.omega(point) - scores @ point
        kept = kept & rows_agree(loss(scores), expected)
        kept = kept & rows_agree(differences(loss, scores), mapping(scores) - point, 0.0, 1e-4)
    return kept


def _forbids(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """An entry of score −inf has the weight zero."""
    scores[:, [1, 4]] = -torch.inf
    return (mapping(scores)[:, [1, 4]] == 0).all(1)


def _deletes(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Entries have the solution that they have when those of score −inf are deleted."""
    kept = [0, 2, 3, 5]
    expected = mapping(scores[:, kept])
    scores[:, [1, 4]] = -torch.inf
    return rows_agree(mapping(scores)[:, kept], expected)


def _empty_rows(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """A row of nothing but −inf gives zeros and a zero gradient, and leaves other rows alone."""
    expected, v = mapping(scores), scores.flip(1)
    scores[1] = -torch.inf
    expected[1] = 0.0
    x = scores.requires_grad_()
    y = mapping(x)
    (gradient,) = torch.autograd.grad(y, x, v)
    kept = rows_agree(y, expected) & gradient.isfinite().all(1)
    kept[1] &= (gradient[1] == 0).all()
    return kept


def _nan_stays(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """NaN makes all of its row NaN, and leaves other rows alone."""
    expected = mapping(scores)
    scores[1, 2] = expected[1] = torch.nan
    return rows_agree(mapping(scores), expected)


def _plus_infinity(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Entries of score +inf share the mass."""
    scores[:, [1, 4]] = torch.inf
    share = torch.as_tensor(mapping.mass(scores), dtype=scores.dtype) / 2
    y = mapping(scores)
    return rows_agree(y[:, [1, 4]], share.clamp(max=1).expand(len(y)).unsqueeze(1).expand(-1, 2))


def _any_layout(mapping: AbstractMapping, scores: Tensor) -> Tensor:
    """Any `dim`, any strides and any batch dimensions give the same solutions."""
    y = mapping(scores)
    wide = torch.zeros(len(scores), 12, dtype=scores.dtype)
    wide[:, ::2] = scores
    kept = rows_agree(mapping(wide[:, ::2]), y)
    for dim in (0, -2):
        kept = kept & rows_agree(mapping(scores.T, dim).T, y)
    kept = kept & rows_agree(mapping(scores.reshape(2, 2, -1)).reshape(y.shape), y)
    kept = kept & rows_agree(mapping.max(scores.T, 0), mapping.max(scores))
    return kept & rows_agree(torch.stack([mapping(row) for row in scores]), y)


def _empty_batch(mapping: AbstractMapping, scores: Tensor) -> bool:
    """An empty batch gives an empty result."""
    empty = scores.reshape(2, 2, -1)[:, :0]
    return mapping(empty).shape == empty.shape and mapping.max(empty).shape == (2, 0)


PROMISES = (
    _inputs_stay,
    _repeats,
    _keeps_type,
    _feasible,
    _optimal,
    _value,
    _loss,
    _first_derivatives,
    _second_derivatives,
    _forbids,
    _deletes,
    _empty_rows,
    _nan_stays,
    _plus_infinity,
    _any_layout,
    _empty_batch,
)
