"""The mask that a model prepares once for its layers, in as few numbers as it can be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils.import_utils import is_tracing

from ._light import WITH_WINDOW

_CONJUNCTION = f"{and_masks.__qualname__}."


def light_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    *,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **_: Any,
) -> Tensor:
    """The mask of queries at q_offset + t and keys at kv_offset + j, with t < T and j < S.

    The arguments are those that transformers gives to every function of `AttentionMaskInterface`.

    Args:
        batch_size, q_length, kv_length: B, T and S.
        q_offset, kv_offset: the places of the first query and of the first key.
        mask_function: whether a query sees a key, from their indices.
        attention_mask: (B, places), true where there is a token.
        local_size: the width of a window or chunk, if there is one.
        allow_is_causal_skip: false where a causal mask must be written out, and for packed inputs.
        allow_is_bidirectional_skip: likewise; only given for masks that are not causal.
        use_vmap: true for functions that someone added.
        device, config: of the model.
    """

    def written_out() -> Tensor:
        found = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,  # type: ignore[arg-type]
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        assert found is not None
        return found

    def with_order(found: Tensor) -> Tensor:
        return found if local_size is None else found.to(WITH_WINDOW[found.dtype])

    def all_of(width: int) -> Tensor:
        one = torch.ones(1, 1, 1, 1, dtype=torch.int8, device=device)
        return with_order(one).expand(-1, -1, -1, width)

    if use_vmap or (local_size is not None and not _is_window(local_size, config)):
        return written_out()
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if mask_function is bidirectional_mask_function and allow_is_bidirectional_skip:
        found = None if padding is None else _keys(padding[:, kv_offset : kv_offset + kv_length])
        if found is None:
            found = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        return found.expand(-1, -1, q_length, kv_length)
    if allow_is_bidirectional_skip is not None or not _is_causal(mask_function):
        return written_out()
    if q_length == 1:
        is_last = isinstance(q_offset, int) and kv_offset + kv_length == q_offset + 1
        has_all = allow_is_causal_skip and attention_mask is None and is_last
        return all_of(kv_length) if has_all else written_out()
    if not allow_is_causal_skip:
        is_packed = mask_function is not causal_mask_function and attention_mask is None
        starts_here = isinstance(q_offset, int) and q_offset == kv_offset == 0
        if is_packed and starts_here and q_length == kv_length:
            return with_order(_offsets(mask_function, batch_size, q_length, device))
        return written_out()
    if isinstance(q_offset, Tensor) and is_tracing(q_offset):
        return written_out()
    width = int(q_offset) + q_length - kv_offset
    if not q_length <= width <= kv_length:
        return written_out()
    if padding is not None:
        found = _keys(padding[:, kv_offset : kv_offset + width], allow_lengths=width == q_length)
        if found is not None:
            return with_order(found if found.dtype == torch.int32 else found.to(torch.int8))
    return all_of(width)


def _is_window(local_size: int, config: Any) -> bool:
    """Whether this is the window of a layer, and not a chunk."""
    is_chunk = local_size == getattr(config, "attention_chunk_size", None)
    return local_size == getattr(config, "sliding_window", None) and not is_chunk


def _is_causal(function: Callable[..., Any]) -> bool:
    """Whether this is order alone, or order with a window, with packed sequences or with both.

    torch.compile can read the name of such a function but not what it encloses.
    """
    return function is causal_mask_function or function.__qualname__.startswith(_CONJUNCTION)


def _keys(padding: Tensor, allow_lengths: bool = True) -> Tensor | None:
    """Which keys (B, S) there are: as lengths where all gaps are at the ends of sequences."""
    if is_tracing(padding):
        return padding[:, None, None]
    lengths = padding.sum(-1, dtype=torch.int32)
    places = torch.arange(padding.shape[1], device=padding.device)
    are_first = (padding == (places < lengths[:, None])).all()
    is_full, is_right = torch.stack([padding.all(), are_first]).tolist()
    if is_full:
        return None
    return lengths[:, None, None, None] if is_right and allow_lengths else padding[:, None, None]


def _offsets(
    mask_function: Callable[..., Any], batch_size: int, length: int, device: torch.device | str
) -> Tensor:
    """Where sequences start, as (1, 1, B·T + 1, 1): behind the last one all entries are the end.

    A sequence starts where a token does not see the one before it. The number of entries does not
    depend on that of sequences, so that nothing waits for a device.
    """
    places = torch.arange(length, device=device)[None]
    rows = torch.arange(batch_size, device=device)[:, None]
    sees_previous = mask_function(rows, torch.zeros_like(rows), places, (places - 1).clamp(min=0))
    end = batch_size * length
    tokens = torch.arange(end, device=device, dtype=torch.int32)
    starts = torch.where((sees_previous & (places > 0)).flatten(), end, tokens).sort().values
    return torch.cat([starts, starts.new_full((1,), end)])[None, None, :, None]
