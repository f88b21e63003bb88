"""The mappings in a fixed number of plain torch operations, for graphs that leave PyTorch.

ONNX and TorchScript take an operator as these operations (`declare(…, decomposition=…)`). There is
no loop that waits for its end, no sort but for k-subsets and nothing in double precision, so that
every runtime has what it takes. Each mapping is one unknown per row, found by bisection.

How far a result is off, for scores of float32 and its unit roundoff u = 2⁻²⁴ (float64 and 2⁻⁵³
alike, with more steps; half precision is solved in float32 and rounded):

1. For entmax the unknown is L = −log y_max, in [0, log n] for n entries that are not deleted. With
   z_j = (α−1) e^((α−1)L) (x_j − max x) and v_j = [1 + z_j]₊ the weights are w_j = v_j^(1/(α−1)). L
   is the root of log Σw − L, whose slope is −E[1/v], a mean under y. A change of L by δ moves the
   normalized y_j by at most y_j (1/v_j + E[1/v]) δ. So an error e in log Σw − L moves no y_j by
   more than 2e, as y_j/v_j ≤ E[1/v]. Above α = 2 entries join the support like a power 1/(α−1) < 1
   of what L is off, for this as for every other algorithm.
2. E[1/v] may be n, and then L is wanted to u/n, which float32 does not have. So 16 bisections find
   L up to 2⁻¹⁶ log n; there it is fixed, 1 + z_j kept as a sum of two numbers without rounding, and
   28 more find the κ ≥ 0 for which the powers of 1 + z_j − κ add up to e^L. κ is small and has its
   own 24 bits: L is off by at most 2⁻⁴² log n in all, so that e ≤ u for n up to 10,000.
3. What rounding adds to e is a few u, for weights from `_power`, and the rounding of their sum.
   Rows are folded into blocks of 128 and added up block by block, at most (128 + n/128) u/4 even
   where a runtime adds one after the other and every rounding goes the same way.
4. A last division makes the sum one, to the rounding of the sum.

normmax and pnormmax take the same steps, with other weights. For k-subsets the entries themselves
add up to k, and e is to be read as relative to k. Measured on rows of every kind, ties and single
outliers among them, up to n = 10,000: within 10⁻⁶ of the float64 reference, and mostly 3·10⁻⁷.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._checks import HALF

_BLOCK = 128
_COARSE, _FINE = {torch.float32: 16, torch.float64: 36}, {torch.float32: 28, torch.float64: 42}
_FARTHEST = {torch.float32: 80.0, torch.float64: 700.0}
"""The largest argument of exp for which products with a gap still have meaning."""
Powers = Callable[[Any, Tensor], Tensor]
"""Weights from 1 + z − κ, given as a sum of two numbers."""


def _sum(x: Tensor) -> Tensor:
    """The sum of each folded row, (..., 1, 1)."""
    x = x.sum(-1, keepdim=True)
    return x if type(x.shape[-2]) is int and x.shape[-2] == 1 else x.sum(-2, keepdim=True)


def _count(mask: Tensor, like: Tensor) -> Tensor:
    """How many entries of each folded row, at least one."""
    return _sum(mask.to(like.dtype)).clamp(min=1)


def _log_sum(u: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    """log(u + t) to the last bits of both, and whether it exists: ONNX has no log1p."""
    total = u + t
    rest = t - (total - u)
    inside = total > 0
    total = torch.where(inside, total, 1.0)
    return torch.log(total) + rest / total, inside


def _expm1_over(t: Tensor) -> Tensor:
    """(eᵗ − 1)/t, and 1 at t = 0, to the last bits."""
    u = torch.exp(t)
    log = torch.log(u)
    near = log == 0
    return torch.where(near, 1.0, (u - 1) / torch.where(near, 1.0, log))


def _power(u: Any, t: Tensor, exponent: float | Tensor) -> Tensor:
    """[u + t]₊^exponent, to the last bits of u and t whatever the exponent."""
    if not isinstance(exponent, Tensor) and 0 <= exponent <= 2:
        total = (u + t).clamp(min=0)
        return total if exponent == 1 else total * total if exponent == 2 else total**exponent
    log, inside = _log_sum(u, t)
    return torch.where(inside, torch.exp(exponent * log), 0.0)


def _bisected(rises: Callable[[Tensor], Tensor], width: Tensor, steps: int) -> Tensor:
    """The lower end of the bracket [0, width] after bisections; `rises` tells what is left of the
    root."""
    low = torch.zeros_like(width)
    for _ in range(steps):
        width = width / 2
        trial = low + width
        low = torch.where(rises(trial), trial, low)
    return low


def _coarse(rises: Callable[[Tensor], Tensor], width: Tensor) -> tuple[Tensor, Tensor]:
    """A point left of the root in [0, width], by more than rounding unless it is 0, and a bound on
    the root's distance from it."""
    steps = _COARSE[width.dtype]
    low, unit = _bisected(rises, width, steps), width * 2.0**-steps
    return (low - unit).clamp(min=0), 4 * unit


