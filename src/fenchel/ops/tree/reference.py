"""Dependency trees in plain Python: contraction of cycles."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .._structure import map_each


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


def _heads(arcs: np.ndarray, rare_root: bool) -> np.ndarray | None:
    """The best heads for arcs (n, n + 1); if `rare_root`, with as few arcs from the root, which is
    the last column, as there can be."""
    n = len(arcs)
    heads = arcs.argmax(1)
    if rare_root:
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
    solution = _heads(small, rare_root)
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
