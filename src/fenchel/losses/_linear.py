"""A linear layer and its Fenchel-Young loss in one: scores in chunks, gradients by support."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import Function
from torch.nn import functional

from .. import _checks
from .._transforms import is_transformed
from ..mappings import AbstractMapping
from ..mappings._checks import check_linear, check_smoothing, check_target
from ..mappings._protocols import HasClosure
from ..mappings._registry import resolve
from ._chunks import Chunk, Entries, Gradients, Problem

_WHOLE_BYTES, _CHUNK_BYTES = 2**29, 3 * 2**27
"""How large the scores may be for one chunk to hold all, and how large one of several is."""


def linear_fenchel_young_loss(
    mapping: AbstractMapping | str,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    chunk: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`fenchel_young_loss(mapping, hidden @ weight.T + bias, target)` without storing the scores.

    The gradient in the scores is ŷ − target, a few dozen nonzeros in a row of a trained model: the
    gradients in hidden and weight gather and scatter over these, in place of two matrix products.
    A chunk whose supports are wide takes the products.

    Args:
        mapping: gives ŷ, Ω and γ, and its parameters must be numbers; or the name of one.
        hidden: (..., D), floating point.
        weight: (V, D), of the same type; perhaps an embedding's own.
        target: (...), class indices.
        bias: (V,) or None.
        reduction: "none", "mean" or "sum" over the rows.
        ignore_index: rows with this index count for nothing; None for no such index.
        chunk: how many rows of scores to compute at a time; of at most two such chunks the scores
            are held. By default these take 3/4 GiB at most.
        label_smoothing: ε in [0, 1), as for `fenchel_young_loss`; for softmax, sparsemax and
            entmax. Only a bias of −inf deletes a class. The gradient in weight is then no longer
            zero for classes without a support: all have the same share of it.
    Returns:
        A scalar, or with "none" one loss per row, (...).
    Raises:
        TypeError, ValueError: for arguments of the wrong kind, shape or value.

    Keeps the supports between forward and backward, and the scores of the last chunk. The host
    waits once per chunk, while the device computes the next one, to learn how wide supports are.
    Second derivatives, forward mode and torch.func compute all scores.

    >>> import torch
    >>> from fenchel import Entmax
    >>> hidden, weight = torch.eye(2, 3), torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> linear_fenchel_young_loss(Entmax(1.5), hidden, weight, torch.tensor([0, 0]))
    tensor(0.5308)
    """
    _checks.check_choice("reduction", reduction, _checks.REDUCTIONS)
    mapping = resolve(mapping)
    check_linear(mapping, hidden, weight, bias, chunk)
    check_smoothing(label_smoothing, mapping)
    if is_transformed():
        scores = functional.linear(hidden, weight, bias)
        return mapping.loss(
            scores, target, -1, reduction, ignore_index, label_smoothing=label_smoothing
        )
    rows, classes = hidden.reshape(-1, hidden.shape[-1]), weight.shape[0]
    shape = (*hidden.shape[:-1], classes)
    if not check_target(target, shape, hidden.device, hidden.ndim - 1, ignore_index, "hidden"):
        raise TypeError("`target` must hold class indices, got floating point.")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows, weight = rows.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    indices = target.reshape(-1).to(torch.int64)
    kept = torch.ones_like(indices, dtype=torch.bool)
    if ignore_index is not None:
        kept = indices != ignore_index
        indices = torch.where(kept, indices, 0)
    if chunk is None:
        chunk = _chunk_of(rows, classes)
    if isinstance(mapping, HasClosure) and mapping.is_learned(weight.new_empty(1, classes)):
        raise ValueError(
            f"`{mapping.name}` must not depend on tensors that need a gradient here; use "
            "`fenchel_young_loss`."
        )
    wide = torch.promote_types(rows.dtype, torch.float32)
    dtype = wide if torch.is_autocast_enabled(device) else rows.dtype
    watched = torch.is_grad_enabled()
    plan = _Plan(mapping, chunk, reduction, watched, wide if label_smoothing else dtype)
    with torch.autocast(device, enabled=False):
        loss = LinearLoss.apply(rows, weight, bias, indices, kept.to(wide), plan)
        if label_smoothing:
            from ._smoothing import smoothing_terms

            terms = smoothing_terms(mapping, rows, weight, bias, indices, label_smoothing)
            loss = (loss + _reduced(torch.where(kept, terms, 0.0), kept, reduction)).to(dtype)
    return loss.view(target.shape) if reduction == "none" else loss


