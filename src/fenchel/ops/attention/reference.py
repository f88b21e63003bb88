"""Entmax attention in plain PyTorch, with every feature: the truth in every test.

Inside, heads are grouped: R heads of the query share one of G groups of keys, and rows are
(B, G, R, T). Every tensor has these dimensions, or ones, and one more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._checks import can_read_values
from ..entmax.reference import entmax, entmax_jvp, entmax_parameter_vjp
from .dropout import by_index
from .sizes import cap_of, kept_size


def visible(starts: Tensor, stops: Tensor, places: Tensor) -> Tensor:
    """Which of the keys at these places each query sees, (B or 1, 1, 1, T, S).

    Args:
        starts, stops: (B or 1, 1, 1, T, 1), the first key that a query sees, and the one after the
            last.
        places: (S,).
    """
    return (starts <= places) & (places < stops)


def allowed(mask: Tensor) -> Tensor:
    """Where a mask lets queries attend: one that is boolean, or has −inf where they must not."""
    return mask if mask.dtype == torch.bool else mask != -torch.inf


def _products(query: Tensor, key: Tensor) -> Tensor:
    """query · key of (B, G, R, T, D) and (B, G, 1, S, D), without repeating keys."""
    products = query.flatten(2, 3) @ key.squeeze(2).mT
    return products.unflatten(2, query.shape[2:4])


def _finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (..., D) with zeros for those that have a number which is not finite; and which have,
    (..., 1). In sums a zero weight removes what is finite, but not NaN."""
    bad = ~x.isfinite().all(-1, keepdim=True)
    return x.masked_fill(bad, 0.0), bad


def _is_finite(product: Tensor) -> bool:
    """Whether all factors of a matrix product are known to be finite, without waiting for a device:
    one that is not would show in the product."""
    return can_read_values(product) and bool(product.sum().isfinite())


def scores(
    query: Tensor,
    key: Tensor,
    seen: Tensor | None,
    distance: Tensor | None,
    scale: float | Tensor,
    slopes: Tensor | None,
    mask: Tensor | None,
    softcap: float,
) -> Tensor:
    """z = cap(scale · query keyᵀ) − slopes · distance + mask, in differentiable operations.

    Args:
        query: (B, G, R, T, D).
        key: (B, G, 1, S, D).
        seen: which keys each query may attend to; broadcasts to (B, G, R, T, S). None for all.
        distance: |diagonal − j|, in places; broadcasts to (B, G, R, T, S).
        scale, slopes: (B, G, R, T, 1).
        mask: (B, G, R, T, S); added if it is floating point.
        softcap: scores go through softcap · tanh(z / softcap); 0 for none.
    Returns:
        (B, G, R, T, S). −inf where a query sees nothing; NaN where a query sees a key with a number
        that is not finite, or has one itself.
    """
    z, bad = _products(query * scale, key), None
    if not _is_finite(z):
        (query, bad_query), (key, bad_key) = _finite(query), _finite(key)
        z, bad = _products(query * scale, key), bad_query | bad_key.mT
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    if slopes is not None and distance is not None:
        z = z - slopes * distance.to(z.dtype)
    if mask is not None and mask.dtype != torch.bool:
        z = z + mask
    if bad is not None:
        z = z.masked_fill(bad, torch.nan)
    return z if seen is None else z.masked_fill(~seen, -torch.inf)


