"""Samples of projective dependency trees, from the chart of Eisner's algorithm."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops._structure import logsumexp
from ._draw import draw

RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = range(4)
"""The kinds of spans (i, j). Complete ones, with the head i or j and all that is below it on that
side; and those with an arc from i to j, or from j to i."""


class Chart(NamedTuple):
    """The log-weights of spans by kind, (B, 4, N, N) each: a span (i, j) that is split at k has the
    weight exp(first[i, k] + second[k, j])."""

    first: Tensor
    second: Tensor


def sample(
    scores: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Heads (B, num_samples, n), itself for the root and −1 behind the end.

    Args:
        scores: arcs (B, n, n) in float64, the root's on the diagonal.
        lengths: (B, 1) or None.
        single_root: whether the root has a single modifier.
        num_samples, generator: how many samples, and where random numbers come from.
    """
    batch, n, _ = scores.shape
    words = torch.arange(n, device=scores.device)
    ends = torch.full((batch, 1), n, device=scores.device) if lengths is None else lengths
    inside = words < ends
    both = inside.unsqueeze(1) & inside.unsqueeze(2)
    scores = torch.where(both, scores, -torch.inf)
    root = scores.diagonal(dim1=1, dim2=2)
    if single_root:
        chart = _inside(scores)
        last = (ends - 1).expand(batch, num_samples)
        left, right = chart.first[:, LEFT, 0], chart.second[:, RIGHT]
        right = right.gather(2, (ends - 1).unsqueeze(1).expand(-1, n, -1)).squeeze(2)
        top = draw((left + right + root).unsqueeze(1).expand(-1, num_samples, -1), generator)
        zero = torch.zeros_like(top)
        spans = [(zero + LEFT, zero, top), (zero + RIGHT, top, last)]
        heads = _expand(chart, spans, generator)
        heads = torch.where(heads < 0, words, heads)
    else:
        arcs = scores.new_full((batch, n + 1, n + 1), -torch.inf)
        arcs[:, 1:, 1:], arcs[:, 0, 1:] = scores, root
        last = ends.expand(batch, num_samples)
        zero = torch.zeros_like(last)
        heads = _expand(_inside(arcs), [(zero + RIGHT, zero, last)], generator)[..., 1:] - 1
        heads = torch.where(heads < 0, words, heads)
    return torch.where(inside.unsqueeze(1), heads, -1)


def _inside(arcs: Tensor) -> Chart:
    """The sums over all that is inside of each span, for arcs (B, N, N)."""
    batch, n, _ = arcs.shape
    spans = arcs.new_full((batch, 4, n + 1, n), -torch.inf)  # the last row: behind the end
    nodes = torch.arange(n, device=arcs.device)
    spans[:, :RIGHT_ARC, nodes, nodes] = 0.0
    for width in range(1, n):
        i = nodes[: n - width]
        j = i + width
        starts, ends, k = i.unsqueeze(1), j.unsqueeze(1), i.unsqueeze(1) + nodes[:width]
        inner = logsumexp(spans[:, RIGHT, starts, k] + spans[:, LEFT, k + 1, ends])
        spans[:, RIGHT_ARC, i, j] = inner + arcs[:, i, j]
        spans[:, LEFT_ARC, i, j] = inner + arcs[:, j, i]
        right = spans[:, RIGHT_ARC, starts, k + 1] + spans[:, RIGHT, k + 1, ends]
        left = spans[:, LEFT, starts, k] + spans[:, LEFT_ARC, k, ends]
        spans[:, RIGHT, i, j], spans[:, LEFT, i, j] = logsumexp(right), logsumexp(left)
    right, left, right_arc, left_arc = spans[:, :, :n].unbind(1)
    shifted = spans[:, LEFT, 1:]
    return Chart(
        torch.stack([right_arc, left, right, right], 1),
        torch.stack([right, left_arc, shifted, shifted], 1),
    )


def _expand(
    chart: Chart, spans: list[tuple[Tensor, Tensor, Tensor]], generator: torch.Generator | None
) -> Tensor:
    """The heads (B, S, N) of the nodes inside of spans (kind, i, j), (B, S) each; −1 for none.

    Each sample has a stack of spans. All take one from it at the same time, and split it.
    """
    batch, _, n, _ = chart.first.shape
    device = chart.first.device
    num_samples = spans[0][0].shape[1]
    stack = torch.zeros(batch, num_samples, n + 1, 3, dtype=torch.int64, device=device)
    heads = torch.full_like(stack[..., 0], -1)  # the last: for spans without an arc
    size = torch.zeros_like(heads[..., 0])

    def push(span: tuple[Tensor, Tensor, Tensor], exists: Tensor) -> None:
        nonlocal size
        at = size[..., None, None].expand(-1, -1, 1, 3)
        stack.scatter_(2, at, torch.stack(span, -1).unsqueeze(2))
        size = size + (exists & (span[1] < span[2]))

    for span in spans:
        push(span, torch.ones_like(size, dtype=torch.bool))
    instance = torch.arange(batch, device=device).unsqueeze(1)
    for _ in range(2 * (n - 1)):
        exists = size > 0
        size = (size - 1).clamp(min=0)
        at = size[..., None, None].expand(-1, -1, 1, 3)
        span = stack.gather(2, at).squeeze(2) * exists.unsqueeze(-1)
        kind, i, j = span.unbind(-1)
        modifier = torch.where(kind == RIGHT_ARC, j, torch.where(kind == LEFT_ARC, i, n))
        heads.scatter_(2, modifier.unsqueeze(-1), (i + j - modifier).unsqueeze(-1))
        k = draw(chart.first[instance, kind, i] + chart.second[instance, kind, :, j], generator)
        has_arc = kind >= RIGHT_ARC
        before = torch.where(kind == RIGHT, RIGHT_ARC, torch.where(has_arc, RIGHT, LEFT))
        behind = torch.where(kind == LEFT, LEFT_ARC, torch.where(has_arc, LEFT, RIGHT))
        push((before, i, k), exists)
        push((behind, k + has_arc, j), exists)
    return heads[..., :n]
