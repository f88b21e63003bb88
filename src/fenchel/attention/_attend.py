"""Attention to a cache, which reads only the pages of keys that may have weight."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._registry import resolve
from ..ops import attention as fused_ops
from ..ops.cached_attention import MAX_ROWS, cached_attention, num_pages
from ..ops.cached_attention.reference import Rows, attend_by_pages
from ._arguments import inputs_of, pattern_of
from ._attention import attention, default_scale
from ._cache import KeysValues, is_followed
from ._checks import check_pattern, check_vectors
from ._dense import widened
from ._fused import FUSED_TYPES, operator_arguments, takes_mapping
from ._pattern import Pattern, pattern
from ._problem import Inputs, Layout, Setting, is_autocast, without_autocast

MIN_PAGES = {"cpu": 256, "cuda": 16}
"""With fewer pages all keys are read at once."""


def attend(
    query: Tensor,
    memory: KeysValues,
    mapping: AbstractMapping | str = "softmax",
    scale: float | Tensor | None = None,
    *,
    causal: bool | str = False,
    window: int | tuple[int | None, int | None] | None = None,
    key_lengths: Tensor | None = None,
    alibi: float | Tensor | None = None,
    softcap: float = 0.0,
    sinks: float | Tensor | None = None,
    pages: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new queries to a cache: the same as `attention` to its keys and values.

    Where it can, it reads pages of 64 keys in the order of their bounds, and stops when no other
    page can have weight. That is so for sparsemax and entmax with α > 1, a few queries, at least
    16,384 keys on a CPU or 1,024 on a GPU, and no gradients. A page's scores are at most
    Σᵢ max(qᵢ lowᵢ, qᵢ highᵢ), from the smallest and the largest entries of its keys; what is below
    the threshold of the scores that were read has weight zero. So the answer is that of all keys.
    Values of weight zero may be anything, and may not be read.

    Args:
        query: (batch, H, T, d); H is a multiple of the cache's heads.
        memory: the cache.
        mapping, scale, causal, window, key_lengths, alibi, softcap, sinks: as for `attention`.
            "lower_right" is for queries that are the last positions of the cache.
        pages: whether to return how many pages were read.
    Returns:
        (batch, H, T, e), and if asked for the number of pages that were read for each sequence and
        head of the keys, (batch, key_heads).
    Raises:
        TypeError, ValueError: as for `attention`.

    >>> keys = torch.eye(8).repeat_interleave(2048, 0)[None, None]  # eight clusters
    >>> cache = KeysValues(keys, keys)
    >>> output, read = attend(8 * keys[..., :1, :], cache, "sparsemax", scale=1.0, pages=True)
    >>> read.item(), cache.length // 64
    (32, 256)
    """
    mapping = resolve(mapping)
    if not isinstance(memory, KeysValues):
        raise TypeError(f"`memory` must be a KeysValues, got {_checks.type_name(memory)}.")
    options = {
        "causal": causal,
        "window": window,
        "key_lengths": key_lengths,
        "alibi": alibi,
        "softcap": softcap,
        "sinks": sinks,
    }
    found = None
    learned = (scale, alibi, sinks, *vars(mapping).values())
    if _is_certified(query, memory, mapping, learned):
        found = _certified(query, memory, mapping, scale, **options)
    if found is None:
        output = attention(query, *memory.for_reading(), mapping, None, scale, **options)
        found = output, memory.all_pages(query.shape[2]) if pages else None
    return found if pages else found[0]  # type: ignore[return-value]


def _is_certified(
    query: Tensor, memory: KeysValues, mapping: AbstractMapping, others: tuple[Any, ...]
) -> bool:
    """Whether pages may be skipped: there is a threshold, and nothing follows the operations."""
    if not isinstance(query, Tensor) or query.ndim != 4 or not takes_mapping(mapping):
        return False
    if not query.numel():
        return False
    key, value = memory.key, memory.value
    rows = query.shape[1] * query.shape[2] // max(1, key.shape[1])
    if (
        is_followed((query, key, value, *(x for x in others if isinstance(x, Tensor))))
        or not 1 <= rows <= MAX_ROWS
        or not key.dtype == value.dtype == query.dtype
        or (is_autocast(query.device) and query.dtype != _autocast_type(query))
    ):
        return False
    if num_pages(memory.length) < MIN_PAGES.get(query.device.type, math.inf):
        return False
    widest = max(key.shape[3], value.shape[3])
    return query.is_cpu or (
        fused_ops.HAS_KERNEL and query.dtype in FUSED_TYPES and widest <= fused_ops.MAX_WIDTH
    )


