"""Attention as its definition says, one query at a time, over a list of the keys that it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.mappings import AbstractMapping


def attention_truth(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping_at: Callable[[int, int, int], AbstractMapping],
    sees: Callable[[int, int, int], bool],
    diagonal: Callable[[int, int], int] = lambda b, t: t,
    *,
    scale: Any = 1.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    mask: Tensor | None = None,
    keep: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The outputs (B, H, T, E) and the weights before dropout (B, H, T, S), with autograd.

    Args:
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, E).
        mapping_at: the mapping of row (b, h, t).
        sees: whether query t of sequence b sees key j.
        diagonal: where query t of sequence b stands.
        scale, slopes, sinks: broadcast to (B, H, T).
        mask: broadcasts to (B, H, T, S).
        keep: (B, H, T, S), what each weight is multiplied by.
        softcap: 0 for none.
    """
    (batch, heads, queries, _), (groups, keys) = query.shape, key.shape[1:3]
    rows = (batch, heads, queries)

    def spread(x: Any, *shape: int) -> Any:
        return None if x is None else torch.as_tensor(x, dtype=query.dtype).expand(shape)

    scale, slopes, sinks = (spread(x, *rows) for x in (scale, slopes, sinks))
    if mask is not None:
        mask = mask.expand(*rows, keys)
    outputs, weights = [], []
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in rows)).tolist():
        group = h // (heads // groups)
        kept, z = [], []
        for j in range(keys):
            score = scale[b, h, t] * (query[b, h, t] * key[b, group, j]).sum()
            if softcap:
                score = softcap * torch.tanh(score / softcap)
            if slopes is not None:
                score = score - slopes[b, h, t] * abs(diagonal(b, t) - j)
            allowed = sees(b, t, j)
            if mask is not None and mask.dtype == torch.bool:
                allowed = allowed and bool(mask[b, h, t, j])
            elif mask is not None:
                allowed = allowed and bool(mask[b, h, t, j] > -torch.inf)
                score = score + mask[b, h, t, j]
            if allowed:
                kept.append(j)
                z.append(score)
        if sinks is not None:
            z.append(sinks[b, h, t])
        row = query.new_zeros(keys)
        if z:
            y = mapping_at(b, h, t)(torch.stack(z))
            row = row.index_put((torch.tensor(kept, dtype=torch.int64),), y[: len(kept)])
        weights.append(row)
        dropped = row if keep is None else row * keep[b, h, t]
        outputs.append(
            sum((dropped[j] * value[b, group, j] for j in kept), value.new_zeros(value.shape[-1]))
        )
    shape = (batch, heads, queries)
    if not outputs:
        return query.new_zeros(*shape, value.shape[-1]), query.new_zeros(*shape, keys)
    return torch.stack(outputs).view(*shape, -1), torch.stack(weights).view(*shape, keys)
