"""Dependency trees in plain PyTorch: the algorithm of Chu, Liu and Edmonds, and elimination.

MAP inference contracts cycles of best arcs. Log-partition and marginals follow the matrix-tree
theorem, in logarithms throughout: words are eliminated one by one, and the ways through a word
replace its arcs; see `walks.hpp`. For a single root, they sum over the word that it is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._structure import logsumexp, map_each


def map_inference(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The heads of the best trees, (B, n), a root being its own, and their scores.

    `option` is 1 for a single root, 0 for any number; see `declare_map`.
    """

    def solve(instance: np.ndarray) -> tuple[list[int], float] | None:
        n = len(instance)
        arcs = np.full((n, n + 1), -np.inf)  # of each word from each word, and from the root
        arcs[:, :n] = instance.T
        arcs[:, n] = instance.diagonal()
        arcs[range(n), range(n)] = -np.inf
        heads = _heads(arcs, bool(option))
        if heads is None or (option and (heads == n).sum() > 1):
            return None
        heads = np.where(heads == n, np.arange(n), heads)
        return heads.tolist(), float(instance[heads, range(n)].sum())

    return map_each(solve, scores, lengths)


def _heads(arcs: np.ndarray, single_root: bool) -> np.ndarray | None:
    """The best heads for arcs (n, n + 1), the last column from the root; if `single_root`, with as
    few arcs from the root as there can be."""
    n = len(arcs)
    heads = arcs.argmax(1)
    if single_root:
        words = arcs[:, :n].max(1)
        heads = np.where(words > -np.inf, arcs[:, :n].argmax(1), n)
    weights = arcs[range(n), heads]
    if (weights == -np.inf).any():
        return None
    cycle = _cycle(heads)
    if not cycle:
        return heads
    outside = [i for i in range(n) if i not in cycle]
    entering = arcs[cycle] - weights[cycle, None]
    entered = entering.argmax(0)  # the place in the cycle where the best arc from each head arrives
    small = np.full((len(outside) + 1, len(outside) + 2), -np.inf)
    sources = [*outside, n]
    small[:-1, :-2] = arcs[np.ix_(outside, outside)]
    small[:-1, -1] = arcs[outside, n]
    small[-1, :-2] = entering.max(0)[outside]
    small[-1, -1] = entering.max(0)[n]
    leaving = arcs[np.ix_(outside, cycle)]
    small[:-1, -2] = leaving.max(1)
    solution = _heads(small, single_root)
    if solution is None:
        return None
    for place, i in enumerate(outside):
        head = solution[place]
        if head == len(outside):
            heads[i] = cycle[leaving[place].argmax()]
        else:
            heads[i] = n if head > len(outside) else outside[head]
    source = solution[-1]
    head = n if source > len(outside) else sources[source]
    heads[cycle[entered[head]]] = head
    return heads


def _cycle(heads: np.ndarray) -> list[int]:
    """The nodes of one cycle, none if there is no cycle; the root is the number of nodes."""
    n = len(heads)
    color = [-1] * n
    for start in range(n):
        node = start
        while node < n and color[node] < 0:
            color[node] = start
            node = int(heads[node])
        if node < n and color[node] == start:
            cycle = [node]
            while heads[cycle[-1]] != node:
                cycle.append(int(heads[cycle[-1]]))
            return cycle
    return []


