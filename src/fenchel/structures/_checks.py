"""Checks of what a user gives to structures, SparseMAP and their losses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._checks import can_read_values, check_float_tensor, type_name


def check_structure(value: object, base: type) -> None:
    """Raises unless the value is an instance of the base class of structures."""
    if isinstance(value, base):
        return
    from ._perturbed import Perturbed  # which needs this file

    if isinstance(value, Perturbed):
        raise TypeError(
            "`structure` must be a structure, got a Perturbed; call it: `perturbed(scores)` are "
            "its marginals, and `perturbed.max` and `perturbed.sample` the rest."
        )
    raise TypeError(
        "`structure` must be a structure, such as `fenchel.Sequence(5, 3)`, or for a function that "
        f"finds the best one `fenchel.Custom(shape, oracle)`; got {type_name(value)}."
    )


def check_same_shape(name: str, value: Any, other: Any) -> None:
    """Raises unless the scores of two structures have the same shape."""
    if value.shape != other.shape:
        raise ValueError(f"`{name}` must have scores of shape {other.shape}, got {value}.")


def check_batch(name: str, value: Tensor, shape: tuple[int, ...]) -> torch.Size:
    """The batch dimensions of a tensor; raises unless one instance has that shape."""
    cut = value.ndim - len(shape)
    if cut < 0 or tuple(value.shape[cut:]) != shape:
        wanted = ", ".join(["...", *map(str, shape)])
        raise ValueError(f"`{name}` must have shape ({wanted}), got {tuple(value.shape)}.")
    return value.shape[:cut]


def check_extra_scores(
    pieces: tuple, names: tuple[str, ...], structure: str, scores: Tensor
) -> None:
    """Raises unless there is one extra score or None for each name, like the scores."""
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
        check_float_tensor(name, piece)
        if piece.dtype != scores.dtype or piece.device != scores.device:
            raise TypeError(
                f"`{name}` must have the type and device of `scores`, {scores.dtype} on "
                f"{scores.device}; got {piece.dtype} on {piece.device}."
            )


def check_extra_dims(
    name: str, shape: torch.Size, own: list[tuple[int, ...]], batch: torch.Size
) -> int:
    """How many dimensions of an extra score belong to one instance.

    Its shape ends with one of `own`; the dimensions before that must broadcast to the batch. The
    shortest of `own` is shared by all positions, the others have a first dimension for them.
    """

    def fits(tail: tuple[int, ...]) -> bool:
        cut = len(shape) - len(tail)
        if cut < 0 or cut > len(batch) or tuple(shape[cut:]) != tail:
            return False
        start = len(batch) - cut
        return all(shape[i] in (1, batch[start + i]) for i in range(cut))

    found = sorted((tail for tail in set(own) if fits(tail)), key=len)
    if found and (len(found) == 1 or shape.numel() <= math.prod(found[0])):
        has_all_dims = len(shape) == len(batch) + len(found[0])
        return len(found[0] if has_all_dims else found[-1])  # with one score both mean the same
    if found:
        k, n = len(batch), len(found[0])
        each = (*(1,) * (k + n - len(shape)), *shape[:-n], 1, *shape[-n:])
        position = (*(1,) * (k + n + 1 - len(shape)), *shape)
        raise ValueError(
            f"`{name}` of shape {tuple(shape)} can be one for each instance, or one for each "
            f"position; say which by all dimensions, {each} or {position}."
        )
    wanted = " or ".join(f"({', '.join(map(str, ('...', *tail)))})" for tail in dict.fromkeys(own))
    raise ValueError(
        f"`{name}` must have shape {wanted}, where ... broadcasts to the batch dimensions "
        f"{tuple(batch)}; got {tuple(shape)}."
    )


def check_lengths(
    value: Any,
    mask: Tensor | None,
    batch: torch.Size,
    max_lengths: tuple[int, ...],
    device: torch.device,
) -> Tensor | None:
    """The lengths of each instance, (B, k) for k `max_lengths`, from lengths or a mask; or None."""
    if value is None and mask is None:
        return None
    if value is not None and mask is not None:
        raise ValueError("give `lengths` or `mask`, not both.")
    if not max_lengths:
        raise ValueError("`lengths` and `mask` must be None for this structure, of one size only.")
    if mask is not None:
        value = _lengths_of_mask(mask, batch, max_lengths)
    value = torch.as_tensor(value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"`lengths` must hold integers, got {value.dtype}.")
    shape = (*batch, len(max_lengths)) if len(max_lengths) > 1 else tuple(batch)
    if tuple(value.shape) != shape:
        raise ValueError(f"`lengths` must have shape {shape}, got {tuple(value.shape)}.")
    value = value.to(torch.int64).reshape(batch.numel(), len(max_lengths))
    if not can_read_values(value):  # kernels rely on the bounds
        return torch.minimum(value.clamp(min=1), value.new_tensor(max_lengths)).to(device)
    bad = (value < 1) | (value > torch.tensor(max_lengths))
    if bad.any():
        row, side = bad.nonzero()[0].tolist()
        raise ValueError(
            f"`lengths` must be between 1 and {max_lengths[side]}, got {int(value[row, side])}."
        )
    return value.to(device)


def _lengths_of_mask(mask: Tensor, batch: torch.Size, max_lengths: tuple[int, ...]) -> Tensor:
    if len(max_lengths) > 1:
        raise ValueError("`mask` must be None for this structure; give `lengths`.")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else type_name(mask)
        raise TypeError(f"`mask` must be a boolean torch.Tensor, got {found}.")
    if tuple(mask.shape) != (*batch, *max_lengths):
        raise ValueError(
            f"`mask` must have shape {(*batch, *max_lengths)}, got {tuple(mask.shape)}."
        )
    if can_read_values(mask) and (mask[..., 1:] & ~mask[..., :-1]).any():
        raise ValueError(
            "`mask` must be true on the first positions of each instance and false behind them; to "
            "forbid a part, set its score to −inf."
        )
    return mask.sum(-1)


NO_VMAP = (
    "torch.vmap cannot map SparseMAP, whose supports have sizes of their own; call it once for the "
    "whole batch: `scores` may have any batch dimensions."
)


def check_not_mapped(scores: Any, extra_scores: Any) -> None:
    """Raises if torch.vmap maps the scores."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    pieces = extra_scores if isinstance(extra_scores, tuple) else (extra_scores,)
    for value in (scores, *pieces):
        while isinstance(value, Tensor) and functorch.is_functorch_wrapped_tensor(value):
            if functorch.is_batchedtensor(value):
                raise NotImplementedError(NO_VMAP)
            value = functorch.get_unwrapped(value)


