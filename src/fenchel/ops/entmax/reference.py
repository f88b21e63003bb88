"""α-entmax in plain PyTorch: the truth in every test and the fallback on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from .._roots import bracketed_root, settle


def _sorted_threshold(top: Tensor, alpha: float) -> Tensor:
    """The threshold τ at α = 2 or 1.5 from scores (..., d), already scaled and at most 0."""
    ordered = top.sort(dim=-1, descending=True).values
    ordered = ordered.clamp(min=-4.0)  # far out of reach, and finite
    count = torch.arange(1, top.shape[-1] + 1, dtype=top.dtype, device=top.device)
    mean = ordered.cumsum(-1) / count
    if alpha == 2.0:
        tau = mean - 1 / count
    else:
        scatter = (ordered**2).cumsum(-1) - count * mean**2
        tau = mean - ((1 - scatter).clamp(min=0) / count).sqrt()
    size = (tau < ordered).to(torch.int64).cumprod(-1).sum(-1, keepdim=True)
    return tau.gather(-1, size - 1)


def _log_powers(scores: Tensor, epsilon: Tensor, scale: Tensor) -> Tensor:
    """log of [1 + ε·scale·scores]₊^(1/ε), which is scale·scores at ε = 0."""
    x = scale * scores
    inner = (epsilon * x).clamp(min=-1.0)
    small = torch.where(epsilon > 0, epsilon, 1.0)
    return torch.where(epsilon > 0, torch.log1p(inner) / small, x)


def _solve(top: Tensor, alpha: Tensor) -> Tensor:
    """Any α ≥ 1, in the unknown L = −log y_max, which lies in [0, log d]."""
    epsilon = alpha - 1

    def weights(level: Tensor) -> Tensor:
        return _log_powers(top, epsilon, torch.exp(epsilon * level)).exp()

    def excess(level: Tensor) -> Tensor:
        return weights(level).sum(-1, keepdim=True).log() - level

    low = torch.zeros_like(top[..., :1])
    high = low + torch.log(torch.tensor(float(top.shape[-1]), dtype=top.dtype))
    y = weights(bracketed_root(excess, low, high))
    return y / y.sum(-1, keepdim=True)


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """argmax over the simplex of <scores, y> − Ω(y), Ω the negative Tsallis entropy.

    Args:
        scores: (..., d).
        alpha: at least 1; a tensor holds one per row, (..., 1).
    Returns:
        (..., d). Sorting at α = 2 and 1.5, softmax at 1, a bracketed root otherwise.
    """

    def inside(top: Tensor) -> Tensor:
        if not isinstance(alpha, Tensor):
            if alpha == 1.0:
                return torch.softmax(top, -1)
            if alpha in (1.5, 2.0):
                x = top * (alpha - 1)
                return (x - _sorted_threshold(x, alpha)).clamp(min=0) ** (1 / (alpha - 1))
        return _solve(top, torch.as_tensor(alpha, dtype=top.dtype, device=top.device))

    return settle(scores, inside)


def entmax_max(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """max_Ω(scores), shape (...), and where it is attained, (..., d)."""
    y = entmax(scores, alpha)
    top = scores.amax(-1)
    support = y > 0
    distance = torch.where(support, y * (top.unsqueeze(-1) - scores), 0.0).sum(-1)
    peak = y.amax(-1)
    if isinstance(alpha, Tensor):
        epsilon = alpha.squeeze(-1) - 1
        loss = torch.where(
            epsilon > 0,
            -torch.expm1(epsilon * peak.log()) / torch.where(epsilon > 0, epsilon, 1.0),
            -peak.log(),
        )
    else:
        epsilon = alpha - 1
        loss = -peak.log() if epsilon == 0 else -torch.expm1(epsilon * peak.log()) / epsilon
    value = top + (loss - epsilon * distance) / (1 + epsilon)
    return torch.where(top.isinf(), top, value), y


def entmax_jvp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """(diag(s) − s sᵀ/Σs) v with s = y^(2−α) on the support, in differentiable operations."""
    if not isinstance(alpha, Tensor) and alpha == 1.0:
        s = y
    else:
        support = y > 0
        s = torch.where(support, torch.where(support, y, 1.0) ** (2.0 - alpha), 0.0)
    mass = s.sum(-1, keepdim=True)
    mean = (s * v).sum(-1, keepdim=True) / torch.where(mass > 0, mass, 1.0)
    return s * (v - mean)


def entmax_state(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """max_Ω(scores), shape (...), and the states of the rows, (..., 3).

    The state is (top, rise, share): y = share [1 + (rise − (α−1)(top − scores))]₊^(1/(α−1)), and
    share exp(scores − top) at α = 1.
    """
    value, y = entmax_max(scores, alpha)
    top, peak = scores.amax(-1, keepdim=True), y.amax(-1, keepdim=True)
    without_rise = ~top.isfinite() | (alpha == 1.0)
    rise = torch.where(without_rise, 0.0, torch.expm1((alpha - 1) * peak.log()))
    share = torch.where(without_rise, peak, 1.0)
    return value, torch.cat((top, rise, share), dim=-1)


def entmax_gradient(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> Tensor:
    """weights (y − [index = target]), the gradient of the weighted losses.

    Args:
        scores: (..., d).
        state: (..., 3), from `entmax_state`. It spares a kernel the solution; the truth solves
            again, since a state is rounded to the type of the scores.
        target: (..., 1) indices, or None to subtract nothing.
        weights: (..., 1); a row of weight 0 gives zeros whatever it holds.
        alpha: at least 1; a tensor holds one per row, (..., 1).
    """
    y = entmax(scores, alpha)
    if target is not None:
        y = y - (torch.arange(y.shape[-1], device=y.device) == target).to(y.dtype)
    return torch.where(weights == 0, 0.0, weights * y)


def entmax_support(
    scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, most: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The supports of the loss's gradients at scores (n, d), as `support_of` gives them."""
    return support_of(entmax(scores, alpha), target, weights, most)


def support_of(
    y: Tensor, target: Tensor, weights: Tensor, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The nonzeros of y and of −[index = target], columns and values (n, 1 + most), counts (n,).

    Args:
        y: (n, d).
        target: (n, 1) indices.
        weights: (n, 1); a row of weight 0 has no entry.
        most: how many nonzeros of y to give.
    Returns:
        The target's −1 comes first. Where a row has fewer entries its last columns hold d; where it
        has more, those that are given are some of them.
    """
    kept = weights != 0
    values, columns = y.topk(min(most, y.shape[-1]), dim=-1)
    columns = torch.where(values != 0, columns, y.shape[-1])
    columns = torch.where(kept, torch.cat((target, columns), 1), y.shape[-1])
    values = torch.cat((values.new_full(target.shape, -1), values), 1)
    short = (0, 1 + most - columns.shape[1])
    columns = torch.nn.functional.pad(columns, short, value=y.shape[-1])
    counts = torch.where(kept[:, 0], 1 + (y != 0).sum(-1), 0)
    return columns.to(torch.int32), torch.nn.functional.pad(values, short), counts.to(torch.int32)
