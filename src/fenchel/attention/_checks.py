"""The checks of attention: tensors that fit together, and heads that divide a width."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .. import _checks


def check_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> None:
    """Queries, keys, values and a mask that fit together."""
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
    batch = _batch(query, key, value)
    if mask is None:
        return
    if causal:
        raise ValueError("`mask` must be None when `causal` is true; put both into the mask.")
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else _checks.type_name(mask)
        raise TypeError(f"`mask` must be a boolean or floating-point torch.Tensor, got {got}.")
    _checks.check_same_device("mask", mask, query.device, "query")
    shape = (*batch, query.shape[-2], key.shape[-2])
    if not _broadcasts(mask.shape, shape):
        padding = len(shape) > 2 and tuple(mask.shape) == (shape[0], shape[-1])
        ones = ", ".join(["None"] * (len(shape) - 2))
        remedy = f"; one of keys for each sequence is given as `mask[:, {ones}]`" if padding else ""
        raise ValueError(
            f"`mask` must broadcast to {shape}, the queries of each row and the keys; got "
            f"{tuple(mask.shape)}{remedy}."
        )


def _batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The batch dimensions of queries, keys and values, which broadcast."""
    shapes = {"query": query.shape, "key": key.shape, "value": value.shape}
    try:
        return tuple(torch.broadcast_shapes(*(shape[:-2] for shape in shapes.values())))
    except RuntimeError:
        remedy = ""
        if all(len(shape) > 2 for shape in shapes.values()):
            heads, groups = query.shape[-3], key.shape[-3]
            if heads % groups == 0 and value.shape[-3] == groups and heads != groups:
                remedy = (
                    "; where several heads of the query share one of the keys, repeat these by "
                    f"`.repeat_interleave({heads // groups}, -3)`"
                )
        found = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(
            "`query`, `key` and `value` must agree in all dimensions but their last two, or "
            f"broadcast; got {found}{remedy}."
        ) from None


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    """Whether a tensor of the one shape broadcasts to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(own in (1, wanted) for own, wanted in pairs)


def check_heads(dim: Any, heads: Any) -> None:
    """A width that divides into heads."""
    for name, value in (("dim", dim), ("heads", heads)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"`{name}` must be a positive int, got {value!r}.")
    if dim % heads:
        raise ValueError(f"`dim` must be a multiple of `heads` ({heads}), got {dim}.")


def check_sequences(name: str, value: Tensor, dim: int) -> None:
    """Vectors of a batch of sequences, (batch, T, dim)."""
    _checks.check_float_tensor(name, value)
    if value.ndim != 3 or value.shape[-1] != dim:
        raise ValueError(f"`{name}` must have shape (batch, T, {dim}), got {tuple(value.shape)}.")
