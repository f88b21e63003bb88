"""Attention with any mapping, a block of queries at a time, so that memory has a bound.

Only the inputs are saved. The backward pass solves each block again, and takes its gradients from
autograd, so that whatever is differentiable in a mapping has its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..mappings import AbstractMapping, HasClosure
from ..ops.attention.dropout import by_index
from ._dense import Block, attend, dense, recomputed_gradients, shape, wide, widened
from ._problem import Inputs, Setting, without_autocast

MAX_SCORES = 2**21
"""The scores of a block at most, unless one query sees more."""


def _parts(size: int, at_a_time: int) -> list[slice]:
    return [slice(i, min(i + at_a_time, size)) for i in range(0, size, at_a_time)]


def _ignores_unseen(mapping: AbstractMapping) -> bool:
    """Whether a row without its −inf entries has the same solution."""
    return mapping.total is not None and not isinstance(mapping, HasClosure)


def blocks(inputs: Inputs, setting: Setting) -> Iterator[Block]:
    """Blocks that hold all rows once, each with the keys that its queries see."""
    batch, groups, heads, queries, keys = shape(inputs)
    trims = _ignores_unseen(setting.mapping)

    def span(sequences: slice, rows: slice) -> slice:
        return setting.pattern.span(sequences, rows) if trims else slice(0, keys)

    def fitting(of_one: int) -> int:
        return max(1, MAX_SCORES // max(1, of_one))

    per_head = queries * keys
    at_a_time = (
        min(batch, fitting(groups * heads * per_head)),
        min(groups, fitting(heads * per_head)),
        min(heads, fitting(per_head)),
    )
    for b in _parts(batch, at_a_time[0]):
        for g in _parts(groups, at_a_time[1]):
            for r in _parts(heads, at_a_time[2]):
                rows = (b.stop - b.start) * (g.stop - g.start) * (r.stop - r.start)
                first = 0
                while first < queries:
                    count = queries - first
                    seen = span(b, slice(first, queries))
                    while count > 1 and rows * count * (seen.stop - seen.start) > MAX_SCORES:
                        count = (count + 1) // 2
                        seen = span(b, slice(first, first + count))
                    yield Block(b, g, r, slice(first, first + count), seen)
                    first += count


def _of_block(inputs: Inputs, block: Block) -> Inputs:
    pairs = zip(Inputs._fields, inputs, strict=True)
    return Inputs(*(None if x is None else block.part(name, x) for name, x in pairs))  # type: ignore[arg-type]


def _dropout(
    block: Block, whole: tuple[int, ...], setting: Setting
) -> Callable[[Tensor], Tensor] | None:
    """Dropout of a block, the same forward and backward."""
    seed, dropout = setting.seed, setting.dropout
    if seed is None or not seed.is_cpu:
        return None if seed is None else by_index(seed, dropout, whole, block)
    # On a CPU PyTorch's own generator is much faster.
    first = sum(part.start * prod(whole[i + 1 :]) for i, part in enumerate(block))
    generator = torch.Generator().manual_seed((int(seed) + first) % 2**63)

    def drop(y: Tensor) -> Tensor:
        if dropout == 1:
            return torch.zeros_like(y)
        kept = torch.rand(y.shape, generator=generator) >= dropout
        return torch.where(kept, y / (1 - dropout), 0.0)

    return drop


def _solve(inputs: Inputs, setting: Setting) -> Tensor:
    """The outputs (B, G, R, T, E), block by block."""
    whole = shape(inputs)
    output = inputs.value.new_empty(*whole[:4], inputs.value.shape[-1])
    for block in blocks(inputs, setting):
        drop = _dropout(block, whole, setting)
        found, _ = attend(_of_block(inputs, block), setting, block, drop)
        block.part("output", output).copy_(found)
    return output


class Blockwise(Function):
    """The outputs (B, G, R, T, E)."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.setting = setting
        ctx.save_for_backward(*tensors)
        return _solve(Inputs(*tensors), setting)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, setting = Inputs(*ctx.saved_tensors), ctx.setting
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            solve = partial(_solve, setting=setting)
            return None, *recomputed_gradients(solve, inputs, grad, needs)
        sums = {
            name: torch.zeros(x.shape, dtype=wide(x), device=x.device)
            for name, x, need in zip(Inputs._fields, inputs, needs, strict=True)
            if x is not None and need
        }
        for block in blocks(inputs, setting):
            _add_gradients(sums, inputs, setting, grad, block)
        return None, *(
            sums[name].to(x.dtype) if x is not None and name in sums else None
            for name, x in zip(Inputs._fields, inputs, strict=True)
        )


def _add_gradients(
    sums: dict[str, Tensor],
    inputs: Inputs,
    setting: Setting,
    grad: Tensor,
    block: Block,
) -> None:
    """Adds the gradients of a block to the sums of those inputs that need one."""
    part = _of_block(inputs, block)
    leaves = {name: widened(getattr(part, name).detach()).requires_grad_() for name in sums}
    drop = _dropout(block, shape(inputs), setting)
    with torch.enable_grad(), without_autocast(grad.device):
        output, _ = attend(part._replace(**leaves), setting, block, drop)
        if not output.requires_grad:  # as of no keys
            return
        rows = block.part("output", grad).to(output.dtype)
        found = torch.autograd.grad(output, tuple(leaves.values()), rows, allow_unused=True)
    for (name, total), gradient in zip(sums.items(), found, strict=True):
        if gradient is not None:
            block.part(name, total).add_(gradient)


def attention_in_blocks(inputs: Inputs, setting: Setting) -> Tensor:
    """The outputs (B, G, R, T, E), for eager calls. What fits into one block is not solved again in
    the backward pass."""
    batch, groups, heads, queries, keys = shape(inputs)
    if batch * groups * heads * queries * keys <= MAX_SCORES or _learns_closure(inputs, setting):
        return dense(inputs, setting)[0]
    return Blockwise.apply(setting.seeded(inputs.query.device), *inputs)


def _learns_closure(inputs: Inputs, setting: Setting) -> bool:
    """Whether a mapping has tensors that are no fields, and needs their gradients."""
    mapping, width = setting.mapping, inputs.key.shape[3] + (inputs.sinks is not None)
    return isinstance(mapping, HasClosure) and mapping.is_learned(inputs.query.new_zeros(1, width))
