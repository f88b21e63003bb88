"""Attention where tensors need no rearrangement: small calls on a CPU, at the least cost."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from .._transforms import is_eager
from ..mappings import AbstractMapping, HasParameter
from . import _blocks
from ._pattern import CAUSAL
from ._problem import broadcasts, is_finite

_PLAIN = (Tensor, torch.nn.Parameter)
_ZERO = {x: torch.zeros(1, 1, 1, dtype=x, device="cpu") for x in (torch.float32, torch.float64)}


def _are_vectors(query: Any, key: Any, value: Any) -> bool:
    """Whether these are plain tensors of one type on a CPU with the same heads, and their scores
    fit into one block."""
    if not (type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN):
        return False
    if query.is_nested or key.is_nested or value.is_nested:
        return False
    own, keys, values, dtype = query.shape, key.shape, value.shape, query.dtype
    size = query.numel()
    return (
        size > 0
        and len(own) == len(keys) == len(values) > 1
        and own[:-2] == keys[:-2] == values[:-2]
        and own[-1] == keys[-1]
        and keys[-2] == values[-2]
        and 0 < size // own[-1] * keys[-2] <= _blocks.MAX_SCORES
        and dtype in _ZERO
        and key.dtype == dtype
        and value.dtype == dtype
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and query.layout is key.layout is value.layout is torch.strided
    )


def _is_mask(mask: Any, z: Tensor) -> bool:
    return (
        type(mask) in _PLAIN
        and mask.is_cpu
        and mask.layout is torch.strided
        and (mask.dtype == torch.bool or (mask.dtype == z.dtype and not mask.requires_grad))
        and broadcasts(mask.shape, z.shape)
    )


def _fits(mapping: AbstractMapping, query: Tensor) -> bool:
    """Whether γ is a number, and the parameter of the mapping another, or one for each query."""
    if isinstance(mapping.gamma, Tensor):
        return False
    own = getattr(mapping, mapping.parameter) if isinstance(mapping, HasParameter) else None
    if not isinstance(own, Tensor):
        return True
    return type(own) in _PLAIN and own.is_cpu and broadcasts(own.shape, (*query.shape[:-1], 1))


def _products(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """scale · query keyᵀ."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        return (query @ key.mT).mul_(scale)  # backward scales the scores' gradient, the smallest
    *batch, num_queries, size = query.shape
    num_keys = key.shape[-2]
    rows, columns = query.reshape(-1, num_queries, size), key.reshape(-1, num_keys, size)
    z = torch.baddbmm(_ZERO[query.dtype], rows, columns.mT, beta=0, alpha=scale)
    return z.view(*batch, num_queries, num_keys)


def _is_small(query: Tensor, key: Tensor, causal: Any) -> bool:
    """Whether causal attention is too small for blocks to be worth their time."""
    size = query.numel() // query.shape[-1] * key.shape[-2]
    return (causal is True or causal in CAUSAL) and size <= 8 * _blocks.MIN_SAVED


def _later(causal: bool | str, num_queries: int, num_keys: int) -> Tensor:
    """The keys that each query does not see, (T, S)."""
    place = num_keys - num_queries if causal == "lower_right" else 0
    whole = torch.ones(num_queries, num_keys, dtype=torch.bool, device="cpu")
    return whole.triu(place + 1)


def direct_attention(
    query: Any, key: Any, value: Any, mapping: AbstractMapping, mask: Any, scale: Any, causal: Any
) -> tuple[Tensor, Tensor] | None:
    """The outputs and the weights, as `attention` defines them; None if this is not the way: for
    other kinds of arguments, and where a number is not finite."""
    if not (
        is_eager()
        and _are_vectors(query, key, value)
        and (scale is None or (type(scale) is float and isfinite(scale)))
        and (causal is False or _is_small(query, key, causal))
        and _fits(mapping, query)
        and not torch.is_autocast_enabled("cpu")
    ):
        return None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    z = _products(query, key, scale)
    if (mask is not None and not _is_mask(mask, z)) or not is_finite(z):
        return None
    if mask is not None:
        z = z.masked_fill_(~mask, -inf) if mask.dtype == torch.bool else z.add_(mask)
    if causal:
        z = z.masked_fill_(_later(causal, *z.shape[-2:]), -inf)
    y = mapping(z)
    output = y @ value
    return (output, y) if (mask is None and not causal) or is_finite(output) else None
