"""The checks of attention: tensors that fit together, and heads that divide a width."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _checks
from ._pattern import CAUSAL
from ._problem import Layout, broadcasts


def check_vectors(query: Tensor, key: Tensor, value: Tensor, has_lengths: bool) -> Layout:
    """Queries, keys and values that fit together, and how their dimensions do.

    With lengths a first dimension of three counts sequences, not heads.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _checks.check_float_tensor(name, tensor)
        _checks.check_same_device(name, tensor, query.device, "query")
        if tensor.ndim < 2:
            raise ValueError(
                f"`{name}` must have at least two dimensions, got shape {tuple(tensor.shape)}."
            )
    if key.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
        raise TypeError(f"`key` must have the type of `query`, {query.dtype}; got {key.dtype}.")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"`key` must have vectors of the query's size, {query.shape[-1]}; got "
            f"shape {tuple(key.shape)}."
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"`value` must have one row per key, {key.shape[-2]}; got shape {tuple(value.shape)}."
        )
    return _layout(query, key, value, has_lengths)


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which both broadcast."""
    return tuple(first if first == second else torch.broadcast_shapes(first, second))


def _layout(query: Tensor, key: Tensor, value: Tensor, has_lengths: bool) -> Layout:
    shapes = {"query": query.shape, "key": key.shape, "value": value.shape}
    own, num_dimensions = query.shape[:-2], max(map(len, shapes.values()))
    try:
        memory = _broadcast(key.shape[:-2], value.shape[:-2])
        num_batch = max(len(own), len(memory))
        if num_batch == 0 or (num_batch == 1 and has_lengths):
            return Layout(_broadcast(own, memory), num_batch, 1, 1)
        leading = _broadcast(own[:-1], memory[:-1])
        heads, groups = (own or (1,))[-1], (memory or (1,))[-1]
        if heads == 1:
            heads = groups
        if heads and groups and heads % groups == 0:
            return Layout((*leading, heads), len(leading), heads, groups)
    except RuntimeError:
        heads = groups = 1
    found = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    if heads == 0 or groups == 0:
        raise ValueError(
            "`query`, `key` and `value` must have at least one head, in the third dimension from "
            f"the end; got {found}."
        )
    if num_dimensions == 3 and has_lengths:
        raise ValueError(
            "`query`, `key` and `value` must have as many sequences, in the first of three "
            f"dimensions where lengths are given, or broadcast; got {found}. Heads of one sequence "
            "are given with one more dimension, as `query[None]`."
        )
    raise ValueError(
        "`query`, `key` and `value` must agree in all dimensions but their last two, or "
        "broadcast, and the heads of the query, in the third dimension from the end, must be a "
        f"multiple of those of the keys; got {found}."
    )


def check_mask(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> None:
    """A boolean or floating-point mask that broadcasts to that shape."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else _checks.type_name(mask)
        raise TypeError(f"`mask` must be a boolean or floating-point torch.Tensor, got {got}.")
    _checks.check_same_device("mask", mask, query.device, "query")
    if not broadcasts(mask.shape, shape):
        padding = len(shape) > 2 and tuple(mask.shape) == (shape[0], shape[-1])
        ones = ", ".join(["None"] * (len(shape) - 2))
        remedy = f"; one of keys for each sequence is given as `mask[:, {ones}]`" if padding else ""
        raise ValueError(
            f"`mask` must broadcast to {shape}, the queries of each row and the keys; got "
            f"{tuple(mask.shape)}{remedy}."
        )


def check_weights(weights: Any) -> None:
    """Whether to return them, yes or no."""
    if not isinstance(weights, (bool, np.bool_)):
        raise TypeError(f"`weights` must be True or False, got {_checks.type_name(weights)}.")


def check_pattern(causal: Any, window: Any) -> None:
    """What `causal` and `window` may be."""
    if not isinstance(causal, (bool, np.bool_)) and causal not in CAUSAL:
        raise ValueError(
            f'`causal` must be False, True, "upper_left" or "lower_right", got {causal!r}.'
        )
    if window is None:
        return
    if isinstance(window, (tuple, list)):
        if len(window) != 2:
            raise ValueError(f"`window` must be an int or a pair (left, right), got {window!r}.")
        for name, side in zip(("left", "right"), window, strict=True):
            if side is None:
                continue
            _check_side(f"the {name} side of `window`", side, 0, "; None is for no bound")
    elif causal:
        _check_side("`window`", window, 1, ", the query's own place, when `causal` is set")
    else:
        _check_side("`window`", window, 0, "")


