"""Cached attention in plain PyTorch: it reads pages in the order of their bounds.

Inside, heads are grouped: R heads of the query share one of G groups of keys, and rows are
(B, G, R, T). Every tensor has these dimensions, or ones, and one more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..attention.reference import mean, visible
from ..attention.reference import scores as plain_scores
from ..entmax import entmax
from .sizes import PAGE, num_pages

FIRST = 8
"""Pages that are read at first."""
GROWTH = 4
"""How many times as many are read, at most, as were before."""
SHARE = 0.25
"""From this share of the pages on, reading all of them at once is faster. It is so, too, if the
first ones leave twice as many."""


class Rows(NamedTuple):
    """What each row has, (B or 1, G or 1, R or 1, T, 1)."""

    alpha: float | Tensor
    gamma: float | Tensor
    scale: float | Tensor
    slopes: Tensor | None
    sinks: Tensor | None
    starts: Tensor
    stops: Tensor
    diagonal: Tensor


def upper_bounds(query: Tensor, bounds: Tensor, rows: Rows, softcap: float) -> Tensor:
    """At least the largest z of each page, (B, G, R, T, P), whatever products round.

    Args:
        query: (B, G, R, T, D).
        bounds: (2, B, G, P, D), the smallest and the largest entries of the keys of each page.
        rows: what each row has.
        softcap: 0 for none.
    """
    low, high = bounds
    facing = query * torch.as_tensor(rows.scale, dtype=query.dtype).sign()
    flat = facing.flatten(2, 3)
    most = flat.clamp(min=0) @ high.mT + flat.clamp(max=0) @ low.mT
    sizes = torch.maximum(low.abs(), high.abs()).norm(dim=-1).unsqueeze(-2)
    rounding = 4 * torch.finfo(query.dtype).eps
    margin = (query.shape[-1] + 8) * rounding * flat.norm(dim=-1, keepdim=True) * sizes
    z = (most + margin).unflatten(2, query.shape[2:4])
    z = z * torch.as_tensor(rows.scale, dtype=query.dtype).abs()
    if softcap > 0:
        z = softcap * (torch.tanh(z / softcap) + 16 * rounding)
    first = torch.arange(0, z.shape[-1] * PAGE, PAGE, device=z.device)
    last = first + PAGE - 1
    if rows.slopes is not None:
        nearest = torch.maximum(first - rows.diagonal, rows.diagonal - last).clamp(min=0)
        farthest = torch.maximum((first - rows.diagonal).abs(), (last - rows.diagonal).abs())
        bias = rows.slopes * torch.where(rows.slopes < 0, farthest, nearest)
        z = z - bias + 4 * rounding * (z.abs() + bias.abs())
    seen = (first < rows.stops) & (last >= rows.starts) & (rows.starts < rows.stops)
    return (z + 4 * rounding * z.abs()).masked_fill(~seen, -torch.inf)


def _pages(x: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Those pages (B, G, k) of keys or values (B, G, S, D), as (B, G, 1, k · PAGE, D)."""
    batch, groups = (torch.arange(n, device=x.device) for n in x.shape[:2])
    found = x.unflatten(2, (-1, PAGE))[batch[:, None, None], groups[:, None], index]
    return found.flatten(2, 3).unsqueeze(2).to(dtype)


def _scores(
    query: Tensor, key: Tensor, places: Tensor, rows: Rows, softcap: float
) -> tuple[Tensor, Tensor]:
    """z of keys (B, G, 1, N, D) at their places, and which of them each row sees."""
    seen = visible(rows.starts, rows.stops, places)
    distance = None if rows.slopes is None else (rows.diagonal - places).abs()
    z = plain_scores(query, key, seen, distance, rows.scale, rows.slopes, None, softcap)
    return z, seen


