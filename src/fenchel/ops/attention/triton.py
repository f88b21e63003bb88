"""Fused attention on a GPU: the operators' kernels, by candidates or by dense tiles."""

from functools import partial

import torch
from torch import Tensor

from .._triton.launcher import Launches
from .sizes import cap_of, kept_parts, kept_size
from .triton_dense import (
    Tiles,
    dense_backward_keys,
    dense_backward_queries,
    dense_forward,
    new_means,
)
from .triton_plan import Plan, choose_plan
from .triton_problem import Problem, contiguous
from .triton_sparse import sparse_backward, sparse_forward


def _cap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, way: Tiles | Plan | None
) -> int:
    """The cap of lists of candidates, 0 for dense tiles."""
    if not isinstance(way, Plan):
        return 0 if isinstance(way, Tiles) else cap_of(query, key, value, mask)
    is_empty = not query.shape[:-1].numel() or not key.shape[:-1].numel()
    return 0 if is_empty or mask is not None else way.cap


def attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, stops: Tensor, diagonal: Tensor,
    alpha: float | Tensor, gamma: float | Tensor, scale: float | Tensor, slopes: Tensor | None,
    sinks: Tensor | None, mask: Tensor | None, seed: Tensor | None, softcap: float,
    dropout: float, keep: bool = True, way: Tiles | Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, E), thresholds (B, H, T), and what the backward pass needs, see `Kept`.

    α, γ and the scale may be numbers; for a number the kernel has less to do. Of each query are
    kept the largest x, what lies between it and the threshold, and what the latter rounds; above
    α = 2 the second is the distance of the smallest score in the support, and the third its weight.
    """
    problem = Problem(
        query, key, value, starts, stops, diagonal, alpha, gamma, scale, slopes, sinks, mask, seed,
        softcap, dropout,
    )  # fmt: skip
    shape = query.shape[:-1]
    output = query.new_empty((*shape, problem.value_width))
    tau = query.new_empty(shape, dtype=torch.float32)
    cap = _cap(query, key, value, mask, way)
    state = query.new_empty(kept_size(query, key, value, cap), dtype=torch.float32)
    launches = Launches()
    if cap:
        kept = kept_parts(state, query, key, value, cap)
        plan = way if isinstance(way, Plan) else choose_plan(problem)
        sparse_forward(launches, problem, output, tau, kept, keep, plan)
    elif shape.numel():
        tiles = way if isinstance(way, Tiles) else None
        dense_forward(launches, problem, output, tau, state, tiles=tiles)
    needs = _needs(alpha, gamma, scale, slopes, sinks)
    backward = partial(
        _backward, problem=problem, grad=output, output=output, state=state, grads=problem.vectors,
        rows=tau, needs=needs, cap=cap, way=way,
    )  # fmt: skip
    launches.run(later=backward if keep else None)
    return output, tau, state


def _needs(*parameters: float | Tensor | None) -> int:
    """The parameters whose gradients will be asked for, as bits."""
    are_needed = [isinstance(x, Tensor) and x.requires_grad for x in parameters]
    return sum(bit << i for i, bit in enumerate(are_needed))


def _backward(
    launches: Launches, problem: Problem, grad: Tensor, output: Tensor, state: Tensor,
    grads: tuple[Tensor, Tensor, Tensor], rows: Tensor, needs: int, cap: int,
    way: Tiles | Plan | None,
) -> None:  # fmt: skip
    """Adds what writes the gradients of query, key and value, and of the rows."""
    query_grad, key_grad, value_grad = grads
    if cap:
        kept = kept_parts(state, *problem.vectors, cap)
        plan = way if isinstance(way, Plan) else choose_plan(problem)
        sparse_backward(
            launches, problem, grad, output, kept, query_grad, key_grad, value_grad, rows, needs,
            plan,
        )  # fmt: skip
        return
    tiles, mean = way if isinstance(way, Tiles) else None, new_means(problem)
    if problem.all_heads * problem.queries:
        dense_backward_queries(
            launches, problem, grad, output, state, mean, query_grad, rows, needs, tiles=tiles
        )
        if problem.groups * problem.keys:
            dense_backward_keys(
                launches, problem, grad, state, mean, key_grad, value_grad, tiles=tiles
            )


def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, stops: Tensor,
    diagonal: Tensor, alpha: float | Tensor, gamma: float | Tensor, scale: float | Tensor,
    slopes: Tensor | None, sinks: Tensor | None, mask: Tensor | None, seed: Tensor | None,
    softcap: float, dropout: float, output: Tensor, tau: Tensor, state: Tensor, needs: int,
    way: Tiles | Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key and value, and of the parameters of the rows, (5, B, H, T).

    Args:
        grad: the gradient of the output.
        output, tau, state: the results of `attention`; the kernels do not need tau.
        needs: bits 0 to 4 ask for the gradients of α, γ, scale, slopes and sinks. Without any of
            them the last result is empty.
    """
    problem = Problem(
        query, key, value, starts, stops, diagonal, alpha, gamma, scale, slopes, sinks, mask, seed,
        softcap, dropout,
    )  # fmt: skip
    shape, grad = query.shape[:-1], contiguous(grad)
    query_grad, key_grad, value_grad = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
    )
    rows = query.new_zeros((5, *shape) if needs & 31 else (0,), dtype=torch.float32)
    needs &= 7 + 8 * (slopes is not None) + 16 * (sinks is not None)
    cap = _cap(query, key, value, mask, way)
    if not shape.numel():
        key_grad.zero_()
        value_grad.zero_()
    launches, grads = Launches(), (query_grad, key_grad, value_grad)
    _backward(launches, problem, grad, output, state, grads, rows, needs, cap, way)
    launches.run()
    return query_grad, key_grad, value_grad, rows
