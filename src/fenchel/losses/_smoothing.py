"""What label smoothing adds to the loss of a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mappings import AbstractMapping, HasTerms


def smoothing_terms(
    mapping: AbstractMapping,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    smoothing: float,
) -> Tensor:
    """The loss for q = (1 − ε)e_y + εu less that for e_y, with u uniform over n classes:

        γΩ(q) − γΩ(e_y) + ε(θ_y − mean θ),   θ_y − mean θ = <h, w_y − mean w> + b_y − mean b.

    Args:
        mapping: whose Ω is Σ f(yᵢ), see `HasTerms`; its parameters are numbers.
        hidden: h, (n, D).
        weight, bias: w (V, D) and b (V,) or None; a bias of −inf deletes a class.
        target: y, (n,).
        smoothing: ε in (0, 1).
    Returns:
        (n,), differentiable, in at least float32.
    Raises:
        ValueError: for another mapping, or ε = 1.
    """
    if smoothing == 1:
        raise ValueError("`label_smoothing` must be less than 1 here, got 1.")
    if not isinstance(mapping, HasTerms):
        raise ValueError(
            f"`label_smoothing` must be 0 for {mapping.name} here, got {smoothing:g}; use "
            "`fenchel_young_loss`."
        )
    wide = torch.promote_types(hidden.dtype, torch.float32)
    total, count, offset = weight.sum(0, dtype=wide), len(weight), 0.0
    if bias is not None:
        is_deleted = bias.detach() == -torch.inf
        deleted = is_deleted.nonzero().squeeze(1)
        total, count = total - weight[deleted].sum(0, dtype=wide), count - len(deleted)
        # A deleted target has the loss +inf without these terms.
        finite = torch.where(is_deleted, 0.0, bias.to(wide))
        offset = finite[target] - finite.sum() / max(count, 1)
    direction = weight[target].to(wide) - total / max(count, 1)
    distance = (hidden.to(wide) * direction).sum(-1) + offset
    share = smoothing / max(count, 1)
    values = torch.tensor([1 - smoothing + share, share, 1.0], dtype=torch.float64)
    own, other, vertex = mapping.omega(values.unsqueeze(1)).tolist()
    return smoothing * distance + mapping.gamma * (own + (count - 1) * other - vertex)
