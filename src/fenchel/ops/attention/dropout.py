"""Dropout from a seed: the same weights are dropped forward, backward and by every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..._transforms import is_eager

_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_AT_A_TIME = 2**16
"""Indices whose words stay in a CPU's cache."""


def uniform(seed: Tensor, index: Tensor) -> Tensor:
    """A number in [0, 1) for each index, float32: what `tl.rand(seed, index)` is in Triton.

    Args:
        seed: int64, one number.
        index: int64, nonnegative, any shape.
    """
    if index.is_cpu and index.numel() > _AT_A_TIME and is_eager(index):
        parts = [_philox(seed, part) for part in index.flatten().split(_AT_A_TIME)]
        return torch.cat(parts).view(index.shape)
    return _philox(seed, index)


def _philox(seed: Tensor, index: Tensor) -> Tensor:
    """The first word of Philox 4×32 with 10 rounds, as a number in [0, 1).

    A product of two words fills the 64 bits of int64, sign included; only the low words of c1 and
    c3 count.
    """
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    c0, c1 = index & _WORD, index >> 32
    c2 = c3 = torch.zeros_like(seed)
    for _ in range(10):
        even, odd = c0 * _ROUND[0], c2 * _ROUND[1]
        c0, c2 = ((odd >> 32) ^ c1 ^ k0) & _WORD, ((even >> 32) ^ c3 ^ k1) & _WORD
        c1, c3 = odd, even
        k0, k1 = (k0 + _KEY[0]) & _WORD, (k1 + _KEY[1]) & _WORD
    positive = torch.where(c0 > _WORD // 2, _WORD - c0, c0)  # −x − 1 of a negative int32
    return positive.to(torch.float32) * 4.6566127342e-10


def by_index(
    seed: Tensor, dropout: float, shape: Sequence[int], part: Sequence[slice]
) -> Callable[[Tensor], Tensor]:
    """Dropout of a part of weights of that shape, (..., T, S). A weight becomes zero if its own
    uniform number is below `dropout`; the others are scaled up."""

    def drop(y: Tensor) -> Tensor:
        if dropout == 1:
            return torch.zeros_like(y)
        kept = uniform(seed, _indices(shape, part, y.device)) >= dropout
        return torch.where(kept, y / (1 - dropout), 0.0)

    return drop


def _indices(shape: Sequence[int], part: Sequence[slice], device: torch.device) -> Tensor:
    """The index of each entry of a part of a tensor of that shape, as if it were contiguous."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for size, places in zip(shape, part, strict=True):
        index = index.unsqueeze(-1) * size + torch.arange(*places.indices(size), device=device)
    return index