def log_partition(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> Tensor:
    """log Σ exp of the scores of all trees, (B); `option` is 1 for a single root."""
    arcs, root, inside, bad = _graph(scores, lengths)
    if option:
        value = logsumexp(_value(*_below_each(arcs, inside)) + root)
    else:
        value = _value(arcs, torch.where(inside, root, 0.0))
    return torch.where(bad, torch.nan, value)


def marginals(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, None]:
    """The marginals of the arcs, (B, n, n), the root's on the diagonal."""
    arcs, root, inside, bad = _graph(scores, lengths)
    if option:
        below, hanging = _below_each(arcs, inside)
        share = _value(below, hanging) + root
        share = (share - _finite(logsumexp(share)).unsqueeze(-1)).exp()
        u, on_root = _marginals(below, hanging)  # with each word as the root, (B, n, n, n)
        own = torch.eye(arcs.shape[-1], dtype=torch.bool, device=arcs.device)
        u = (share[..., None, None] * u).sum(1)
        u = u + share.unsqueeze(-1) * torch.where(own, 1.0, on_root)
    else:
        root = torch.where(inside, root, 0.0)
        u, on_root = _marginals(arcs, root)
        u = u + torch.diag_embed(on_root)
        u = torch.where((_value(arcs, root) > -torch.inf)[:, None, None], u, 0.0)
    u = torch.where(inside.unsqueeze(1) & inside.unsqueeze(2), u, 0.0)
    return torch.where(bad[:, None, None], torch.nan, u), None


def _graph(scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Arcs with −inf on the diagonal, (B, n, n), the root's, (B, n), which words there are, (B, n),
    and which instances hold NaN or +inf. No word behind the end is a head or has one."""
    n = scores.shape[1]
    own = torch.eye(n, dtype=torch.bool, device=scores.device)
    inside = torch.arange(n, device=scores.device).expand(scores.shape[:2])
    inside = inside < (n if lengths is None else lengths)
    both = inside.unsqueeze(1) & inside.unsqueeze(2)
    arcs = torch.where(both & ~own, scores, -torch.inf)
    root = torch.where(inside, scores.diagonal(dim1=1, dim2=2), -torch.inf)
    return arcs, root, inside, ~((scores < torch.inf) | ~both).flatten(1).all(1)


def _below_each(arcs: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The graphs (B, n, …) in which each word in turn is the root; as a word it hangs on that and
    is nobody's head, as words behind the end do."""
    own = torch.eye(arcs.shape[-1], dtype=torch.bool, device=arcs.device)
    gone = own.unsqueeze(1) | own.unsqueeze(2)
    hanging = torch.where(own | ~inside.unsqueeze(1), 0.0, arcs)
    return torch.where(gone, -torch.inf, arcs.unsqueeze(1)), hanging


def _finite(x: Tensor) -> Tensor:
    return torch.where(x == -torch.inf, 0.0, x)


def _eliminate_last(arcs: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Without the last word: arcs and the root's; log S; and the word's log-probabilities of its
    heads and of the root."""
    k = arcs.shape[-1] - 1
    heads, modifiers, own = arcs[..., :k, k], arcs[..., k, :k], root[..., k]
    total = logsumexp(torch.cat([heads, own.unsqueeze(-1)], -1))
    base = _finite(total).unsqueeze(-1)
    heads, own = heads - base, own - base.squeeze(-1)
    through = heads.unsqueeze(-1) + modifiers.unsqueeze(-2)
    diagonal = torch.eye(k, dtype=torch.bool, device=arcs.device)
    left = logsumexp(torch.stack([arcs[..., :k, :k], through], -1))
    left = torch.where(diagonal, -torch.inf, left)
    left_root = logsumexp(torch.stack([root[..., :k], own.unsqueeze(-1) + modifiers], -1))
    return left, left_root, total, heads, own


def _value(arcs: Tensor, root: Tensor) -> Tensor:
    """The log-partition of any number of roots, (...)."""
    value = torch.zeros_like(root[..., 0])
    while arcs.shape[-1] > 0:
        arcs, root, total, _, _ = _eliminate_last(arcs, root)
        value = value + total
    return value


def _marginals(arcs: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals of arcs (..., n, n) and of the root's (..., n), for any number of roots."""
    n = arcs.shape[-1]
    columns = []
    for d in range(n):
        order = [(i + d) % n for i in range(n)]
        reach = _reach_root(arcs[..., order, :][..., order], root[..., order])
        columns.append(reach[..., [(i - d) % n for i in range(n)]])
    terms = torch.cat([arcs + torch.stack(columns, -1), root.unsqueeze(-2)], -2)
    u = (terms - _finite(logsumexp(terms, -2)).unsqueeze(-2)).exp()
    return u[..., :n, :], u[..., n, :]


def _reach_root(arcs: Tensor, root: Tensor) -> Tensor:
    """The log-probability (..., n) that the walk from each word to its heads meets the root before
    the first word."""
    kept = []
    while arcs.shape[-1] > 1:
        arcs, root, _, heads, own = _eliminate_last(arcs, root)
        kept.append((heads, own))
    found = [torch.full_like(root[..., 0], -torch.inf)]
    for heads, own in reversed(kept):
        ways = torch.stack([heads[..., i] + value for i, value in enumerate(found)], -1)
        found.append(logsumexp(torch.cat([own.unsqueeze(-1), ways], -1)))
    return torch.stack(found, -1)