def _fine(rises: Callable[[Tensor], Tensor], width: Tensor) -> Tensor:
    """The upper end of what is left of [0, width], where what leaves the support has left."""
    steps = _FINE[width.dtype]
    return _bisected(rises, width, steps) + width * 2.0**-steps


def _per_row(value: Any, rows: Tensor) -> Any:
    """A parameter (..., 1) for folded rows, (..., 1, 1); a number as it is."""
    return value.to(rows.dtype).unsqueeze(-1) if isinstance(value, Tensor) else value


def _valid(value: Any, above: float, maximum: float = math.inf) -> Any:
    """Whether a parameter is in its range, for each row if it is a tensor."""
    return (value > above) & (value <= maximum) & (value < math.inf)


def _finite_rows(scores: Tensor) -> Tensor:
    """Rows (..., d) as (..., blocks, block), padded with −inf, in at least float32."""
    x = scores.float() if scores.dtype in HALF else scores
    d = x.shape[-1]
    if isinstance(d, int) and d <= _BLOCK:
        return x.unsqueeze(-2)
    blocks = (d + _BLOCK - 1) // _BLOCK
    x = torch.nn.functional.pad(x, (0, blocks * _BLOCK - d), value=-math.inf)
    return x.reshape(*scores.shape[:-1], blocks, _BLOCK)


def _restore_rows(y: Tensor, scores: Tensor) -> Tensor:
    """Folded rows as those of the scores, in their type."""
    return y.flatten(-2)[..., : scores.shape[-1]].to(scores.dtype)


def _known(x: Tensor, valid: Any) -> Tensor:
    """Whether a folded row has no NaN, and its parameter is `valid`, a bool or one per row."""
    known = _sum((x != x).to(x.dtype)) == 0
    if isinstance(valid, Tensor):
        return known & valid
    return known if valid else known & ~known


def _with_special_rows(x: Tensor, solve: Callable[[Tensor], Tensor], valid: Any) -> Tensor:
    """The contract of every mapping onto the simplex for folded rows x.

    `solve` gets scores less the row's largest, −inf where deleted, and returns weights that are not
    normalized. +inf entries are ties, and delete the others. A row of NaN, or of a parameter that
    is not `valid`, gives NaN.
    """
    known = _known(x, valid)
    x = torch.where(x == x, x, 0.0)
    top = x.amax((-2, -1), keepdim=True)
    kept = (x > -math.inf) & ((top < math.inf) | (x == math.inf))
    gap = torch.where(kept, torch.where(x < math.inf, x - top, 0.0), -math.inf)
    weights = solve(gap)
    y = weights / torch.where(top == -math.inf, 1.0, _sum(weights))
    return torch.where(known, y, math.nan)


def _scaled(gap: Tensor, slope: Any, rate: Any, level: Tensor) -> Tensor:
    """z = slope e^(rate L) gap."""
    power = rate * level
    if isinstance(rate, Tensor) or rate > 4:
        power = power.clamp(max=_FARTHEST[gap.dtype])
    return slope * torch.exp(power) * gap