def check_finite_indicators(name: str, value: Tensor, *scores: Tensor | None) -> None:
    """Raises if indicators (B, …) are not finite, for scores without NaN and +inf. The function of
    that name returned them, also below."""
    if not can_read_values(value) or value.isfinite().all():
        return
    bad = ~value.isfinite().flatten(1).all(1)
    for given in scores:
        if given is not None:
            bad = bad & (given < torch.inf).flatten(1).all(1)
    if bad.any():
        raise ValueError(
            f"`{name}` must return finite indicators; for scores without NaN or +inf it returned "
            f"{value[bad][0].tolist()}."
        )


def check_indicators(name: str, value: Any, shape: torch.Size) -> None:
    """Raises unless a structure's own argmax returned indicators of that shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must return a torch.Tensor, got {type_name(value)}.")
    if value.shape != shape:
        raise ValueError(
            f"`{name}` must return indicators of the scores' shape {tuple(shape)}, got "
            f"{tuple(value.shape)}."
        )


def check_pair(name: str, value: Any, shape: torch.Size) -> tuple[Any, Tensor]:
    """What a structure's own argmax returned for extra scores of that shape; raises unless it is a
    pair of indicators, the second of that shape."""
    if not isinstance(value, tuple) or len(value) != 2:
        found = f"{len(value)} of them" if isinstance(value, tuple) else type_name(value)
        raise TypeError(
            f"`{name}` must return a pair where there are extra scores: the indicators, and those "
            f"of the extra scores; got {found}."
        )
    indicator, extra = value
    if not isinstance(extra, Tensor):
        raise TypeError(
            f"`{name}` must return a torch.Tensor as indicators of the extra scores, got "
            f"{type_name(extra)}."
        )
    if extra.shape != shape:
        raise ValueError(
            f"`{name}` must return indicators of the extra scores' shape {tuple(shape)}, got "
            f"{tuple(extra.shape)}."
        )
    return indicator, extra


def check_zeros_behind(name: str, indicator: Tensor, inside: Tensor) -> None:
    """Raises if indicators (B, …) are not zero behind the end of their instances."""
    if can_read_values(indicator) and ((indicator != 0) & ~inside).any():
        raise ValueError(
            f"`{name}` must return indicators that are zero behind the end of each instance; "
            "`lengths` says where this is."
        )


def check_start(value: Any, posterior: type, problem: Any) -> None:
    """Raises unless an earlier result is one of the same structure, shape and lengths."""
    if not isinstance(value, posterior):
        raise TypeError(
            f"`start` must be a {posterior.__name__} that sparsemap returned, got "
            f"{type_name(value)}; it must be a result for {problem.structure}."
        )
    previous = value._problem
    if not problem.structure.is_like(previous.structure):
        alike = repr(previous.structure) == repr(problem.structure)
        raise ValueError(
            f"`start` must be a result for the same structure, {problem.structure}; got one for "
            f"{'another that reads like it, but is not equal' if alike else previous.structure}."
        )
    if previous.scores.shape != problem.scores.shape:
        now, before = ((*p.batch, *p.scores.shape[1:]) for p in (problem, previous))
        raise ValueError(
            f"`start` must be a result for as many instances, with scores of shape {now}; got one "
            f"for scores of shape {before}. An index takes some of its instances."
        )
    before, now = previous.lengths, problem.lengths
    if (before is None) != (now is None) or (before is not None and not before.equal(now)):
        raise ValueError("`start` must be a result for the same `lengths`.")


def check_graph_options(method: str | None, regularize_extra: bool) -> None:
    """Raises if SparseMAP of a graph has options of other solvers."""
    if method is not None:
        raise ValueError(f"`method` must be None for a FactorGraph, got {method!r}.")
    if regularize_extra:
        raise ValueError(
            "`regularize_extra` must be False for a FactorGraph; a score that is to be regularized "
            "belongs to a variable of its own."
        )


def check_target_pair(value: Any) -> tuple[Any, Any]:
    """The target of the scores, and that of the extra scores or None."""
    if not isinstance(value, tuple):
        return value, None
    if len(value) != 2:
        raise ValueError(f"`target` must be a tensor, or a pair of them; got {len(value)} of them.")
    return value


def check_target(value: Any, batch: torch.Size, positions: int | None, scores: Any) -> bool:
    """Whether a target is codes (..., positions); raises unless it is that or indicators
    (..., *shape). `positions` is None if structures have no codes."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`target` must be a torch.Tensor, or a pair of them; got {type_name(value)}."
        )
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


