"""Samples of dependency trees that need not be projective."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops._structure import logsumexp
from ._draw import draw, flip


class Elimination(NamedTuple):
    """A graph of k + 1 nodes, in logarithms of weights, and its last word, k, which is left out.

    Nodes are k words and the root, which counts twice: its arcs of rows k and k + 1 have weights of
    their own. The second are infinitely small; a single root has only such arcs.
    """

    direct: Tensor
    """(B, k + 2, k): the arcs of the first k words, from each other and from the root."""
    through: Tensor
    """(B, k + 2, k): the weight of the ways through word k that are added to these arcs."""
    heads: Tensor
    """(B, k + 1): the arcs of word k from the other words and from the root's first row."""


def sample(
    scores: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    num_samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Heads (B, num_samples, n), itself for the root and −1 behind the end.

    Words are left out one by one, as for the log-partition: the ways w(h → k) w(k → m) / S_k
    through a word k are added to the arcs h → m. A tree of the rest becomes one of all words: each
    of its arcs is drawn to be direct, or to go through k. The modifiers of the latter are attached
    to k. The head of k is drawn ∝ w(h → k) from the nodes h that are not below these modifiers.

    This is exact. Let C be these nodes, p(h) = w(h → k) / S_k, and m₁ … m_r the modifiers. The
    heads that lead through k make a tree of the r subtrees and C, whatever it is; the sum of
    p(h₁) … p(h_r) over all of these trees is p(C), as Cayley's formula says. So a choice of the
    other arcs and of the modifiers has the weight p(C), as in the graph with word k.

    Args:
        scores: arcs (B, n, n) in float64, the root's on the diagonal.
        lengths: (B, 1) or None.
        single_root: whether the root has a single modifier.
        num_samples, generator: how many samples, and where random numbers come from.
    """
    n = scores.shape[1]
    graph, inside = _graph(scores, lengths, single_root)
    eliminations = []
    for _ in range(n - 1):
        eliminations.append(_eliminate_last(graph))
        graph = logsumexp(torch.stack(eliminations[-1][:2], -1))
    rare = graph[:, 1] == -torch.inf  # whether the last word's arc is infinitely small, (B, 1)
    heads = torch.where(rare, n + 1, n).unsqueeze(1).expand(-1, num_samples, -1)
    for direct, through, own in reversed(eliminations):
        k = direct.shape[2]
        at = torch.where(heads >= n, heads - n + k, heads)
        odds = through.gather(1, at) - direct.gather(1, at)
        attached = flip(odds, generator)  # to word k, (B, num_samples, k)
        free = ~_below(torch.where(heads >= n, k, heads), attached)
        weights = torch.where(free, own.unsqueeze(1), -torch.inf)
        head = draw(weights, generator)
        head = torch.where(head == k, n, head)
        head = torch.where((weights == -torch.inf).all(-1), n + 1, head)
        heads = torch.cat([torch.where(attached, k, heads), head.unsqueeze(-1)], -1)
    words = torch.arange(n, device=scores.device)
    heads = torch.where(heads >= n, words, heads)
    return torch.where(inside.unsqueeze(1), heads, -1)


def _graph(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """The arcs (B, n + 2, n) of words from words and from the root's two rows, and which words
    there are, (B, n). A word behind the end hangs on the root."""
    batch, n, _ = scores.shape
    words = torch.arange(n, device=scores.device)
    inside = (words < (n if lengths is None else lengths)).expand(batch, n)
    both = inside.unsqueeze(1) & inside.unsqueeze(2) & (words.unsqueeze(1) != words)
    root = scores.diagonal(dim1=1, dim2=2)
    usual = torch.where(inside, -torch.inf if single_root else root, 0.0)
    rare = torch.where(inside & single_root, root, -torch.inf)
    arcs = torch.where(both, scores, -torch.inf)
    return torch.cat([arcs, usual.unsqueeze(1), rare.unsqueeze(1)], 1), inside


def _eliminate_last(graph: Tensor) -> Elimination:
    """The last word of a graph (B, k + 3, k + 1) is left out.

    If only the infinitely small arc of the root leads to it, that is certain to be its head: the
    ways from the root through the word have the weights of the word's arcs.
    """
    k = graph.shape[2] - 1
    heads = torch.cat([graph[:, :k, k], graph[:, k + 1 :, k]], 1)  # (B, k + 2)
    total = logsumexp(heads[:, : k + 1]).unsqueeze(1)
    shares = heads - torch.where(total == -torch.inf, 0.0, total)
    certain = torch.full_like(shares, -torch.inf)
    certain[:, k] = 0.0
    shares = torch.where(total == -torch.inf, certain, shares)
    direct = torch.cat([graph[:, :k, :k], graph[:, k + 1 :, :k]], 1)
    through = shares.unsqueeze(2) + graph[:, k, :k].unsqueeze(1)
    own = torch.eye(k + 2, k, dtype=torch.bool, device=graph.device)
    return Elimination(direct, torch.where(own, -torch.inf, through), heads[:, : k + 1])


def _below(heads: Tensor, marked: Tensor) -> Tensor:
    """Which nodes (B, S, k + 1) are marked or below a marked one: k words with heads (B, S, k) and
    the root, k."""
    k = heads.shape[-1]
    root = torch.full_like(heads[..., :1], k)
    above = torch.cat([heads, root], -1)
    found = torch.cat([marked, torch.zeros_like(marked[..., :1])], -1)
    for _ in range(k.bit_length()):  # twice as far up each time
        found = found | found.gather(-1, above)
        above = above.gather(-1, above)
    return found