def _split(z: Tensor) -> tuple[Tensor, Tensor]:
    """1 + z as a sum of two numbers without rounding; what is below −1 may be anything there."""
    z = z.clamp(min=-2)
    u = 1 + z
    return u, z - (u - 1)


def _solved(
    gap: Tensor, slope: Any, rate: Any, power: Powers, last: Powers | None = None
) -> Tensor:
    """`last`, or `power`, of 1 + z − κ at the root, z = slope e^(rate L) gap, where powers add up
    to e^L. L is fixed once it is near, and κ found instead of 0, which has all its bits."""
    width = torch.log(_count(gap > -math.inf, gap))
    level, width = _coarse(
        lambda level: _sum(power(1.0, _scaled(gap, slope, rate, level))) > torch.exp(level), width
    )
    target = torch.exp(level)
    u, rest = _split(_scaled(gap, slope, rate, level))

    def kappa(delta: Tensor) -> Tensor:  # 1 − e^(−rate δ), for what L is short by
        return rate * delta * (1 - rate * delta / 2)

    delta = _fine(lambda delta: _sum(power(u, rest - kappa(delta))) > target, width)
    return (last or power)(u, rest - kappa(delta))


def _entmax_weights(gap: Tensor, alpha: Any) -> Tensor:
    epsilon = alpha - 1
    kept = gap > -math.inf
    if not isinstance(alpha, Tensor):
        if epsilon == 0:
            return torch.exp(gap)
        if epsilon > 0:  # then nothing of −inf has a weight
            return _solved(gap, epsilon, epsilon, lambda u, t: _power(u, t, 1 / epsilon))
        kept_power = lambda u, t: torch.where(kept, _power(u, t, 1 / epsilon), 0.0)  # noqa: E731
        return _solved(gap, epsilon, epsilon, kept_power)
    # At α = 1 the slope is one, so that z is the gap, and the weight its exponential.
    plain = epsilon == 0
    slope = torch.where(plain, 1.0, epsilon)

    def power(u: Any, t: Tensor) -> Tensor:
        w = torch.where(plain, torch.exp(gap), _power(u, t, 1 / slope))
        return torch.where(kept, w, 0.0)

    return _solved(gap, slope, epsilon, power)


def _finite_entmax(x: Tensor, alpha: Any) -> Tensor:
    return _with_special_rows(x, lambda gap: _entmax_weights(gap, alpha), _valid(alpha, 0.0))


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """As the reference, in fixed steps."""
    x = _finite_rows(scores)
    return _restore_rows(_finite_entmax(x, _per_row(alpha, x)), scores)