def _solve(z: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The weights of the scores, and the threshold that z must exceed to have one, (…, 1)."""
    if rows.sinks is not None:
        z = torch.cat([z, rows.sinks.to(z.dtype).expand(*z.shape[:-1], 1)], -1)
    p = entmax(z / rows.gamma, rows.alpha)
    largest, at = p.max(-1, keepdim=True)
    slope = rows.gamma / (rows.alpha - 1)
    tau = z.gather(-1, at) - slope * largest ** (rows.alpha - 1) * (1 + 2**-10)
    tau = torch.where(largest > 0, tau, -torch.inf)
    return (p if rows.sinks is None else p[..., :-1]), tau


def _needed(upper: Tensor, tau: Tensor, order: Tensor) -> int:
    """How many pages, in that order, until every later one is below the threshold. NaN is not."""
    margin = 2**-18 * tau.abs().nan_to_num(0.0, 0.0, 0.0)
    above = ~(upper < tau - margin)
    above = above.flatten(2, 3).any(2).gather(-1, order)
    places = torch.arange(1, above.shape[-1] + 1, device=above.device)
    return int((above * places).max())


def attend_by_pages(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, rows: Rows, softcap: float
) -> tuple[Tensor, int] | None:
    """The output (B, G, R, T, E), and how many pages of each group were read. None if a group needs
    many.

    Args:
        query: (B, G, R, T, D), in the type to compute in.
        key, value: (B, G, S, D) and (B, G, S, E), whole pages.
        bounds, rows, softcap: as for `upper_bounds`.
    """
    count = num_pages(key.shape[2])
    upper = upper_bounds(query, bounds[..., :count, :].to(query.dtype), rows, softcap)
    # Rows that share keys are compared by how far a page is below their highest bound.
    below = (upper - upper.amax(-1, keepdim=True)).nan_to_num(0.0, 0.0, -torch.inf)
    order = below.flatten(2, 3).amax(2).argsort(dim=-1, descending=True, stable=True)
    inside = torch.arange(PAGE, device=key.device)
    wanted, read, found = FIRST, 0, []
    while wanted < SHARE * count:
        index = order[..., read:wanted]
        places = (index.unsqueeze(-1) * PAGE + inside).flatten(2)[:, :, None, None]
        found.append(_scores(query, _pages(key, index, query.dtype), places, rows, softcap))
        z, seen = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
        p, tau = _solve(z, rows)
        read, needed = wanted, _needed(upper, tau, order)
        if needed <= read:
            return mean(p, _pages(value, order[..., :read], query.dtype), seen), read
        if needed > 2 * SHARE * count:
            break
        wanted = min(needed, GROWTH * read)
    return None


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    starts: Tensor,
    stops: Tensor,
    diagonal: Tensor,
    alpha: float | Tensor,
    gamma: float | Tensor,
    scale: float | Tensor,
    slopes: Tensor | None,
    sinks: Tensor | None,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """The output and how many pages were read; see the package."""
    batch, groups, keys = key.shape[:3]
    read = torch.zeros(batch, groups, dtype=torch.int32, device=query.device)
    if not query.numel() or not keys:
        return query.new_zeros(*query.shape[:-1], value.shape[-1]), read

    def grouped(x: float | Tensor) -> float | Tensor:
        return x.unflatten(1, (groups, -1)).unsqueeze(-1) if isinstance(x, Tensor) else x

    per_row = (None if x is None else grouped(x) for x in (alpha, gamma, scale, slopes, sinks))
    intervals = (x[:, None, None, :, None] for x in (starts, stops, diagonal))
    padding = (0, 0, 0, num_pages(keys) * PAGE - keys)
    if padding[-1]:
        key, value = (torch.nn.functional.pad(x, padding) for x in (key, value))
    rows = Rows(*per_row, *intervals)  # type: ignore[arg-type]
    query = query.unflatten(1, (groups, -1))
    found = attend_by_pages(query, key, value, bounds, rows, softcap)
    if found is None:
        places = torch.arange(key.shape[2], device=key.device)
        z, seen = _scores(query, key.unsqueeze(2), places, rows, softcap)
        found = mean(_solve(z, rows)[0], value.unsqueeze(2), seen), num_pages(keys)
    output, count = found
    return output.flatten(1, 2), read + count
