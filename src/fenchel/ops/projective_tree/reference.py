"""Projective dependency trees in plain PyTorch: Eisner's algorithm in two semirings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._structure import logsumexp

Sum = Callable[[Tensor], Tensor]
"""Sums terms over the last dimension: torch.logsumexp, or the maximum."""


def inside(scores: Tensor, lengths: Tensor | None, single_root: bool, total: Sum) -> Tensor:
    """The sum over all trees of each instance, (B), in the semiring of `total` and +.

    Args:
        scores: arcs (B, n, n), entry (head, modifier), the root's on the diagonal.
        lengths: (B, 1) or None.
        single_root: whether the root has a single modifier.
        total: the semiring's sum.
    """
    batch, n, _ = scores.shape
    ends = torch.full((batch,), n, device=scores.device) if lengths is None else lengths[:, 0]
    if single_root:
        arcs, nodes = scores, n
    else:
        nodes = n + 1
        arcs = scores.new_full((batch, nodes, nodes), -torch.inf)
        arcs[:, 1:, 1:] = scores
        arcs[:, 0, 1:] = scores.diagonal(dim1=1, dim2=2)
        ends = ends + 1
    zero = scores.new_zeros(batch)
    right = {(i, i): zero for i in range(nodes)}
    left, right_arc, left_arc = dict(right), {}, {}
    for w in range(1, nodes):
        for i in range(nodes - w):
            j = i + w
            both = total(torch.stack([right[i, k] + left[k + 1, j] for k in range(i, j)], -1))
            right_arc[i, j] = both + arcs[:, i, j]
            left_arc[i, j] = both + arcs[:, j, i]
            terms = [right_arc[i, k] + right[k, j] for k in range(i + 1, j + 1)]
            right[i, j] = total(torch.stack(terms, -1))
            terms = [left[i, k] + left_arc[k, j] for k in range(i, j)]
            left[i, j] = total(torch.stack(terms, -1))
    values = []
    for end in range(1 if single_root else 2, nodes + 1):
        if single_root:
            terms = [left[0, r] + right[r, end - 1] + scores[:, r, r] for r in range(end)]
            values.append(total(torch.stack(terms, -1)))
        else:
            values.append(right[0, end - 1])
    picked = (ends - (1 if single_root else 2)).unsqueeze(1)
    return torch.stack(values, 1).gather(1, picked).squeeze(1)


def corner(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Scores (B, n, n) with zeros outside the corner that each instance uses."""
    if lengths is None:
        return scores
    used = torch.arange(scores.shape[1], device=scores.device) < lengths
    return torch.where(used.unsqueeze(1) & used.unsqueeze(2), scores, 0.0)


def map_inference(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The heads of the best projective trees, (B, n), a root being its own, and their scores.

    `option` is 1 for a single root, 0 for any number; see `declare_map`. The best tree is where the
    gradient of its score is one.
    """
    with torch.enable_grad():
        arcs = corner(scores.detach(), lengths).requires_grad_()
        values = inside(arcs, lengths, bool(option), lambda terms: terms.max(-1).values)
        kept = torch.where(values > -torch.inf, values, 0.0)
        (tree,) = torch.autograd.grad(kept.sum(), arcs)
    solvable = (arcs.detach() < torch.inf).flatten(1).all(1)
    values = torch.where(solvable, values.detach(), torch.nan)
    weight, heads = tree.max(1)
    heads = torch.where((weight > 0.5) & (values > -torch.inf).unsqueeze(1), heads, -1)
    return heads.to(torch.int32), values


def log_partition(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> Tensor:
    """log Σ exp of the scores of all projective trees, (B); `option` is 1 for a single root."""
    arcs = corner(scores, lengths)
    value = inside(arcs, lengths, bool(option), logsumexp)
    return torch.where((arcs < torch.inf).flatten(1).all(1), value, torch.nan)