def entmax_max(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """As the reference, in fixed steps."""
    x = _finite_rows(scores)
    alpha = _per_row(alpha, x)
    y = _finite_entmax(x, alpha)
    top = x.amax((-2, -1), keepdim=True)
    distance = _sum(torch.where(y > 0, y * (top - x), 0.0))
    epsilon = alpha - 1
    log_peak = torch.log(y.amax((-2, -1), keepdim=True))
    loss = -log_peak * _expm1_over(epsilon * log_peak)
    value = top + (loss - epsilon * distance) / alpha
    known = y.amax((-2, -1), keepdim=True)
    value = torch.where(known != known, known, torch.where(top.abs() == math.inf, top, value))
    # In the type of the kernels' values, which the graph asserts.
    return value.squeeze(-1).squeeze(-1).to(torch.float64), _restore_rows(y, scores)


def normmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """As the reference, in fixed steps: with q = α/(α−1), e^L is the q-th power of 1/u_max."""
    x = _finite_rows(scores)
    alpha = _per_row(alpha, x)
    q = alpha / (alpha - 1)

    def solve(gap: Tensor) -> Tensor:
        power, last = (lambda u, t: _power(u, t, q)), (lambda u, t: _power(u, t, 1 / (alpha - 1)))
        return _solved(gap, 1.0, 1 / q, power, last)

    return _restore_rows(_with_special_rows(x, solve, _valid(alpha, 1.0)), scores)


def pnormmax(scores: Tensor, p: float) -> Tensor:
    """As the reference, in fixed steps.

    With v = [1 + z]₊ and S_r = Σ vʳ the root is that of log S_{q−1} − (q−2)/q log S_q − L/q, for
    L in [0, 2 log n], times q: q log(S_{q−1}/S_q) + 2 log S_q − L, whose first quotient is
    1 + Σ v^(q−1) (1−v)/S_q, without cancellation where q is large.
    """
    x = _finite_rows(scores)
    q = p / (p - 1)

    def solve(gap: Tensor) -> Tensor:
        def excess(u: Any, t: Tensor) -> Tensor:
            v = (u + t).clamp(min=0)
            w = _power(u, t, q - 1)
            whole = _sum(w * v)
            quotient, _ = _log_sum(1.0, _sum(w * (1 - v)) / whole)
            return q * quotient + 2 * torch.log(whole)

        width = 2 * torch.log(_count(gap > -math.inf, gap))
        level, width = _coarse(
            lambda level: excess(1.0, _scaled(gap, 1.0, 1 / q, level)) > level, width
        )
        u, rest = _split(_scaled(gap, 1.0, 1 / q, level))
        kappa = _fine(lambda kappa: excess(u, rest - kappa) > level, width / q)
        return _power(u, rest - kappa, q - 1)

    return _restore_rows(_with_special_rows(x, solve, _valid(p, 1.0, 2.0)), scores)


def ksubset(scores: Tensor, k: float | Tensor, alpha: float) -> Tensor:
    """As the reference, in fixed steps; the k-th largest score, by sorting, starts the bracket."""
    x = _finite_rows(scores)
    k = _per_row(k, x)
    known = _known(x, _valid(alpha, 0.0))
    if isinstance(k, Tensor):
        known = known & (k >= 0) & (k <= scores.shape[-1])
    certain, free = x == math.inf, (x > -math.inf) & (x < math.inf)
    left = k - _sum(certain.to(x.dtype))
    room = _sum(free.to(x.dtype))
    solvable = known & (left > 0) & (left < room)
    target = torch.where(solvable, left, 0.5)
    free_scores = torch.where(free, x, -math.inf)
    m = target.ceil()
    ordered = free_scores.flatten(-2).sort(-1, descending=True).values
    base = ordered.gather(-1, m.squeeze(-1).to(torch.int64) - 1).unsqueeze(-1)
    base = torch.where(solvable, base, 0.0)
    gap = torch.where(free, x - base, 0.0)
    share = (target - m + 1) / (room - m + 1).clamp(min=1)
    epsilon = alpha - 1
    reach = -torch.log(share) * _expm1_over(epsilon * torch.log(share))

    def entries(u: Any, t: Tensor) -> Tensor:
        y = torch.exp(t) if epsilon == 0 else _power(u, t, 1 / epsilon)
        return torch.where(free, y.clamp(max=1.0), 0.0)

    slope = epsilon or 1.0
    t, width = _coarse(lambda t: _sum(entries(1.0, slope * (gap - t))) > target, reach)
    z = slope * (gap - t)
    u, rest = (1.0, z) if epsilon == 0 else _split(z)
    kappa = _fine(lambda kappa: _sum(entries(u, rest - slope * kappa)) > target, width)
    y = entries(u, rest - slope * kappa)
    ones = y == 1
    loose = _sum(torch.where(ones, 0.0, y))
    scale = (target - _sum(ones.to(x.dtype))) / torch.where(loose > 0, loose, 1.0)
    y = torch.where(ones, 1.0, (y * scale).clamp(max=1.0))
    y = torch.where(solvable, y, (free & (left > 0)).to(x.dtype))
    shared = (k / _sum(certain.to(x.dtype)).clamp(min=1)).clamp(max=1.0)
    y = torch.where(certain, shared, y)
    return _restore_rows(torch.where(known, y, math.nan), scores)
