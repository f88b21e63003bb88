"""The arguments of attention as one problem: checked, and in five dimensions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..mappings import AbstractMapping, HasParameter
from ._checks import check_lengths, check_offsets, check_per_head
from ._pattern import Pattern, pattern
from ._problem import Inputs, Layout, rows


def pattern_of(
    layout: Layout,
    query: Tensor,
    key: Tensor,
    causal: bool | str,
    window: Any,
    lengths: tuple[Tensor | None, Tensor | None],
    offsets: tuple[Tensor | None, Tensor | None],
) -> Pattern:
    """The intervals of keys that the queries see."""
    counts = (query.shape[-2], key.shape[-2])
    sequences: dict[str, Tensor] = {}
    for name, given, most in zip(("query_lengths", "key_lengths"), lengths, counts, strict=True):
        if given is not None:
            sequences[name] = check_lengths(name, given, layout, most, query)
    if any(given is not None for given in offsets):
        if sequences:
            raise ValueError(
                f"`{next(iter(sequences))}` is for padded sequences and `cu_seqlens_q` for packed "
                "ones; give one of them."
            )
        both = check_offsets(*offsets, *counts, query)
        sequences = dict(zip(("query_offsets", "key_offsets"), both, strict=True))
    return pattern(*counts, query.device, causal=causal, window=window, **sequences)


def inputs_of(
    layout: Layout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: AbstractMapping,
    mask: Tensor | None,
    scale: float | Tensor | None,
    alibi: float | Tensor | None,
    sinks: float | Tensor | None,
) -> Inputs:
    """All that may have a gradient."""
    mapping.check_fields()
    own = mapping.parameter if isinstance(mapping, HasParameter) else "gamma"

    def per_row(name: str, value: Any) -> Tensor | None:
        return rows(name, value, layout, query) if isinstance(value, Tensor) else None

    def per_head(name: str, value: Any) -> Tensor | None:
        return None if value is None else layout.split(check_per_head(name, value, layout, query))

    return Inputs(
        layout.vectors(query),
        layout.vectors(key, layout.groups),
        layout.vectors(value, layout.groups),
        per_row("scale", scale),
        per_row("gamma", mapping.gamma),
        None if own == "gamma" else per_row(own, getattr(mapping, own)),
        per_head("alibi", alibi),
        per_head("sinks", sinks),
        None if mask is None else layout.split(mask[(None,) * (2 - mask.ndim)]),
    )
