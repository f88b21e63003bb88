"""α-entmax in plain PyTorch: the truth in every test and the fallback on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from .._roots import bracketed_root, handle_nonfinite


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
    small = torch.where(epsilon != 0, epsilon, 1.0)
    return torch.where(epsilon != 0, torch.log1p(inner) / small, x)


def _by_largest(top: Tensor, alpha: Tensor) -> Tensor:
    """0 < α ≤ 2, in the unknown L = −log y_max, which lies in [0, log d]."""
    epsilon = alpha - 1

    def weights(level: Tensor) -> Tensor:
        return _log_powers(top, epsilon, torch.exp(epsilon * level)).exp()

    def excess(level: Tensor) -> Tensor:
        return weights(level).sum(-1, keepdim=True).log() - level

    low = torch.zeros_like(top[..., :1])
    high = low + torch.log(torch.tensor(float(top.shape[-1]), dtype=top.dtype))
    level = bracketed_root(excess, low, high)
    return weights(level) * torch.exp(-level)


def _by_smallest(top: Tensor, alpha: Tensor) -> Tensor:
    """α > 2, in the smallest entry y_k of the support, since y = u^(1/(α−1)) would magnify what a
    difference of like numbers rounds: y = (y_k^(α−1) + (α−1)(x − x_k))^(1/(α−1)), x_k its score."""
    epsilon = alpha - 1
    ordered = top.sort(dim=-1, descending=True).values

    def entries(pivot: Tensor, least: Tensor) -> Tensor:
        above = epsilon * (top - pivot)
        raised = (least**epsilon + above.clamp(min=0)) ** (1 / epsilon)
        return torch.where(above > 0, raised, torch.where(above == 0, least, 0.0))

    # A score is in the support if, were it the threshold, the entries above would sum to less than
    # one; that sum grows from score to score.
    first = torch.zeros_like(top[..., :1], dtype=torch.int64)
    last, none = first + top.shape[-1], torch.zeros_like(top[..., :1])
    for _ in range(top.shape[-1].bit_length()):
        middle = first + (last - first) // 2
        inside = entries(ordered.gather(-1, middle), none).sum(-1, keepdim=True) < 1
        inside = inside | (last - first <= 1)
        first, last = torch.where(inside, middle, first), torch.where(inside, last, middle)
    pivot = ordered.gather(-1, first)
    least = bracketed_root(
        lambda least: 1 - entries(pivot, least).sum(-1, keepdim=True), none, none + 1
    )
    return entries(pivot, least)


def _balanced(y: Tensor, alpha: float | Tensor) -> Tensor:
    """y with what its sum lacks of one, a few last places for each entry of the support, spread as
    a step of the threshold would, so that it is not the largest that bears it; α ≤ 2."""
    support = y > 0
    share = torch.where(support, torch.where(support, y, 1.0) ** (2.0 - alpha), 0.0)
    return y - share * ((y.sum(-1, keepdim=True) - 1) / share.sum(-1, keepdim=True))


def _solve(top: Tensor, alpha: Tensor) -> Tensor:
    """Any α > 0, one in all or one per row."""
    flat, steep = alpha <= 2, alpha > 2
    y = torch.where(alpha == alpha, torch.zeros_like(top), torch.nan)
    if bool(flat.any()):
        given = torch.where(flat, alpha, 2.0)
        y = torch.where(flat, _balanced(_by_largest(top, given), given), y)
    if bool(steep.any()):
        found = _by_smallest(top, torch.where(steep, alpha, 3.0))
        y = torch.where(steep, found / found.sum(-1, keepdim=True), y)
    return y


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """argmax over the simplex of <scores, y> − Ω(y), Ω the negative Tsallis entropy.

    Args:
        scores: (..., d).
        alpha: above 0; a tensor holds one per row, (..., 1). Rows with another α, or NaN, are NaN.
    Returns:
        (..., d). Sorting at α = 2 and 1.5, softmax at 1, a bracketed root otherwise.
    """

    def inside(top: Tensor) -> Tensor:
        if not isinstance(alpha, Tensor) and alpha in (1.0, 1.5, 2.0):
            if alpha == 1.0:
                return torch.softmax(top, -1)
            x = top * (alpha - 1)
            y = (x - _sorted_threshold(x, alpha)).clamp(min=0) ** (1 / (alpha - 1))
            return _balanced(y, alpha)
        given = torch.as_tensor(alpha, dtype=top.dtype, device=top.device)
        given = torch.where((given > 0) & (given < torch.inf), given, torch.nan)
        return _solve(top, given)

    return handle_nonfinite(scores, inside)


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
            epsilon != 0,
            -torch.expm1(epsilon * peak.log()) / torch.where(epsilon != 0, epsilon, 1.0),
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
    if isinstance(alpha, Tensor) or alpha > 2.0:
        v = v - _steep_shift(y, v, alpha)
    mass = s.sum(-1, keepdim=True)
    mean = (s * v).sum(-1, keepdim=True) / torch.where(mass > 0, mass, 1.0)
    return s * (v - mean)


def _steep_shift(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """v at the smallest entry of the support where α > 2, else 0. There its s is the largest, and
    may be nearly all of Σs, so that v would cancel with its mean."""
    if y.shape[-1] == 0:
        return v.sum(-1, keepdim=True)
    least = torch.where(y > 0, y, torch.inf).argmin(-1, keepdim=True)
    shift = v.gather(-1, least)
    return torch.where(alpha > 2.0, shift, 0.0) if isinstance(alpha, Tensor) else shift


def entmax_state(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """max_Ω(scores), shape (...), and the states of the rows, (..., 4); see the package's page."""
    value, y = entmax_max(scores, alpha)
    top, peak = scores.amax(-1, keepdim=True), y.amax(-1, keepdim=True)
    alpha = torch.as_tensor(alpha, dtype=y.dtype, device=y.device).broadcast_to(top.shape)
    zero, nonfinite = torch.zeros_like(top), ~top.isfinite() | peak.isnan()
    flat = nonfinite | (alpha == 1.0)
    rise = torch.where(flat, 0.0, torch.expm1((alpha - 1) * peak.log()))
    state = torch.cat((top, rise, zero, torch.where(flat, peak, 1.0)), dim=-1)
    least = torch.where(y > 0, y, torch.inf).amin(-1, keepdim=True)
    pivot = torch.where(y > 0, scores, torch.inf).amin(-1, keepdim=True)
    steep = torch.cat((pivot, least, zero, zero + 1), dim=-1)
    return value, torch.where((alpha > 2) & ~nonfinite, steep, state)


