"""Entmax attention to a cache of keys, which reads only pages of keys that may have weight.

A page is `PAGE` keys that follow each other. With the smallest and the largest entry of its keys,
low and high, the product of a query with any of them is at most

    Σᵢ max(qᵢ lowᵢ, qᵢ highᵢ).

Scale, cap and slopes turn this into a bound of the page's scores. The threshold τ of the scores
that have been read is at most that of all, because more scores raise it. So a page whose bound is
below τ has weight zero, and is not read. Bounds have a margin for what products round.

The arguments are those of `fenchel::attention`, without mask and dropout. Besides, bounds is
(2, B, G, P, D), low and high of at least all pages; what a page holds besides the keys that are
seen may count, which only makes a bound larger. Values of weight zero may be anything; where they
are many, they are not read.

The results are contiguous: the output (B, H, T, E), and how many pages of keys were read, (B, G),
int32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _triton
from .._operator import declare
from .._triton import kernel
from . import reference
from .sizes import MAX_ROWS, PAGE, num_pages

__all__ = ["MAX_ROWS", "PAGE", "cached_attention", "num_pages"]


def _shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return (
        query.new_empty(*query.shape[:-1], value.shape[-1]),
        torch.empty(key.shape[:2], dtype=torch.int32, device=query.device),
    )


def _declare() -> Callable[..., Any]:
    """The operator, whose alpha, gamma and scale are tensors, or by another overload numbers."""

    def overload(suffix: str, kind: str) -> Callable[..., Any]:
        return declare(
            f"cached_attention{suffix}(Tensor query, Tensor key, Tensor value, Tensor bounds, "
            "Tensor starts, Tensor stops, Tensor diagonal, "
            f"{kind} alpha, {kind} gamma, {kind} scale, Tensor? slopes, Tensor? sinks, "
            "float softcap) -> (Tensor output, Tensor pages)",
            fake=_shapes,
            reference=reference.cached_attention,
            triton=kernel("cached_attention", "cached_attention") if _triton.AVAILABLE else None,
            rowwise=False,
        )

    by_tensors, by_numbers = overload("", "Tensor"), overload(".numbers", "float")

    def call(*arguments: Any) -> Any:
        return (by_tensors if isinstance(arguments[7], Tensor) else by_numbers)(*arguments)

    return call


cached_attention = _declare()