def _autocast_type(query: Tensor) -> torch.dtype:
    """The type that autocast computes in; float64 stays."""
    wide = query.dtype == torch.float64
    return query.dtype if wide else torch.get_autocast_dtype(query.device.type)


def _pattern(
    layout: Layout, query: Tensor, memory: KeysValues, causal: bool | str, window: Any,
    key_lengths: Tensor | None,
) -> Pattern:  # fmt: skip
    """The intervals of keys that the queries see; layers share them where nothing else decides."""
    if key_lengths is not None or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        key = memory.key
        return pattern_of(layout, query, key, causal, window, (None, key_lengths), (None, None))
    stream = torch.cuda.current_stream(query.device).cuda_stream if query.is_cuda else 0
    window = tuple(window) if isinstance(window, list) else window
    return _fixed_pattern(query.shape[2], memory.length, query.device, stream, causal, window)


@lru_cache(maxsize=32)
def _fixed_pattern(
    num_queries: int, num_keys: int, device: torch.device, stream: int, causal: bool | str,
    window: int | tuple | None,
) -> Pattern:  # fmt: skip
    """The same for each stream, so that none waits for another."""
    return pattern(num_queries, num_keys, device, causal=causal, window=window)


def _certified(
    query: Tensor,
    memory: KeysValues,
    mapping: AbstractMapping,
    scale: float | Tensor | None,
    *,
    causal: bool | str,
    window: Any,
    key_lengths: Tensor | None,
    alibi: float | Tensor | None,
    softcap: float,
    sinks: float | Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """The output, and how many pages were read; None if that is many, on a CPU."""
    check_pattern(causal, window)
    _checks.check_number("softcap", softcap, minimum=0)
    if scale is not None:
        _checks.check_real("scale", scale)
    layout = check_vectors(query, memory.key, memory.value, key_lengths is not None)
    with without_autocast(query.device):
        seen = _pattern(layout, query, memory, causal, window, key_lengths)
        setting = Setting(mapping, seen, default_scale(query, scale), softcap)
        key, value, bounds = memory.pages()
        numbers = mapping.exponent, mapping.gamma, setting.scale  # type: ignore[attr-defined]
        if not query.is_cpu and _is_plain(layout, query, key, (*numbers, scale), alibi, sinks):
            mapping.check_fields()
            intervals = (x.contiguous() for x in (seen.starts, seen.stops, seen.diagonal))
            arguments = (query, key, value, *intervals, *map(float, numbers), None, None)
        else:
            inputs = inputs_of(layout, query, key, value, mapping, None, scale, alibi, sinks)
            if query.is_cpu:
                return _by_pages(inputs, setting, bounds, layout)
            arguments = operator_arguments(inputs, setting)
        return cached_attention(*arguments[:3], bounds, *arguments[3:], softcap)


def _is_plain(
    layout: Layout, query: Tensor, key: Tensor, numbers: tuple[Any, ...], *others: Any
) -> bool:
    """Whether the operator takes the arguments as they are, which spares the host a third."""
    return (
        all(x is None for x in others)
        and not any(isinstance(x, Tensor) for x in numbers)
        and layout.batch == query.shape[:2]
        and key.shape[0] == query.shape[0]
    )


def _by_pages(
    inputs: Inputs, setting: Setting, bounds: Tensor, layout: Layout
) -> tuple[Tensor, Tensor] | None:
    """The same in plain operations, in the type of the query, float32 for half precision."""
    seen, mapping = setting.pattern, setting.mapping
    alpha = mapping.exponent if inputs.parameter is None else inputs.parameter  # type: ignore[attr-defined]
    if isinstance(alpha, Tensor) and not bool((alpha > 1).all()):
        return None
    rows = Rows(
        alpha,
        mapping.gamma if inputs.gamma is None else inputs.gamma,
        setting.scale if inputs.scale is None else inputs.scale,
        inputs.slopes,
        inputs.sinks,
        *(x[:, None, None, :, None] for x in (seen.starts, seen.stops, seen.diagonal)),
    )
    key, value = inputs.key.squeeze(2), inputs.value.squeeze(2)
    found = attend_by_pages(widened(inputs.query), key, value, bounds, rows, setting.softcap)
    if found is None:
        return None
    output, count = found
    read = torch.full(key.shape[:2], count, dtype=torch.int32)
    return layout.merge(output).to(value.dtype), read
