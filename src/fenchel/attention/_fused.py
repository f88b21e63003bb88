"""Entmax attention by the fused operator, which does not store the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _checks
from ..mappings import AbstractMapping
from ..mappings._entmax import Entmax
from ..mappings._sparsemax import Sparsemax
from ..ops import attention as ops
from ._dense import dense, recomputed_gradients, shape
from ._pattern import Pattern
from ._problem import Inputs, Setting

FUSED_TYPES = (*_checks.HALF, torch.float32)


def takes_mapping(mapping: AbstractMapping) -> bool:
    """Sparsemax, and entmax above α = 1. The values of a tensor are not looked at."""
    if isinstance(mapping, Entmax):
        return isinstance(mapping.alpha, Tensor) or mapping.alpha > 1
    return isinstance(mapping, Sparsemax)


def is_fused(inputs: Inputs, setting: Setting) -> bool:
    """Whether the fused operator computes this: on a GPU that has its kernels."""
    query, key, value, mask = inputs.query, inputs.key, inputs.value, inputs.mask
    return (
        ops.HAS_KERNEL
        and query.is_cuda
        and takes_mapping(setting.mapping)
        and query.dtype in FUSED_TYPES
        and key.dtype == value.dtype == query.dtype
        and 1 <= query.shape[-1] <= ops.MAX_WIDTH
        and 1 <= value.shape[-1] <= ops.MAX_WIDTH
        and not (mask is not None and mask.requires_grad and torch.is_grad_enabled())
        and setting.dropout < 1
    )


class Fused(Function):
    """The outputs (B, H, T, E) of the operator; see `fenchel.ops.attention` for its arguments."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:  # type: ignore[override]
        output, tau, state = ops.attention(*given)
        arguments = given[:-1]
        tensors = [x if isinstance(x, Tensor) else None for x in arguments]
        ctx.numbers = [None if isinstance(x, Tensor) else x for x in arguments]
        ctx.save_for_backward(*tensors, output, tau, state)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *tensors, output, tau, state = ctx.saved_tensors
        arguments = [x if y is None else y for x, y in zip(tensors, ctx.numbers, strict=True)]
        vectors, rows = ctx.needs_input_grad[:3], ctx.needs_input_grad[6 : 6 + len(ops.ROWS)]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _second_order(arguments, grad, vectors, rows)
        needs = sum(bit << i for i, bit in enumerate(rows))
        *found, slopes = ops.attention_backward(grad, *arguments, output, tau, state, needs)
        return (
            *(x if need else None for x, need in zip(found, vectors, strict=True)),
            *(None,) * 3,
            *(slopes[i] if need else None for i, need in enumerate(rows)),
            *(None,) * 5,
        )


def _second_order(
    arguments: list[Any], grad: Tensor, vectors: tuple[bool, ...], rows: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients in operations that have derivatives."""
    query, key, value, starts, stops, diagonal, *rest = arguments
    *per_row, mask, seed, softcap, dropout = rest
    groups = key.shape[1]
    alpha, gamma, scale, slopes, sinks = (
        x.unflatten(1, (groups, -1)).unsqueeze(-1) if isinstance(x, Tensor) else None
        for x in per_row
    )
    mapping = Entmax() if alpha is not None else Entmax(per_row[0], gamma=per_row[1])
    inputs = Inputs(
        query.unflatten(1, (groups, -1)),
        key.unsqueeze(2),
        value.unsqueeze(2),
        scale,
        gamma,
        alpha,
        slopes,
        sinks,
        None if mask is None else mask.unflatten(1, (groups, -1)),
    )
    pattern = Pattern(starts, stops, diagonal, key.shape[2], None)
    factor = 1.0 if scale is not None else per_row[2]
    setting = Setting(mapping, pattern, factor, softcap, dropout, seed)
    needs_alpha, needs_gamma, needs_scale, *others = rows
    needs = (*vectors, needs_scale, needs_gamma, needs_alpha, *others, False)
    grads = recomputed_gradients(
        lambda given: dense(given, setting)[0], inputs, grad.unflatten(1, (groups, -1)), needs
    )
    flat = [None if x is None else x.flatten(1, 2) for x in grads]
    of_query, of_key, of_value, of_scale, of_gamma, of_alpha, of_slopes, of_sinks, _ = flat
    per_row = (of_alpha, of_gamma, of_scale, of_slopes, of_sinks)
    return (
        of_query,
        of_key,
        of_value,
        *(None,) * 3,
        *(None if x is None else x.squeeze(-1) for x in per_row),
        *(None,) * 5,
    )


def operator_arguments(inputs: Inputs, setting: Setting) -> tuple[Any, ...]:
    """Query (B, H, T, D), key and value; starts, stops and diagonal; α, γ and the scale; slopes and
    sinks, as operators take them."""
    whole = shape(inputs)
    rows = (whole[0], whole[1] * whole[2], whole[3])
    query, pattern = inputs.query, setting.pattern
    wide = torch.promote_types(query.dtype, torch.float32)

    def per_row(x: Tensor | float | None) -> Any:
        if x is None:
            return None
        if not isinstance(x, Tensor):
            return torch.full((), x, dtype=wide, device=query.device).expand(rows)
        return x.to(wide).expand(*whole[:4], 1).reshape(rows)

    mapping, alpha = setting.mapping, inputs.parameter
    if alpha is not None:
        alpha = torch.where(alpha > 1, alpha, torch.nan)
    given = (alpha, inputs.gamma, inputs.scale)
    parameters = [mapping.exponent, mapping.gamma, setting.scale]  # type: ignore[attr-defined]
    if any(x is not None for x in given):
        pairs = zip(given, parameters, strict=True)
        parameters = [per_row(number if x is None else x) for x, number in pairs]
    return (
        query.flatten(1, 2),
        inputs.key.squeeze(2),
        inputs.value.squeeze(2),
        *(x.contiguous() for x in (pattern.starts, pattern.stops, pattern.diagonal)),
        *parameters,
        per_row(inputs.slopes),
        per_row(inputs.sinks),
    )


def fused_attention(inputs: Inputs, setting: Setting) -> Tensor:
    """The outputs (B, G, R, T, E) of sparsemax or entmax."""
    setting, whole = setting.seeded(inputs.query.device), shape(inputs)
    arguments = (
        *operator_arguments(inputs, setting),
        None if inputs.mask is None else inputs.mask.expand(whole).flatten(1, 2),
        setting.seed,
        setting.softcap,
        setting.dropout,
    )
    keep = torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in arguments
    )
    return Fused.apply(*arguments, keep).unflatten(1, whole[1:3])
