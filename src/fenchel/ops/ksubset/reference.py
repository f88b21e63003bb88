"""k-subset mappings in plain PyTorch: entries in [0, 1] that sum to k."""

from __future__ import annotations

import torch
from torch import Tensor

from .._roots import bracketed_root
from ..entmax.reference import entmax_jvp


def _capped(below: Tensor, alpha: float) -> Tensor:
    """The entry whose score lies `below` the threshold at which it would reach one."""
    below = below.clamp(min=0)
    if alpha == 1.0:
        return torch.exp(-below)
    return (1 - (alpha - 1) * below).clamp(min=0) ** (1 / (alpha - 1))


def ksubset(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    """argmax over y in [0, 1]^d, Σy = k, of <scores, y> − Ω(y), Ω the negative Tsallis entropy.

    The solution is y = min(1, [1 + (α−1)(scores − t)]₊^(1/(α−1))), with t such that Σy = k.

    Args:
        scores: (..., d).
        k: between 0 and d; a tensor holds one per row, (..., 1). Rows with another k are NaN.
        alpha: at least 1; 2 gives Ω = ½‖y‖² up to a constant.
    Returns:
        (..., d). Rows with fewer than k finite entries give one to each of these.
    """
    k = torch.as_tensor(k, dtype=scores.dtype, device=scores.device)
    k = k.broadcast_to((*scores.shape[:-1], 1))
    infinite = scores == torch.inf
    remaining = k - infinite.sum(-1, keepdim=True)
    free = (scores > -torch.inf) & ~infinite
    num_free = free.sum(-1, keepdim=True)
    solvable = (remaining > 0) & (remaining < num_free)
    x = torch.where(free & solvable, scores, 0.0)
    target = torch.where(solvable, remaining, 0.5)
    mask = torch.where(solvable, free, torch.ones_like(free))
    solve = _by_smallest if alpha > 2 else _by_threshold
    y = torch.where(solvable, solve(x, target, mask, alpha), (free & (remaining > 0)).to(x.dtype))
    y = torch.where(infinite, (k / infinite.sum(-1, keepdim=True).clamp(min=1)).clamp(max=1.0), y)
    is_valid = (k >= 0) & (k <= scores.shape[-1]) & ~scores.isnan().any(-1, keepdim=True)
    return torch.where(is_valid, y, torch.nan)


def in_float64(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    """The same for scores of any type, solved in float64: what kernels do for α > 2, where the
    threshold would need more digits than they keep."""
    if isinstance(k, Tensor):
        k = k.double()
    return ksubset(scores.double(), k, alpha).to(scores.dtype).contiguous()


def _by_smallest(x: Tensor, target: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """α > 2, in the smallest entry of the support, as entmax's reference does."""
    epsilon = alpha - 1
    ordered = torch.where(mask, x, -torch.inf).sort(-1, descending=True).values

    def entries(pivot: Tensor, least: Tensor) -> Tensor:
        above = epsilon * (x - pivot)
        raised = (least**epsilon + above.clamp(min=0)) ** (1 / epsilon)
        raised = torch.where(above > 0, raised, torch.where(above == 0, least, 0.0))
        return torch.where(mask, raised.clamp(max=1.0), 0.0)

    none = torch.zeros_like(target)
    first = torch.zeros_like(target, dtype=torch.int64)
    last = mask.sum(-1, keepdim=True)
    for _ in range(x.shape[-1].bit_length()):
        middle = first + (last - first) // 2
        inside = entries(ordered.gather(-1, middle), none).sum(-1, keepdim=True) < target
        inside = inside | (last - first <= 1)
        first, last = torch.where(inside, middle, first), torch.where(inside, last, middle)
    pivot = ordered.gather(-1, first)
    least = bracketed_root(
        lambda least: target - entries(pivot, least).sum(-1, keepdim=True), none, none + 1
    )
    return entries(pivot, least)


def _by_threshold(x: Tensor, target: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """1 ≤ α ≤ 2, in the threshold t."""
    # With m = ⌈k⌉, the m-th largest score bounds t from below: m entries there are one. At most
    # m − 1 others reach one, so it bounds t from above too.
    m = target.ceil()
    ordered = torch.where(mask, x, -torch.inf).sort(-1, descending=True).values
    base = ordered.gather(-1, m.to(torch.int64) - 1)
    share = (target - m + 1) / (mask.sum(-1, keepdim=True) - m + 1)
    reach = -share.log() if alpha == 1.0 else (1 - share ** (alpha - 1)) / (alpha - 1)

    def entries(t: Tensor) -> Tensor:  # t counts from the base
        return torch.where(mask, _capped(t - (x - base), alpha), 0.0)

    low = torch.zeros_like(base)
    return entries(
        bracketed_root(lambda t: entries(t).sum(-1, keepdim=True) - target, low, low + reach)
    )


def ksubset_jvp(y: Tensor, v: Tensor, alpha: float) -> Tensor:
    """(diag(s) − s sᵀ/Σs) v with s = y^(2−α) where 0 < y < 1, in differentiable operations."""
    return entmax_jvp(torch.where(y < 1, y, 0.0), v, alpha)