def entmax_loss(
    scores: Tensor, target: Tensor, ignore_index: int, alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    """max_Ω(scores) − the target's score, (...), and the states of the rows, (..., 4).

    Args:
        scores: (..., d).
        target: (...) indices; one out of range gives NaN.
        ignore_index: a row with this target has the loss zero, and the state of a row without
            entries.
        alpha: above 0; a tensor holds one per row, (..., 1).
    """
    value, state = entmax_state(scores, alpha)
    d = scores.shape[-1]
    score = scores.gather(-1, target.clamp(0, d - 1).unsqueeze(-1)).squeeze(-1)
    losses = torch.where((target >= 0) & (target < d), value - score, torch.nan)
    losses = torch.where(losses < torch.finfo(losses.dtype).eps / 2, 0.0, losses)
    ignored = target == ignore_index
    empty = state.new_tensor([-torch.inf, 0.0, 0.0, 0.0])
    return torch.where(ignored, 0.0, losses), torch.where(ignored.unsqueeze(-1), empty, state)


def support_logs(y: Tensor) -> tuple[Tensor, Tensor]:
    """Where y > 0, and a = −log y there (zero elsewhere)."""
    support = y > 0
    return support, -torch.log(torch.where(support, y, 1.0))


def expm2_over(t: Tensor) -> Tensor:
    """(eᵗ − 1 − t)/t², and ½ at t = 0; a series where the difference would cancel."""
    small = t.abs() < 0.3
    near = torch.where(small, t, 0.0)
    series = torch.zeros_like(t)
    for k in range(14, 1, -1):
        series = (series * near + 1.0) / k
    far = torch.where(small, 1.0, t)
    return torch.where(small, series, (torch.expm1(far) - far) / (far * far))


def expm1_over(t: Tensor) -> Tensor:
    """(eᵗ − 1)/t, and 1 at t = 0, with derivatives as exact as its values."""
    small = t.abs() < 0.3
    far = torch.where(small, 1.0, t)
    return torch.where(small, 1 + t * expm2_over(t), torch.expm1(far) / far)


def entmax_parameter_jvp(y: Tensor, alpha: float | Tensor) -> Tensor:
    """∂y/∂α at the solution y, (..., d), in differentiable operations."""
    support, a = support_logs(y)
    epsilon = alpha - 1
    first = a * expm1_over(epsilon * a)  # (y^(−ε) − 1)/ε
    second = a * a * expm2_over(epsilon * a)  # (first − a)/ε
    mean_a, mean_first, mean_second = ((y * w).sum(-1, keepdim=True) for w in (a, first, second))
    slope = mean_second - second + a * mean_first - first * mean_a
    return torch.where(support, y * slope / (1 + epsilon * mean_first), 0.0)


def entmax_parameter_vjp(y: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """<v, ∂y/∂α> at the solution y, (..., 1)."""
    return (v * entmax_parameter_jvp(y, alpha)).sum(-1, keepdim=True)


def entmax_gradient(
    scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, alpha: float | Tensor
) -> Tensor:
    """weights (y − [index = target]), the gradient of the weighted losses.

    Args:
        scores: (..., d).
        state: (..., 4), from `entmax_state`. It spares a kernel the solution; the truth solves
            again, since a state is rounded to the type of the scores.
        target: (..., 1) indices, or None to subtract nothing.
        weights: (..., 1); a row of weight 0 gives zeros whatever it holds, and so does one without
            entries.
        alpha: above 0; a tensor holds one per row, (..., 1).
    """
    y = entmax(scores, alpha)
    if target is not None:
        y = y - (torch.arange(y.shape[-1], device=y.device) == target).to(y.dtype)
    return torch.where((weights == 0) | (state[..., :1] == -torch.inf), 0.0, weights * y)


def entmax_support(
    scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, max_width: int, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The supports of the loss's gradients at scores (n, d), as `support_of` gives them."""
    return support_of(entmax(scores, alpha), target, weights, max_width)


def support_of(
    y: Tensor, target: Tensor, weights: Tensor, max_width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The nonzeros of y and of −[index = target], with their columns and counts.

    Args:
        y: (n, d).
        target: (n, 1) indices.
        weights: (n, 1); a row of weight 0 has no entry.
        max_width: how many nonzeros of y to give.
    Returns:
        Columns and values, (n, 1 + max_width), and counts, (n,). The target's −1 comes first. Where
        a row has fewer entries its last columns hold d; where it has more, only some are given.
    """
    kept = weights != 0
    values, columns = y.topk(min(max_width, y.shape[-1]), dim=-1)
    columns = torch.where(values != 0, columns, y.shape[-1])
    columns = torch.where(kept, torch.cat((target, columns), 1), y.shape[-1])
    values = torch.cat((values.new_full(target.shape, -1), values), 1)
    short = (0, 1 + max_width - columns.shape[1])
    columns = torch.nn.functional.pad(columns, short, value=y.shape[-1])
    counts = torch.where(kept[:, 0], 1 + (y != 0).sum(-1), 0)
    return columns.to(torch.int32), torch.nn.functional.pad(values, short), counts.to(torch.int32)