def check_codes(value: Tensor, bad: Tensor) -> None:
    """Raises if a code is bad."""
    if can_read_values(value) and bad.any():
        found = int(value[bad].flatten()[0])
        raise ValueError(
            "`target` must hold codes of the structure, −1 for none; it has no option "
            f"{found} at that position."
        )


def check_valid_codes(value: Tensor, structure: Any, valid: Tensor) -> None:
    """Raises unless all codes (B, positions) are `valid`, (B)."""
    if can_read_values(valid) and not valid.all():
        found = value[~valid][0].tolist()
        raise ValueError(
            f"`target` must hold structures of {structure}; {found} is none, for the size that "
            "instance has."
        )


def check_vertex(name: str, value: Tensor, coded: bool) -> None:
    """Raises unless indicators are zeros and ones, from which the extra parts follow."""
    if coded and (not can_read_values(value) or ((value == 0) | (value == 1)).all()):
        return
    raise ValueError(
        f"`{name}` must be codes, or zeros and ones of a structure of the library, where there are "
        "extra scores; for others give a pair, with the extra scores' own target."
    )


def check_zeros_and_ones(name: str, value: Tensor) -> None:
    """Raises unless indicators of a graph are zeros and ones, from which the extra parts follow."""
    if can_read_values(value) and not ((value == 0) | (value == 1)).all():
        raise ValueError(
            f"`{name}` must be zeros and ones where a graph has extra scores; for others give a "
            "pair, with the extra scores' own target."
        )


def check_member(name: str, structure: Any, value: Tensor, best: Tensor) -> None:
    """Raises unless indicators are those of the best structures for the scores ±1 that they say."""
    if can_read_values(value) and not value.equal(best.to(value)):
        raise ValueError(f"`{name}` must be a structure of the graph; for {structure} it is none.")


def check_extra_target(value: Any, batch: torch.Size, own: tuple[int, ...]) -> None:
    """Raises unless the target of extra scores has their shape, `own` for one instance."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`target` must be a torch.Tensor, or a pair of them; got {type_name(value)}."
        )
    shape = (*batch, *own)
    if tuple(value.shape) != shape:
        raise ValueError(
            f"`target` must have shape {shape} for the extra scores, got {tuple(value.shape)}."
        )
