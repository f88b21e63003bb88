"""Entmax attention without storing its weights: the mean of the values, and its gradients.

Query t of batch b sees the keys j with starts[b, t] ≤ j < stops[b, t] that the mask allows. With
cap(z) = softcap tanh(z / softcap), its scores and weights are

    z_j = cap(scale · query · key_j) − slopes |diagonal − j| + mask_j
    p_j = [(alpha − 1) z_j / gamma − tau]₊^(1/(alpha−1)),   tau such that they sum to one
    output = Σ_j keep_j p_j value_j / (1 − dropout)

A sink is one more score, without a key and a value. A row that sees nothing and has no sink has
the output 0, tau = +inf and gradients of 0.

The arguments: query (B, H, T, D), key (B, G, S, D) and value (B, G, S, E), where G divides H.
starts, stops and diagonal are int32 (B or 1, T), and the first two never decrease. alpha (above 1),
gamma, scale, slopes and sinks are one number per row, expanded to (B, H, T); alpha, gamma and scale
may also be numbers, all three of them. The mask is boolean or floating point, expanded to
(B, H, T, S). The seed is int64, (1,); keep_j says whether
`tl.rand(seed, ((b·H + h)·T + t)·S + j)`, with an offset of 64 bits, is at least dropout. A softcap
of 0 is none.

The results are contiguous: the output (B, H, T, E), tau (B, H, T), and a state, one tensor of
whatever a kernel's own backward needs besides; it may lack that if `keep` is false, where no
backward pass follows. Bit i of `needs` asks for
the gradient of the i-th of alpha, gamma, scale, slopes and sinks. If any is asked for, `rows` holds
them, (5, B, H, T), with anything finite in the others; else it is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .. import _triton
from .._operator import declare
from .._triton import kernel
from . import reference
from .sizes import cap_of, kept_size

ROWS = ("alpha", "gamma", "scale", "slopes", "sinks")
"""What each row has, in the order of `rows`."""
MAX_WIDTH = 256
"""The size of the vectors that a kernel takes, at most."""
HAS_KERNEL = _triton.AVAILABLE and find_spec(f"{__name__}.triton") is not None
"""Whether CUDA tensors get a kernel that does not store the scores."""

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor starts, Tensor stops, Tensor diagonal, "
    "{kind} alpha, {kind} gamma, {kind} scale, Tensor? slopes, Tensor? sinks, Tensor? mask, "
    "Tensor? seed, float softcap, float dropout"
)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _shapes(
    query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries = query.shape[:-1]
    return (
        query.new_empty(batch, heads, queries, value.shape[-1]),
        query.new_empty(batch, heads, queries, dtype=_wide(query)),
        query.new_empty(
            kept_size(query, key, value, cap_of(query, key, value, others[8])), dtype=_wide(query)
        ),
    )


def _gradient_shapes(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, needs = *arguments[:3], arguments[-1]
    rows = (len(ROWS), *query.shape[:-1]) if needs else (0,)
    return (
        grad.new_empty(query.shape),
        grad.new_empty(key.shape),
        grad.new_empty(value.shape),
        grad.new_empty(rows, dtype=_wide(grad)),
    )


def _declare(
    name: str, first: str, last: str, results: str, **kernels: Callable[..., Any]
) -> Callable[..., Any]:
    """An operator whose alpha, gamma and scale are tensors, or by another overload numbers."""

    def overload(suffix: str, kind: str) -> Callable[..., Any]:
        arguments = ", ".join(x for x in (first, _ARGUMENTS.format(kind=kind), last) if x)
        return declare(
            f"{name}{suffix}({arguments}) -> ({results})",
            triton=kernel("attention", name) if HAS_KERNEL else None,
            rowwise=False,
            **kernels,
        )

    by_tensors, by_numbers = overload("", "Tensor"), overload(".numbers", "float")
    alpha = 7 if first else 6

    def call(*arguments: Any) -> Any:
        return (by_tensors if isinstance(arguments[alpha], Tensor) else by_numbers)(*arguments)

    return call


attention = _declare(
    "attention",
    "",
    "bool keep=True",
    "Tensor output, Tensor tau, Tensor state",
    fake=_shapes,
    reference=reference.attention,
)
attention_backward = _declare(
    "attention_backward",
    "Tensor grad",
    "Tensor output, Tensor tau, Tensor state, int needs",
    "Tensor query, Tensor key, Tensor value, Tensor rows",
    fake=_gradient_shapes,
    reference=reference.attention_backward,
)
