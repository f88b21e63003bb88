"""Structures, SparseMAP and their losses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._values import _values_can_be_read, dense_floats, kind


def structure(value: object, base: type) -> None:
    """A structure, an object of their base class."""
    if not isinstance(value, base):
        raise TypeError(
            "`structure` must be a structure, such as `fenchel.Sequence(5, 3)`, or for a function "
            f"that finds the best one `fenchel.Custom(shape, function)`; got {kind(value)}."
        )


def same_shape(name: str, value: Any, other: Any) -> None:
    """A structure whose scores have the shape of another's."""
    if value.shape != other.shape:
        raise ValueError(f"`{name}` must have scores of shape {other.shape}, got {value}.")


def batch_of(name: str, value: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """The dimensions of a tensor before those that one instance has."""
    cut = value.ndim - len(shape)
    if cut < 0 or tuple(value.shape[cut:]) != shape:
        wanted = ", ".join(["...", *map(str, shape)])
        raise ValueError(f"`{name}` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.shape[:cut]


def extra_scores(pieces: tuple, names: tuple[str, ...], structure: str, scores: Tensor) -> None:
    """Extra scores, one or None for each name, of the scores' type and device."""
    if not names:
        raise ValueError(f"`extra_scores` must be None for {structure}, which has no such scores.")
    if len(pieces) != len(names):
        raise ValueError(
            f"`extra_scores` must be a tensor or a tuple ({', '.join(names)}), some of them None; "
            f"got {len(pieces)} entries."
        )
    for name, piece in zip(names, pieces, strict=True):
        if piece is None:
            continue
        dense_floats(name, piece)
        if piece.dtype != scores.dtype or piece.device != scores.device:
            raise TypeError(
                f"`{name}` must have the type and device of `scores`, {scores.dtype} on "
                f"{scores.device}; got {piece.dtype} on {piece.device}."
            )


def extra_fits(name: str, shape: torch.Size, own: list[tuple[int, ...]], batch: torch.Size) -> int:
    """How many dimensions of an extra score belong to one instance, where those may be any of
    `own` and the others broadcast to the batch.

    One of `own` has no dimension for positions, the others have it first.
    """

    def fits(tail: tuple[int, ...]) -> bool:
        cut = len(shape) - len(tail)
        if cut < 0 or cut > len(batch) or tuple(shape[cut:]) != tail:
            return False
        lead = tuple(shape[:cut])
        return all(a in (1, b) for a, b in zip(lead[::-1], batch[::-1], strict=False))

    found = sorted((tail for tail in set(own) if fits(tail)), key=len)
    if found and (len(found) == 1 or shape.numel() <= math.prod(found[0])):
        whole = len(shape) == len(batch) + len(found[0])  # all read a single one alike
        return len(found[0] if whole else found[-1])
    if found:
        k, n = len(batch), len(found[0])
        each = (*(1,) * (k + n - len(shape)), *shape[:-n], 1, *shape[-n:])
        position = (*(1,) * (k + n + 1 - len(shape)), *shape)
        raise ValueError(
            f"`{name}` of shape {tuple(shape)} can be one for each instance, or one for each "
            f"position; say which by all dimensions, {each} or {position}."
        )
    wanted = " or ".join(f"(..., {', '.join(map(str, tail))})" for tail in own)
    raise ValueError(
        f"`{name}` must have shape {wanted}, where ... broadcasts to the batch dimensions "
        f"{tuple(batch)} of `scores`; got {tuple(shape)}."
    )


def lengths(
    value: Any,
    mask: Tensor | None,
    batch: torch.Size,
    sides: tuple[int, ...],
    device: torch.device,
) -> Tensor | None:
    """The sizes of each instance, (B, k) for k sides, from lengths or from a mask; or None."""
    if value is None and mask is None:
        return None
    if value is not None and mask is not None:
        raise ValueError("give `lengths` or `mask`, not both.")
    if not sides:
        raise ValueError("`lengths` and `mask` must be None for this structure, of one size only.")
    if mask is not None:
        value = _lengths_of_mask(mask, batch, sides)
    value = torch.as_tensor(value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`lengths` must hold integers, got {value.dtype}.")
    shape = (*batch, len(sides)) if len(sides) > 1 else tuple(batch)
    if tuple(value.shape) != shape:
        raise ValueError(f"`lengths` must have shape {shape}, got {tuple(value.shape)}.")
    value = value.to(torch.int64).reshape(batch.numel(), len(sides))
    if not _values_can_be_read(value):  # kernels rely on the bounds
        return torch.minimum(value.clamp(min=1), value.new_tensor(sides)).to(device)
    bad = (value < 1) | (value > torch.tensor(sides))
    if bad.any():
        row, side = bad.nonzero()[0].tolist()
        raise ValueError(
            f"`lengths` must be between 1 and {sides[side]}, got {int(value[row, side])}."
        )
    return value.to(device)


def _lengths_of_mask(mask: Tensor, batch: torch.Size, sides: tuple[int, ...]) -> Tensor:
    if len(sides) > 1:
        raise ValueError("`mask` must be None for this structure; give `lengths`.")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else kind(mask)
        raise TypeError(f"`mask` must be a boolean torch.Tensor, got {found}.")
    if tuple(mask.shape) != (*batch, *sides):
        raise ValueError(f"`mask` must have shape {(*batch, *sides)}, got {tuple(mask.shape)}.")
    if _values_can_be_read(mask) and (mask[..., 1:] & ~mask[..., :-1]).any():
        raise ValueError(
            "`mask` must be true on the first positions of each instance and false behind them; to "
            "forbid a part, set its score to −inf."
        )
    return mask.sum(-1)


MAPPED = (
    "torch.vmap cannot map SparseMAP, whose supports have sizes of their own; call it once for the "
    "whole batch: `scores` may have any batch dimensions."
)


def unmapped(scores: Any, extra_scores: Any) -> None:
    """Scores that no torch.vmap maps."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    pieces = extra_scores if isinstance(extra_scores, tuple) else (extra_scores,)
    for value in (scores, *pieces):
        while isinstance(value, Tensor) and functorch.is_functorch_wrapped_tensor(value):
            if functorch.is_batchedtensor(value):
                raise NotImplementedError(MAPPED)
            value = functorch.get_unwrapped(value)


def finite_indicators(value: Tensor, scores: Tensor) -> None:
    """Indicators (B, …) without NaN or infinity where the scores have none."""
    if not _values_can_be_read(value):
        return
    bad = ~value.isfinite().flatten(1).all(1) & (scores < torch.inf).flatten(1).all(1)
    if bad.any():
        raise ValueError(
            "`argmax` must return finite indicators; for scores without NaN or +inf it returned "
            f"{value[bad][0].tolist()}."
        )


def indicators(value: Any, shape: torch.Size) -> None:
    """What a structure's own argmax returned."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`argmax` must return a torch.Tensor, got {kind(value)}.")
    if value.shape != shape:
        raise ValueError(
            f"`argmax` must return indicators of the scores' shape {tuple(shape)}, got "
            f"{tuple(value.shape)}."
        )


def start(value: Any, posterior: type, problem: Any) -> None:
    """An earlier result, whose structures must be ones of the problem at hand."""
    if not isinstance(value, posterior):
        raise TypeError(f"`start` must be a Posterior that sparsemap returned, got {kind(value)}.")
    previous = value._problem
    if previous.structure is not problem.structure and previous.structure != problem.structure:
        raise ValueError(
            f"`start` must be a result for the same structure, {problem.structure}; got one for "
            f"{previous.structure}."
        )
    if previous.scores.shape != problem.scores.shape:
        raise ValueError(
            f"`start` must be a result for scores of shape {tuple(problem.scores.shape)}, batch "
            f"dimensions flattened; got one for {tuple(previous.scores.shape)}."
        )
    before, now = previous.lengths, problem.lengths
    if (before is None) != (now is None) or (before is not None and not before.equal(now)):
        raise ValueError("`start` must be a result for the same `lengths`.")


def target_pair(value: Any) -> tuple[Any, Any]:
    """A target, and that of the extra scores or None."""
    if not isinstance(value, tuple):
        return value, None
    if len(value) != 2:
        raise ValueError(f"`target` must be a tensor, or a pair of them; got {len(value)} of them.")
    return value


def structure_target(value: Any, batch: torch.Size, positions: int | None, scores: Any) -> bool:
    """Codes (..., positions) (returns True) or indicators (..., *shape) (returns False) for scores
    (B, *shape); `positions` is None where structures have no codes."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`target` must be a torch.Tensor, or a pair of them; got {kind(value)}.")
    if value.device != scores.device:
        raise ValueError(
            f"`target` must be on the device of `scores`, {scores.device}; got {value.device}."
        )
    coded = not value.is_floating_point() and positions is not None
    shape = (*batch, positions) if coded else (*batch, *scores.shape[1:])
    if tuple(value.shape) != shape:
        what = "integer codes" if coded else "indicators"
        raise ValueError(f"`target` must have shape {shape} as {what}, got {tuple(value.shape)}.")
    return coded


def codes(value: Tensor, bad: Tensor) -> None:
    """Codes of which none is bad."""
    if _values_can_be_read(value) and bad.any():
        found = int(value[bad].flatten()[0])
        raise ValueError(
            "`target` must hold codes of the structure, −1 for none; it has no option "
            f"{found} at that position."
        )


def members(value: Tensor, structure: Any, good: Tensor) -> None:
    """Codes (B, positions) that are structures where `good`, (B)."""
    if _values_can_be_read(good) and not good.all():
        found = value[~good][0].tolist()
        raise ValueError(
            f"`target` must hold structures of {structure}; {found} is none, for the size that "
            "instance has."
        )


def vertex(name: str, value: Tensor, coded: bool) -> None:
    """Indicators of zeros and ones, from which the extra parts of a structure follow."""
    if coded and (not _values_can_be_read(value) or ((value == 0) | (value == 1)).all()):
        return
    raise ValueError(
        f"`{name}` must be codes, or zeros and ones of a structure of the library, where there are "
        "extra scores; for others give a pair, with the extra scores' own target."
    )


def like_extra(value: Any, batch: torch.Size, own: tuple[int, ...]) -> None:
    """The target (..., *own) of extra scores, which one instance was given as `own`."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`target` must be a torch.Tensor, or a pair of them; got {kind(value)}.")
    shape = (*batch, *own)
    if tuple(value.shape) != shape:
        raise ValueError(
            f"`target` must have shape {shape} for the extra scores, got {tuple(value.shape)}."
        )


def cost(value: Any, batch: torch.Size, shape: torch.Size) -> Tensor:
    """What each part costs, (B, *shape), from a tensor that broadcasts to (*batch, *shape)."""
    dense_floats("cost", value)
    whole = (*batch, *shape[1:])
    try:
        return value.broadcast_to(whole).reshape(shape)
    except RuntimeError:
        raise ValueError(
            f"`cost` must broadcast to the scores' shape {whole}, got {tuple(value.shape)}."
        ) from None