def _reduced(terms: Tensor, kept: Tensor, reduction: str) -> Tensor:
    """Terms of the rows, or their sum or mean over those that are kept."""
    if reduction == "none":
        return terms
    return terms.sum() / (kept.sum().clamp(min=1) if reduction == "mean" else 1)


def _chunk_of(rows: Tensor, classes: int) -> int:
    """How many rows to take at a time, of many a multiple of what a matrix product tiles by."""
    size = classes * rows.element_size()
    if len(rows) * size <= _WHOLE_BYTES:
        return max(1, len(rows))
    many = _CHUNK_BYTES // size
    return max(1, many - many % 256 if many > 256 else many)


class _Plan(NamedTuple):
    """What is no tensor: `watched` if a gradient may be asked for, and the type of the loss."""

    mapping: AbstractMapping
    chunk: int
    reduction: str
    watched: bool
    dtype: torch.dtype


class LinearLoss(Function):
    """Σ weights_i loss_i, or each weights_i loss_i, from hidden (n, D), weight (V, D), bias (V,).

    A chunk with narrow supports keeps them for backward. One without takes its dense products at
    once if the losses are summed; if not, backward computes its scores again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        weights: Tensor,
        plan: _Plan,
    ) -> Tensor:
        problem = Problem(plan.mapping, weight, bias)
        wanted = tuple(needed and plan.watched for needed in ctx.needs_input_grad[:3])
        target, kept, mean = target[:, None], weights.sum(), plan.reduction == "mean"
        weights = (weights / kept.clamp(min=1) if mean else weights)[:, None]
        losses = weights.new_empty(len(hidden))
        ctx.dense = None if plan.reduction == "none" else Gradients(wanted)
        ctx.chunks = []
        for start in range(0, len(hidden), plan.chunk):
            part = slice(start, start + plan.chunk)
            scores, losses[part], state = problem.solve(hidden[part], target[part])
            if any(wanted):
                ctx.chunks.append(Chunk(problem, part, scores, state, target[part], weights[part]))
                for chunk in ctx.chunks[-2:-1]:
                    chunk.finalize(ctx.dense, hidden)
            del scores, state  # before the next but one
        ctx.save_for_backward(hidden, weight, bias, target, weights)
        ctx.mapping = plan.mapping
        losses = torch.where(weights[:, 0] == 0, 0.0, losses * weights[:, 0])
        if plan.reduction != "none":
            losses = losses.sum()
        if mean:  # NaN if there is no row, as in torch
            losses = torch.where(kept > 0, losses, torch.nan)
        return losses.to(plan.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, weights = ctx.saved_tensors
        rows = weights * grad.to(weights.dtype).reshape(-1, 1)
        if torch.is_grad_enabled() or is_transformed() or is_legacy_batchedtensor(grad):
            found = _differentiable(ctx.mapping, hidden, weight, bias, target, rows)
            needed = zip(found, ctx.needs_input_grad, strict=False)
            return (*(x if is_needed else None for x, is_needed in needed), None, None, None)
        # What can be launched before the host waits is.
        entries = Entries(ctx.chunks, rows) if ctx.chunks else None
        for chunk in ctx.chunks[-1:]:
            chunk.finalize(ctx.dense, hidden)
        total, ctx.dense = ctx.dense, None  # handed over: a second backward computes them again
        if total is not None:
            total.scale(grad)
        else:
            total = Gradients(ctx.needs_input_grad[:3])
            problem = Problem(ctx.mapping, weight, bias)
            for part in [chunk.part for chunk in ctx.chunks if not chunk.narrow]:
                scores, _, state = problem.solve(hidden[part], target[part])
                total.add(problem, part, scores, state, target[part], rows[part], hidden)
        if entries is not None and any(chunk.narrow for chunk in ctx.chunks):
            total.gather(entries, hidden, weight)
        return (*total.results(hidden, weight, bias), None, None, None)


def _differentiable(
    mapping: AbstractMapping,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    rows: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients in hidden, weight and bias, which can be differentiated again."""
    y = mapping(functional.linear(hidden, weight, bias)).to(rows.dtype)
    grad = ((y - torch.zeros_like(y).scatter(1, target, 1.0)) * rows).to(hidden.dtype)
    return grad @ weight, grad.T @ hidden, None if bias is None else grad.sum(0)
