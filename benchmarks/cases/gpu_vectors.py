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
CHECKED = 2048
"""Queries of a head whose answers are compared, at most."""


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


def checked(length: int, device: torch.device | str) -> Tensor:
    """The places of the queries whose answers are compared: all, or the first, the last and some
    between."""
    if length <= CHECKED:
        return torch.arange(length, device=device)
    between = 1 + torch.randperm(length - 2, device=device)[: CHECKED - 2]
    ends = torch.tensor([0, length - 1], device=device)
    return torch.cat([between, ends]).sort().values


def at(vectors: Vectors, places: Tensor) -> Vectors:
    """The same, with a cotangent of zero at all other places."""
    cotangent = torch.zeros_like(vectors.cotangent)
    cotangent[..., places, :] = vectors.cotangent[..., places, :]
    return vectors._replace(cotangent=cotangent)


def exact(alpha: float, causal: bool, vectors: Vectors, places: Tensor) -> tuple[Tensor, ...]:
    """The output of one head at some places, the gradient in their queries, and what they add to
    the gradients in keys and values, in float64.

    Args:
        alpha: of entmax; 1 is softmax.
        causal: whether query t sees keys up to t only.
        vectors: each (length, size).
        places: of the queries.
    """
    length, size = vectors.query.shape
    key, value = vectors.key.detach().double(), vectors.value.detach().double()
    scale, step = size**-0.5, max(1, MAX_SCORES // length)
    of_rows: list[tuple[Tensor, Tensor]] = []
    of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
    for rows in places.split(step):
        query, cotangent = (x[rows].detach().double() for x in (vectors.query, vectors.cotangent))
        scores = scale * query @ key.T
        if causal:
            later = torch.arange(length, device=rows.device) > rows[:, None]
            scores.masked_fill_(later, -torch.inf)
        y = ground_truth.entmax(alpha)(scores)
        of_scores = ground_truth.entmax_jvp(alpha, y, cotangent @ value.T) * scale
        of_rows.append((y @ value, of_scores @ key))
        of_key += of_scores.T @ query
        of_value += y.T @ cotangent
    output, of_query = (torch.cat(parts) for parts in zip(*of_rows, strict=True))
    return output, of_query, of_key, of_value