def mean(y: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
    """Σ y_j value_j, in differentiable operations.

    Args:
        y: (B, G, R, T, S), zero where nothing is seen.
        value: (B, G, 1, S, E).
        seen: as for `scores`. A number that is not finite spoils only who sees it.
    Returns:
        (B, G, R, T, E).
    """

    def product(value: Tensor) -> Tensor:
        return (y.flatten(2, 3) @ value.squeeze(2)).unflatten(2, y.shape[2:4])

    output = product(value)
    if seen is None or _is_finite(output):
        return output
    clean, bad = _finite(value)
    spoiled = (seen & bad.mT).any(-1, keepdim=True) & ~value.isfinite().all(-2, keepdim=True)
    return product(clean).masked_fill(spoiled, torch.nan)


def _grouped(rows: Tensor, groups: int) -> Tensor:
    """(B, H, T, ...) as (B, G, R, T, ...)."""
    return rows.unflatten(1, (groups, -1))


class _Solved(NamedTuple):
    """The arguments with grouped heads, and what follows from them."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor
    gamma: Tensor
    scale: Tensor
    seen: Tensor
    distance: Tensor
    z: Tensor
    """The scores (B, G, R, T, S), and that of a sink behind them."""
    p: Tensor
    """Their entmax."""
    has_sink: bool
    softcap: float
    drop: Callable[[Tensor], Tensor] | None

    def keys(self, x: Tensor) -> Tensor:
        """What belongs to keys, without the sink's."""
        return x[..., : self.key.shape[-2]]

    def dropped(self, x: Tensor) -> Tensor:
        """Weights, or their gradients, after dropout."""
        return x if self.drop is None else self.drop(x)

    def tau(self) -> Tensor:
        """The threshold of (alpha − 1) z / gamma, (B, G, R, T); +inf in a row that sees nothing."""
        if not self.z.shape[-1]:
            return self.z.new_full(self.z.shape[:-1], torch.inf)
        peak, at = self.p.max(-1, keepdim=True)
        epsilon = self.alpha - 1
        tau = epsilon * self.z.gather(-1, at) / self.gamma - peak**epsilon
        return torch.where(peak == 0, torch.inf, tau).squeeze(-1)


def _solve(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    stops: Tensor,
    diagonal: Tensor,
    alpha: float | Tensor,
    gamma: float | Tensor,
    scale: float | Tensor,
    slopes: Tensor | None,
    sinks: Tensor | None,
    mask: Tensor | None,
    seed: Tensor | None,
    softcap: float,
    dropout: float,
) -> _Solved:
    groups, places = key.shape[1], torch.arange(key.shape[2], device=key.device)

    shape = query.shape[:-1]

    def rows(x: float | Tensor) -> Tensor:
        x = x if isinstance(x, Tensor) else query.new_full((), x).expand(shape)
        return _grouped(x.unsqueeze(-1), groups)

    starts, stops, diagonal = (x[:, None, None, :, None] for x in (starts, stops, diagonal))
    mask = None if mask is None else _grouped(mask, groups)
    seen, distance = visible(starts, stops, places), (diagonal - places).abs().to(query.dtype)
    seen = seen if mask is None else seen & allowed(mask)
    alpha, gamma, scale = rows(alpha), rows(gamma), rows(scale)
    bias = None if slopes is None else rows(slopes)
    query, key, value = _grouped(query, groups), key.unsqueeze(2), value.unsqueeze(2)
    z = scores(query, key, seen, distance, scale, bias, mask, softcap)
    drop = None
    if dropout and seed is not None:
        drop = by_index(seed, dropout, z.shape, [slice(None)] * z.ndim)
    if sinks is not None:
        z = torch.cat([z, rows(sinks)], -1)
    p = entmax(z / gamma, alpha) if z.shape[-1] else z

    return _Solved(
        query,
        key,
        value,
        alpha,
        gamma,
        scale,
        seen,
        distance,
        z,
        p,
        sinks is not None,
        softcap,
        drop,
    )


def attention(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of the values for each query, weighted by entmax of its scores; see the package."""
    s = _solve(*arguments[:15])  # all but `keep`
    output = mean(s.dropped(s.keys(s.p)), s.value, s.seen)
    tau = s.tau().flatten(1, 2)
    query, key, value = arguments[:3]
    size = kept_size(query, key, value, cap_of(query, key, value, arguments[11]))
    return output.flatten(1, 2), tau, tau.new_zeros(size)


def attention_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients in queries, keys and values, and in what each row has; see the package."""
    *inputs, _, _, _, needs = arguments
    s = _solve(*inputs)
    (query, _), (key, _), (value, _) = _finite(s.query), _finite(s.key), _finite(s.value)
    grad = _grouped(grad, key.shape[1])
    dp = torch.where(s.seen, s.dropped(_products(grad, value)), 0.0)
    dp = torch.nn.functional.pad(dp, (0, s.p.shape[-1] - dp.shape[-1]))
    dz = entmax_jvp(s.p, dp, s.alpha) / s.gamma  # zero outside the support
    r, slope = _products(query, key), torch.ones(())
    if s.softcap > 0:
        slope = 1 - torch.tanh(s.scale * r / s.softcap) ** 2
    dz_keys = torch.where(s.seen, s.keys(dz), 0.0)
    dr = s.scale * slope * dz_keys
    rows = grad.new_empty(0)
    if needs:
        parts = (
            entmax_parameter_vjp(s.p, dp, s.alpha).squeeze(-1),
            -(torch.where(dz != 0, dz * s.z, 0.0) / s.gamma).sum(-1),
            (slope * dz_keys * r).sum(-1),
            -(dz_keys * s.distance).sum(-1),
            dz[..., -1] if s.has_sink else dz.new_zeros(dz.shape[:-1]),
        )
        rows = torch.stack(parts).flatten(2, 3)

    def per_key(weights: Tensor, vectors: Tensor) -> Tensor:
        return weights.flatten(2, 3).mT @ vectors.flatten(2, 3)

    grad_query = (dr.flatten(2, 3) @ key.squeeze(2)).view(query.shape)
    weights = s.dropped(torch.where(s.seen, s.keys(s.p), 0.0))
    return grad_query.flatten(1, 2), per_key(dr, query), per_key(weights, grad), rows
