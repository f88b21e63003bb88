"""The attentions that are compared, over heads of several networks at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from fenchel import Entmax
from fenchel.attention import attention

from .settings import SCALE, STEEPEST_SLOPE

POSITION_BASE = 256
"""Positions are written with two digits, which bfloat16 holds exactly."""
POSITION_DIMS = 8
"""Dimensions of a head that are added for them; a multiple of 8 for torch's kernels."""


def slopes(heads: int, device: torch.device) -> Tensor:
    """Of ALiBi, (heads,): 0 in the first half, then falling by halves."""
    half = heads // 2
    falling = STEEPEST_SLOPE * 2.0 ** -torch.arange(heads - half, device=device)
    return torch.cat([torch.zeros(half, device=device), falling])


def parameters(kind: str, heads: int) -> dict[str, tuple[int, float]]:
    """What heads learn besides: how many of them, from the first on, and where it starts."""
    if kind == "alpha":
        return {"alpha_logit": (heads, 0.0)}
    return {name: (heads // 2, start) for name, start in SCALE.items()} if kind == "scaled" else {}


def length_scale(
    delta: Tensor, beta: Tensor, gamma: Tensor, num_queries: int, num_keys: int
) -> Tensor:
    """δ + β (log n)^γ for each head and query, (..., heads, queries, 1).

    n is how many keys a query sees when the last query stands at the last key. It counts as 2 at
    least, since (log 1)^γ has no derivative, and one key has all weight in any case.
    """
    first = num_keys - num_queries + 1
    seen = torch.arange(first, num_keys + 1, device=delta.device).clamp(min=2)
    log = seen.to(delta.dtype).log()[:, None]
    return delta[..., None, None] + beta[..., None, None] * log ** gamma[..., None, None]


def attend(
    kind: str, query: Tensor, key: Tensor, value: Tensor, learned: Mapping[str, Tensor]
) -> Tensor:
    """Causal attention of the last T of S positions, with ALiBi in half of the heads.

    The scale by length is for the other half. With ALiBi it would change the balance of a score and
    its bias.

    Args:
        kind: one of `settings.ATTENTIONS`.
        query: (N, B, H, T, D), of N networks.
        key, value: (N, B, H, S, D).
        learned: what `parameters` names, each (N, heads that learn it).
    """
    if kind == "softmax":
        return _softmax(query, key, value)
    heads, num_queries, width = query.shape[-3:]
    mapping, scale = Entmax(1.5), None
    if kind == "alpha":
        mapping = Entmax(1 + learned["alpha_logit"].sigmoid()[:, None, :, None, None])
    if kind == "scaled":
        delta, raw_beta, gamma = (learned[name][:, None] for name in SCALE)
        factor = length_scale(delta, softplus(raw_beta), gamma, num_queries, key.shape[-2])
        others = factor.new_ones(*factor.shape[:2], heads - delta.shape[-1], num_queries, 1)
        scale = torch.cat([factor, others], 2) * width**-0.5
    return attention(
        query,
        key,
        value,
        mapping,
        scale=scale,
        causal="lower_right",
        alibi=slopes(heads, query.device),
    )  # type: ignore[return-value]


def _softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same by torch's own attention, which has no ALiBi and takes four dimensions.

    A weight depends on differences of scores alone, so that slope · place of the key serves as
    well as −slope · distance. It is a product of two more dimensions.
    """
    heads, num_queries, width = query.shape[-3:]
    num_keys = key.shape[-2]
    slope = slopes(heads, query.device)[:, None].to(query.dtype)
    place = torch.arange(num_keys, device=key.device)
    digit = place % POSITION_BASE
    # Queries before the last T are zeros; torch's causal order starts at the first key.
    q = pad(query * width**-0.5, (0, POSITION_DIMS, num_keys - num_queries, 0))
    k, v = pad(key, (0, POSITION_DIMS)), pad(value, (0, POSITION_DIMS))
    q[..., width], q[..., width + 1] = slope, slope
    k[..., width], k[..., width + 1] = (place - digit).to(k.dtype), digit.to(k.dtype)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    output = attention(q, k, v, "softmax", scale=1.0, causal=True)
    return output[..., -num_queries:, :width].unflatten(0, value.shape[:2])  # type: ignore[union-attr]