def _check_side(name: str, value: Any, minimum: int, remark: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"{name} must be an int, got {_checks.type_name(value)}; a pair (left, right) has one "
            "for each side."
        )
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}{remark}; got {value}.")


def _check_integers(name: str, value: Any, query: Tensor) -> None:
    if not isinstance(value, Tensor) or value.dtype not in (torch.int32, torch.int64):
        got = value.dtype if isinstance(value, Tensor) else _checks.type_name(value)
        raise TypeError(f"`{name}` must be an int32 or int64 torch.Tensor, got {got}.")
    _checks.check_same_device(name, value, query.device, "query")


def check_lengths(name: str, value: Any, layout: Layout, most: int, query: Tensor) -> Tensor:
    """Lengths of padded sequences, as (B,) or (1,)."""
    _check_integers(name, value, query)
    if not broadcasts(value.shape, layout.leading):
        raise ValueError(
            f"`{name}` must have shape {layout.leading}, one length for each sequence; got "
            f"{tuple(value.shape)}."
        )
    if _checks.can_read_values(value) and bool(((value < 0) | (value > most)).any()):
        bad = value[(value < 0) | (value > most)][0]
        raise ValueError(f"`{name}` must be from 0 to {most}, the padded length; got {int(bad)}.")
    return value.flatten() if value.numel() == 1 else value.expand(layout.leading).flatten()


def check_offsets(
    query_offsets: Any, key_offsets: Any, num_queries: int, num_keys: int, query: Tensor
) -> tuple[Tensor, Tensor]:
    """Offsets of packed sequences, of queries and of keys."""
    if query_offsets is None:
        raise ValueError("`cu_seqlens_q` must be given with `cu_seqlens_k`.")
    if key_offsets is None:
        if num_queries != num_keys:
            raise ValueError(
                "`cu_seqlens_k` must be given where queries and keys are not as many: "
                f"{num_queries} and {num_keys}."
            )
        key_offsets = query_offsets
    for name, value, most in (
        ("cu_seqlens_q", query_offsets, num_queries),
        ("cu_seqlens_k", key_offsets, num_keys),
    ):
        _check_integers(name, value, query)
        if value.ndim != 1 or value.numel() < 2:
            raise ValueError(
                f"`{name}` must have shape (n + 1,): where each of n sequences starts, and where "
                f"the last one ends; got {tuple(value.shape)}."
            )
        if not _checks.can_read_values(value):
            continue
        if value[0] != 0 or value[-1] > most or bool((value.diff() < 0).any()):
            raise ValueError(
                f"`{name}` must start with 0, never decrease, and end at {most} at most; got "
                f"{value.tolist()}."
            )
    if query_offsets.numel() != key_offsets.numel():
        raise ValueError(
            "`cu_seqlens_q` and `cu_seqlens_k` must have as many entries, got "
            f"{query_offsets.numel()} and {key_offsets.numel()}."
        )
    return query_offsets, key_offsets


def check_per_head(name: str, value: Any, layout: Layout, query: Tensor) -> Tensor:
    """Numbers that broadcast to the heads of each sequence, as (..., 1, 1)."""
    _checks.check_real(name, value)
    if not isinstance(value, Tensor):
        dtype = torch.promote_types(query.dtype, torch.float32)  # not torch's default type
        value = torch.full((), float(value), dtype=dtype, device=query.device)
    value = _checks.move_beside(name, value, query, "query")
    if not broadcasts(value.shape, layout.batch):
        raise ValueError(
            f"`{name}` must broadcast to {layout.batch}, one entry per head; got shape "
            f"{tuple(value.shape)}."
        )
    return value[..., None, None]


def check_heads(dim: Any, heads: Any, key_heads: Any) -> None:
    """A width that divides into heads, and heads that share keys."""
    for name, value in (("dim", dim), ("heads", heads), ("key_heads", key_heads)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"`{name}` must be a positive int, got {value!r}.")
    if dim % heads:
        raise ValueError(f"`dim` must be a multiple of `heads` ({heads}), got {dim}.")
    if heads % key_heads:
        raise ValueError(f"`heads` must be a multiple of `key_heads` ({key_heads}), got {heads}.")


def check_sequences(name: str, value: Tensor, dim: int) -> None:
    """Vectors of a batch of sequences, (batch, T, dim)."""
    _checks.check_float_tensor(name, value)
    if value.ndim != 3 or value.shape[-1] != dim:
        raise ValueError(f"`{name}` must have shape (batch, T, {dim}), got {tuple(value.shape)}.")
