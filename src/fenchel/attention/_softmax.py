"""Attention with softmax by torch's own kernels, where these can do what is asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from .._checks import can_read_values
from .._transforms import is_eager
from ..mappings import AbstractMapping
from ..mappings._softmax import Softmax
from . import _blocks
from ._problem import Layout, is_autocast, is_finite


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: AbstractMapping,
    mask: Tensor | None,
    scale: float | Tensor | None,
    causal: bool | str,
    dropout: float,
    layout: Layout,
) -> Tensor | None:
    """Torch's own attention; None if it does not have what is asked for, or would let numbers that
    are not finite spoil what does not see them, or would store many scores."""
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    if causal == "lower_right":
        if num_queries not in (1, num_keys):
            return None
        causal = num_queries > 1
    if (
        not isinstance(mapping, Softmax)
        or isinstance(mapping.gamma, Tensor)
        or mapping.gamma != 1
        or isinstance(scale, Tensor)
        or (causal and mask is not None)
        or num_queries * num_keys == 0
        or not _types_agree(query, key, value, mask)
    ):
        return None
    others = (key, value) if causal or mask is not None else ()
    if can_read_values(query) and not all(map(is_finite, (query, *others))):
        return None
    tensors = _in_four_dimensions(layout, query, key, value, mask)
    # A comparison of sizes in a graph is a symbol, which torch does not take for a bool.
    shared = {"enable_gqa": True} if layout.groups != layout.heads else {}
    arguments = (*tensors, dropout, bool(causal))
    if _has_many_scores(*tensors[:2]) and _stores_scores(*arguments, scale=scale, **shared):
        return None
    output = scaled_dot_product_attention(*arguments, scale=scale, **shared)
    return output if query.ndim == 4 == len(layout.batch) + 2 else layout.merge(output)


def _types_agree(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether all numbers have one type, which autocast gives to all but float64."""
    is_cast = is_autocast(query.device)
    numbers = [key, value]
    if mask is not None and mask.dtype != torch.bool:
        numbers.append(mask)
    if is_cast:
        return all((x.dtype == torch.float64) == (query.dtype == torch.float64) for x in numbers)
    return all(x.dtype == query.dtype for x in numbers)


def _in_four_dimensions(
    layout: Layout, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries (B, H, T, D), keys and values of G heads, and a mask: the form of torch's fast
    kernels."""
    own, batch = query.shape[:-2], layout.batch
    if mask is not None:
        mask = mask[(None,) * (2 - mask.ndim)]
    if len(own) == 2 and own == batch and key.shape[:-2] == value.shape[:-2] == own:
        return query, key, value, mask
    query = layout.vectors(query).flatten(1, 2)
    key, value = (layout.vectors(x, layout.groups).squeeze(2) for x in (key, value))
    return query, key, value, None if mask is None else layout.split(mask).flatten(1, 2)


def _has_many_scores(query: Tensor, key: Tensor) -> bool:
    """Whether an eager call on a CPU has more scores than a block may have."""
    if not is_eager() or not query.is_cpu:
        return False
    return query.shape[:-1].numel() * key.shape[-2] > _blocks.MAX_SCORES


def _stores_scores(*arguments: Any, **options: Any) -> bool:
    """Whether torch has no kernel for these arguments that does not store the scores."""
    return torch.ops.aten._fused_sdp_choice(*arguments, **options) == SDPBackend.MATH.value
