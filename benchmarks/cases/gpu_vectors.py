"""Queries, keys and values to measure attention on, and its exact answers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import ground_truth

Shape = tuple[int, int, int, int]
"""Sequences, heads, length and the size of a vector."""
REACH = 64
"""How far from its own place a query of `local` sees more than noise."""
NOISE = 0.5
MAX_SCORES = 2**26
"""Scores of the exact answer that are held at a time."""
LONG = 65536
"""The length from which on the exact answer is computed in float32."""


class Vectors(NamedTuple):
    """Queries, keys, values and a cotangent of the outputs, all of one shape."""

    query: Tensor
    key: Tensor
    value: Tensor
    cotangent: Tensor


def normal(shape: Shape, device: str, factor: float = 1.0) -> Vectors:
    """N(0, 1), and queries times a factor: below 1 supports are wide, above 1 narrow."""
    query, key, value, cotangent = (torch.randn(shape, device=device) for _ in range(4))
    return Vectors(query * factor, key, value, cotangent)


def local(shape: Shape, device: str) -> Vectors:
    """Each query resembles the keys near its own place, and has a high score with the first."""
    *heads, length, size = shape
    noise = torch.randn(*heads, length + REACH, size, device=device).cumsum(-2)
    place = (noise[..., REACH:, :] - noise[..., :-REACH, :]) / REACH**0.5
    place[..., 0] = 0
    query = place + NOISE * torch.randn_like(place)
    query[..., 0] = size**0.5
    key = place.clone()
    key[..., 0, :] = 0
    key[..., 0, 0] = size**0.5
    return Vectors(query, key, *(torch.randn_like(key) for _ in range(2)))


def exact(alpha: float, causal: bool, vectors: Vectors) -> tuple[Tensor, ...]:
    """The output of one head, and the gradients in its queries, keys and values.

    Args:
        alpha: of entmax; 1 is softmax.
        causal: whether query t sees keys up to t only.
        vectors: each (length, size).
    """
    length, size = vectors.query.shape
    wide = torch.float64 if length < LONG else torch.float32
    query, key, value, cotangent = (x.detach().to(wide) for x in vectors)
    scale, step = size**-0.5, max(1, MAX_SCORES // length)
    output, of_query = torch.empty_like(value), torch.empty_like(query)
    of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
    for first in range(0, length, step):
        rows, seen = slice(first, first + step), slice(first + step if causal else length)
        scores = scale * query[rows] @ key[seen].T
        if causal:
            scores.masked_fill_(
                torch.ones_like(scores, dtype=torch.bool).triu(first + 1), -torch.inf
            )
        y = ground_truth.entmax(alpha)(scores)
        of_scores = ground_truth.entmax_jvp(alpha, y, cotangent[rows] @ value[seen].T) * scale
        output[rows] = y @ value[seen]
        of_query[rows] = of_scores @ key[seen]
        of_key[seen] += of_scores.T @ query[rows]
        of_value[seen] += y.T @ cotangent[rows]
    return output, of_query, of_key, of_value
