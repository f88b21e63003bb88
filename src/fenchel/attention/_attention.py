"""Attention as a function: scores, a mapping of them, and the weighted mean of the values."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._registry import resolve
from ..mappings._softmax import Softmax
from ._checks import check_attention


def _is_one(gamma: float | Tensor) -> bool:
    return not isinstance(gamma, Tensor) and gamma == 1


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: AbstractMapping | str = "softmax",
    mask: Tensor | None = None,
    scale: float | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """For each query the mean of the values, weighted by a mapping of its scores with the keys.

        output = ŷ(scale · query keyᵀ + mask) value

    What overlaps with `torch.nn.functional.scaled_dot_product_attention` means the same. Softmax
    whose weights are not asked for is computed by it.

    Args:
        query: (..., T, D), floating point.
        key: (..., S, D).
        value: (..., S, E).
        mapping: a mapping, or the name of a registered one. A tensor among its parameters
            broadcasts against (..., T, 1), so that (heads, 1, 1) holds one value per head, and
            receives a gradient.
        mask: broadcasts to (..., T, S). Boolean: true where a query may attend. Floating
            point: added to the scores, −inf where a query must not attend.
        scale: the factor of the scores, 1/√D by default.
        causal: whether query t attends to the keys 0 to t only; not together with a mask.
        dropout: the probability of setting a weight to zero; the others are scaled up, as in torch.
        weights: whether to return the weights, too; they are those before dropout.
    Returns:
        (..., T, E), and if asked for the weights, (..., T, S). A query that may attend to
        nothing gets weights and an output of zeros.
    Raises:
        TypeError, ValueError: for tensors of the wrong kind or shape.

    Stores the scores and the weights, T·S numbers each; softmax without weights does not.

    >>> query, key = torch.tensor([[2.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 1.0], [-2.0, 0.0]])
    >>> attention(query, key, torch.eye(3), "entmax", weights=True)
    (tensor([[0.9330, 0.0670, 0.0000]]), tensor([[0.9330, 0.0670, 0.0000]]))

    References: niculae2017regularized, peters2019sparse.
    """
    mapping = resolve(mapping)
    check_attention(query, key, value, mask, causal)
    _checks.check_number("dropout", dropout, minimum=0, maximum=1)
    if not weights and isinstance(mapping, Softmax) and _is_one(mapping.gamma):
        return scaled_dot_product_attention(
            query, key, value, mask, dropout, is_causal=causal, scale=scale
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    y = mapping(scores)
    output = (drop(y, dropout) if dropout else y).to(value.dtype) @ value
    return (output, y) if weights else output
