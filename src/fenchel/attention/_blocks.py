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
from torch.nn.functional import dropout

from ..mappings import AbstractMapping, HasClosure
from ..ops.attention.dropout import by_index
from ._dense import Block, attend, dense, recomputed_gradients, shape, wide, widened
from ._problem import Inputs, Setting, without_autocast

MAX_SCORES = 2**21
"""The scores of a block at most, unless one query sees more."""
MIN_SAVED = 2**15
"""On a CPU a block is divided, too, if its halves have so many scores less: one more block takes
about the time of these."""


def _ignores_unseen(mapping: AbstractMapping) -> bool:
    """Whether a row without its −inf entries has the same solution."""
    return mapping.total is not None and not isinstance(mapping, HasClosure)


def _halves(block: Block, inputs: Inputs, setting: Setting) -> tuple[int, Block, Block] | None:
    """A block in two along one of its dimensions, each with the keys that its queries see; None if
    it stays as it is."""
    trims = _ignores_unseen(setting.mapping)

    def cut(dimension: int, part: slice) -> Block:
        found = Block(*(part if i == dimension else x for i, x in enumerate(block)))
        keys = setting.pattern.span(found.batch, found.queries) if trims else found.keys
        return found._replace(keys=keys)

    def size(block: Block) -> int:
        return prod(part.stop - part.start for part in block)

    own = size(block)
    may_save = trims and inputs.query.is_cpu and own > MIN_SAVED and not setting.pattern.is_whole
    if own <= MAX_SCORES and not may_save:
        return None
    for dimension, part in enumerate(block[:4]):
        if part.stop - part.start > 1:
            middle = (part.start + part.stop) // 2
            first = cut(dimension, slice(part.start, middle))
            second = cut(dimension, slice(middle, part.stop))
            if own > MAX_SCORES or own - size(first) - size(second) > MIN_SAVED:
                return dimension, first, second
    return None


def _whole(inputs: Inputs, setting: Setting) -> Block:
    """All rows, with the keys that they see."""
    whole = Block.whole(inputs)
    if not whole.queries.stop or not _ignores_unseen(setting.mapping):
        return whole
    return whole._replace(keys=setting.pattern.span(whole.batch, whole.queries))


def blocks(inputs: Inputs, setting: Setting) -> Iterator[Block]:
    """Blocks that hold all rows once, each with the keys that its queries see."""

    def divided(block: Block) -> Iterator[Block]:
        halves = _halves(block, inputs, setting)
        if halves is None:
            yield block
        else:
            yield from divided(halves[1])
            yield from divided(halves[2])

    return divided(_whole(inputs, setting))


def _of_block(inputs: Inputs, block: Block) -> Inputs:
    pairs = zip(Inputs._fields, inputs, strict=True)
    return Inputs(*(None if x is None else block.part(name, x) for name, x in pairs))  # type: ignore[arg-type]


def _dropout(
    block: Block, whole: tuple[int, ...], setting: Setting
) -> Callable[[Tensor], Tensor] | None:
    """Dropout of a block, the same forward and backward."""
    seed, rate = setting.seed, setting.dropout
    if seed is None or not seed.is_cpu:
        return None if seed is None else by_index(seed, rate, whole, block)
    # On a CPU PyTorch's own generator is much faster.
    first = sum(part.start * prod(whole[i + 1 :]) for i, part in enumerate(block))
    generator = torch.Generator().manual_seed((int(seed) + first) % 2**63)

    def drop(y: Tensor) -> Tensor:
        if rate == 1:
            return torch.zeros_like(y)
        kept = torch.rand(y.shape, generator=generator) >= rate
        return torch.where(kept, y / (1 - rate), 0.0)

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
            name: grad.new_zeros(x.shape, dtype=wide(x))  # a batch of them for a batch of gradients
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


def _kept(inputs: Inputs, setting: Setting, block: Block) -> Tensor:
    """The outputs of a block and its parts in plain operations, which keep the weights."""
    halves = _halves(block, inputs, setting)
    if halves is not None:
        dimension, *parts = halves
        return torch.cat([_kept(inputs, setting, part) for part in parts], dimension)
    drop = partial(dropout, p=setting.dropout)
    output, _ = attend(_of_block(inputs, block), setting, block, drop)
    return output.to(inputs.value.dtype)


def attention_in_blocks(inputs: Inputs, setting: Setting) -> Tensor:
    """The outputs (B, G, R, T, E), for eager calls. What would fit into one block is not solved
    again in the backward pass."""
    if _learns_closure(inputs, setting):
        return dense(inputs, setting)[0]
    if prod(shape(inputs)) <= MAX_SCORES:
        return _kept(inputs, setting, _whole(inputs, setting))
    return Blockwise.apply(setting.seeded(inputs.query.device), *inputs)


def _learns_closure(inputs: Inputs, setting: Setting) -> bool:
    """Whether a mapping has tensors that are no fields, and needs their gradients."""
    mapping, width = setting.mapping, inputs.key.shape[3] + (inputs.sinks is not None)
    return isinstance(mapping, HasClosure) and mapping.is_learned(inputs.query.new_zeros(1, width))
