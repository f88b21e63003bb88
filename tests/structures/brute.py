"""Sums and maxima over all members of a small structure, and lists of these members."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

import exact
from fenchel import Bits, Budget, Choice, DependencyTree, Matching, Sequence
from fenchel.structures import AbstractStructure


def list_codes(structure: AbstractStructure) -> list[tuple[int, ...]]:
    """All codes, from the definition of each structure."""
    if isinstance(structure, Sequence):
        return list(itertools.product(range(structure.tags), repeat=structure.length))
    if isinstance(structure, Choice):
        return [(k,) for k in range(structure.d)]
    if isinstance(structure, Bits):
        return list(itertools.product(range(2), repeat=structure.d))
    if isinstance(structure, Budget):
        counts = [structure.k] if structure.exact else range(structure.k + 1)
        subsets = (set(s) for k in counts for s in itertools.combinations(range(structure.d), k))
        return [tuple(int(i in chosen) for i in range(structure.d)) for chosen in subsets]
    if isinstance(structure, Matching):
        if structure.rows <= structure.columns:
            return list(itertools.permutations(range(structure.columns), structure.rows))
        orders = itertools.permutations(range(structure.rows), structure.columns)
        return [
            tuple(order.index(row) if row in order else -1 for row in range(structure.rows))
            for order in orders
        ]
    assert isinstance(structure, DependencyTree)
    every = itertools.product(range(structure.n), repeat=structure.n)
    return [heads for heads in every if is_tree(heads, structure)]


def is_tree(heads: tuple[int, ...], tree: DependencyTree) -> bool:
    """Whether heads, itself for the root, make such a tree: by walks to the root."""
    roots = sum(head == word for word, head in enumerate(heads))
    if roots == 0 or (tree.single_root and roots > 1):
        return False
    paths = [path_to_root(word, heads) for word in range(len(heads))]
    if any(path is None for path in paths):
        return False
    return not tree.projective or all(
        head in (paths[between] or ())
        for word, head in enumerate(heads)
        if word != head
        for between in range(min(word, head) + 1, max(word, head))
    )


def path_to_root(word: int, heads: tuple[int, ...]) -> list[int] | None:
    """The words on the way from a word to the root, or None if it leads into a cycle."""
    path = [word]
    while heads[path[-1]] != path[-1]:
        path.append(heads[path[-1]])
        if len(path) > len(heads):
            return None
    return path


def values(structure: AbstractStructure, scores: Tensor) -> Tensor:
    """The score of every member, (B, K)."""
    members = exact.members(structure).to(scores).flatten(1)
    parts = torch.where(members == 0, 0.0, scores.flatten(1).unsqueeze(1) * members)
    return parts.sum(-1)


def log_partition(structure: AbstractStructure, scores: Tensor) -> Tensor:
    return values(structure, scores).logsumexp(1)


def marginals(structure: AbstractStructure, scores: Tensor) -> Tensor:
    every = values(structure, scores)
    none = (every == -torch.inf).all(1, keepdim=True)
    shares = torch.where(none, 0.0, torch.where(none, 0.0, every).softmax(1))
    return (shares @ exact.members(structure).to(scores).flatten(1)).reshape(scores.shape)


def scores_of_every_kind(structure: AbstractStructure, copies: int = 4) -> dict[str, Tensor]:
    """Batches of random scores of several scales, with ties, and with forbidden parts."""
    shape = (copies, *structure.shape)
    scores = {
        f"{scale:g}": scale * torch.randn(shape, dtype=torch.float64)
        for scale in (0.01, 1.0, 30.0, 1000.0, 1e6)
    }
    scores["ties"] = torch.randn(shape, dtype=torch.float64).round()
    scores["zeros"] = torch.zeros(shape, dtype=torch.float64)
    for name, scale in (("forbidden", 1.0), ("forbidden, large", 1000.0)):
        masked = scale * torch.randn((5 * copies, *structure.shape), dtype=torch.float64)
        masked[torch.rand(masked.shape) < 0.4] = -torch.inf
        masked[0] = -torch.inf
        scores[name] = masked
    return scores
