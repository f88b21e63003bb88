"""The k best of the 2^D configurations of D bits."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .. import _checks


def k_best(scores: Tensor, k: int) -> Tensor:
    """The k configurations z of D bits with the largest ⟨scores, z⟩, best first.

    The best has the bits of positive score, and a NaN is the last to change. Any other loses the
    sum of |scores| over the bits in which it differs. A binary tree finds the k smallest of these:
    each node merges the k smallest of its two halves. Only pairs (i, j) with (i+1)(j+1) ≤ k can be
    among the k smallest of a node.

    Args:
        scores: (..., D), floating point.
        k: how many; there are at most 2^D.
    Returns:
        Booleans (..., min(k, 2^D), D).
    Raises:
        TypeError, ValueError: for input of the wrong kind or size.

    log D steps of O(D k log k) time and memory for each item, all items at once.

    >>> k_best(torch.tensor([2.0, -1.0]), 3).int()
    tensor([[1, 0],
            [1, 1],
            [0, 0]], dtype=torch.int32)

    References: correia2020efficient.
    """
    _checks.check_float_tensor("scores", scores)
    _checks.check_dim("scores", scores.shape, -1)
    _checks.check_size("k", k)
    flat = scores.detach().reshape(-1, scores.shape[-1])
    found = cheapest_subsets(flat.abs(), k) ^ (flat > 0).unsqueeze(1)
    return found.reshape(*scores.shape[:-1], *found.shape[1:])


def cheapest_subsets(costs: Tensor, k: int) -> Tensor:
    """The min(k, 2^D) cheapest subsets (B, k, D) of items with nonnegative costs (B, D)."""
    d = costs.shape[1]
    costs = costs.to(torch.promote_types(costs.dtype, torch.float32))
    # Sums are finite: what is not would be as cheap as the empty places of `_add_empty`.
    limit = torch.finfo(costs.dtype).max / (2 * d)
    costs = costs.nan_to_num(nan=limit).clamp(max=limit)
    sums = torch.stack([torch.zeros_like(costs), costs], -1)  # (B, nodes, list)
    taken = torch.arange(2, device=costs.device).bool().unsqueeze(-1)
    sets = taken.expand(*sums.shape, 1)  # (B, nodes, list, width)
    while sums.shape[1] > 1:
        if sums.shape[1] % 2:
            sums, sets = _add_empty(sums, sets)
        sums, sets = _merge(sums, sets, k)
    return sets[:, 0, : min(k, 2**d), :d]


def _add_empty(sums: Tensor, sets: Tensor) -> tuple[Tensor, Tensor]:
    """The lists with one more node, which has only the empty set."""
    empty = torch.full_like(sums[:, :1], torch.inf)
    empty[..., 0] = 0.0
    return torch.cat([sums, empty], 1), torch.cat([sets, torch.zeros_like(sets[:, :1])], 1)


def _merge(sums: Tensor, sets: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Merges the lists of neighbours: from (B, 2n, list) to (B, n, at most k), ascending."""
    i, j = _pairs(sums.shape[2], k).to(sums.device, non_blocking=True)
    pair_sums = sums[:, ::2, i] + sums[:, 1::2, j]
    best, at = pair_sums.topk(min(k, len(i)), largest=False)
    halves = [
        half.gather(2, place[at].unsqueeze(-1).expand(-1, -1, -1, half.shape[-1]))
        for half, place in ((sets[:, ::2], i), (sets[:, 1::2], j))
    ]
    return best, torch.cat(halves, -1)


@lru_cache(maxsize=64)
def _pairs(m: int, k: int) -> Tensor:
    """The indices (2, N) into two lists of m whose sums can be among the k smallest.

    On the CPU: on a GPU every merge would wait for N.
    """
    grid = torch.arange(1, m + 1)
    return (grid.unsqueeze(1) * grid <= k).nonzero().T.contiguous()
