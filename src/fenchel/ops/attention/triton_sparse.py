"""Fused attention by candidates: dense tiles find the keys that can have weight, and the rest is
done for these alone.

A block of queries with too many candidates, or with scores that are not finite, is done by dense
tiles. Kernels decide that on the device, so nothing waits for the host.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .._triton.launcher import launcher
from .sizes import BLOCK, CAP, GROUP, Kept
from .triton_candidates import (
    bound_kernel,
    choose_kernel,
    list_kernel,
    mark_kernel,
    norm_kernel,
)
from .triton_dense import (
    dense_backward_keys,
    dense_backward_queries,
    dense_forward,
    tolerance,
)
from .triton_keys import keys_backward_kernel
from .triton_problem import Problem
from .triton_rows import rows_backward_kernel, rows_forward_kernel
from .triton_threshold import ANY, FAST

KEYS = 32
"""Keys that share a list of queries."""
TILE = 128
"""Keys of a tile of scores."""


class Plan(NamedTuple):
    """Sizes of lists, of tiles, and warps and stages of the kernels."""

    cap: int = CAP
    """Candidates of a group, at most."""
    key_cap: int = 4096
    """Listed queries of a block of keys, at most."""
    bytes: int = 2**27
    """Of marks at a time."""
    bound: tuple[int, int, int] = (64, 4, 3)
    mark: tuple[int, int, int] = (64, 4, 3)
    rows: tuple[tuple[int, int, int], ...] = ((64, 4, 2), (64, 8, 2), (128, 8, 4))
    """Candidates in a tile, tiles and warps, of lists of different lengths."""
    back: tuple[int, int, int] = (64, 2, 2)
    keys: tuple[int, int, int] = (64, 4, 2)
    words: int = 128


def _words(problem: Problem) -> int:
    """Words of marks for each group of queries."""
    return triton.cdiv(problem.keys, TILE) * TILE // 32


def _heads_at_a_time(words: int, heads: int, step: int, plan: Plan) -> range:
    """Where each turn begins, so that the marks of one take bounded memory."""
    fitting = max(1, plan.bytes // (4 * words) // step) * step
    return range(0, heads, min(fitting, heads))


def _bound(problem: Problem, state: Tensor, limit: Tensor, unfit: Tensor, plan: Plan) -> None:
    blocks = triton.cdiv(problem.keys, 256)
    norms = limit.new_empty((problem.batch * problem.groups, blocks))
    constants = problem.constants
    launcher(norm_kernel, D=constants["D"], BD=constants["BD"], BN=256, num_warps=4)(
        (blocks, problem.batch * problem.groups), problem.key, norms, problem.groups, problem.keys,
        *problem.key.stride()[:3],
    )  # fmt: skip
    queries, warps, stages = plan.bound
    kind = problem.constants["KIND"]
    kind = FAST.value if kind == ANY.value else kind  # a bound has some slack
    problem.launcher(
        bound_kernel, num_warps=warps, num_stages=stages, BM=queries, BN=TILE, R=GROUP,
        NORMS=triton.next_power_of_2(blocks), STEPS=4, KIND=kind,
    )(
        (triton.cdiv(problem.queries, queries) * problem.all_heads,), *problem.vectors,
        *problem.pointers, norms, state, limit, unfit, *problem.numbers, *problem.sizes, blocks,
    )  # fmt: skip


def _mark(problem: Problem, limit: Tensor, unfit: Tensor, lists: Kept, plan: Plan) -> None:
    groups, words = triton.cdiv(problem.queries, GROUP), _words(problem)
    turns = _heads_at_a_time(groups * words, problem.all_heads, 1, plan)
    bits = unfit.new_empty(turns.step * groups * words)
    queries, warps, stages = plan.mark
    starts, stops = problem.pointers[:2]
    for first in turns:
        heads = min(turns.step, problem.all_heads - first)
        problem.launcher(
            mark_kernel, num_warps=warps, num_stages=stages,
            BM=queries, BN=TILE, R=GROUP, SLOTS=4,
        )(
            (triton.cdiv(problem.queries, queries) * heads,), *problem.vectors, *problem.pointers,
            limit, bits, *problem.numbers, *problem.sizes, first, words,
        )  # fmt: skip
        launcher(list_kernel, FOR_KEYS=0, R=GROUP, W=plan.words, num_warps=1)(
            (groups, heads), bits, lists.candidates, lists.counts, unfit, starts, stops,
            problem.heads, problem.queries, *problem.batch_strides, groups, words, first, plan.cap,
        )  # fmt: skip


def sparse_forward(problem: Problem, output: Tensor, tau: Tensor, lists: Kept, plan: Plan) -> None:
    """Writes output and thresholds, and what the backward pass needs."""
    state = lists.rows
    limit, unfit = torch.empty_like(tau), torch.empty_like(lists.counts)
    _bound(problem, state, limit, unfit, plan)
    _mark(problem, limit, unfit, lists, plan)
    launcher(choose_kernel, R=GROUP, BM=BLOCK, W=64, num_warps=4)(
        (problem.batch * problem.groups,), lists.counts, lists.dense, lists.dense_counts,
        lists.whole, problem.heads, problem.groups, problem.queries, plan.cap,
    )  # fmt: skip
    grid = (triton.cdiv(problem.queries, GROUP) * problem.all_heads,)
    least = 0
    for size, tiles, warps in plan.rows:
        problem.launcher(
            rows_forward_kernel, num_warps=warps, num_stages=1,
            R=GROUP, C=size, NC=tiles,
            TOLERANCE=tolerance(output.dtype),
        )(
            grid, *problem.vectors, *problem.pointers, lists.candidates, lists.counts, output, tau,
            state, lists.means, *problem.numbers, *problem.sizes, plan.cap, least,
        )  # fmt: skip
        least = size * tiles + 1
    dense_forward(problem, output, tau, state, lists.dense)


def sparse_backward(
    problem: Problem, grad: Tensor, lists: Kept, query_grad: Tensor, key_grad: Tensor,
    value_grad: Tensor, rows: Tensor, needs: int, plan: Plan,
) -> None:  # fmt: skip
    """Writes all gradients."""
    state = lists.rows
    mean = grad.new_empty(problem.query.shape[:-1], dtype=torch.float32)
    dense_backward_queries(problem, grad, state, mean, query_grad, rows, needs, lists.dense)
    blocks, words = triton.cdiv(problem.keys, KEYS), triton.cdiv(problem.queries, 32)
    share = problem.heads // problem.groups
    turns = _heads_at_a_time(blocks * max(words, plan.key_cap), problem.all_heads, share, plan)
    bits = lists.counts.new_empty(turns.step * blocks * words)
    listed_queries = lists.counts.new_empty(turns.step * blocks * plan.key_cap)
    counts = lists.counts.new_empty(turns.step * blocks)
    arguments = (*problem.vectors, *problem.pointers, grad, state)
    sizes = (*problem.sizes, *grad.stride()[:3])
    starts, stops = problem.pointers[:2]
    for first in turns:
        heads = min(turns.step, problem.all_heads - first)
        bits.zero_()
        size, warps, stages = plan.back
        problem.launcher(
            rows_backward_kernel, num_warps=warps, num_stages=stages,
            NEEDS=needs, R=GROUP, C=size, RK=KEYS,
        )(
            (triton.cdiv(problem.queries, GROUP) * heads,), *arguments, lists.candidates,
            lists.counts, lists.means, mean, query_grad, rows, bits, *problem.numbers, *sizes,
            plan.cap, words, blocks, first,
        )  # fmt: skip
        launcher(list_kernel, FOR_KEYS=1, R=KEYS, W=plan.words, num_warps=1)(
            (blocks, heads), bits, listed_queries, counts, counts, starts, stops, problem.heads,
            problem.queries, *problem.batch_strides, blocks, words, first, plan.key_cap,
        )  # fmt: skip
        size, warps, stages = plan.keys
        for listed in (True, False):
            problem.launcher(
                keys_backward_kernel, num_warps=warps, num_stages=stages, RK=KEYS, C=size,
                BM=BLOCK, LISTED=listed,
            )(
                (blocks * heads // share,), *arguments, mean, bits, listed_queries, counts,
                lists.dense_counts, lists.dense, lists.whole, key_grad, value_grad,
                *problem.numbers, *sizes, plan.key_cap, words, first,
            )  # fmt: skip
    dense_backward_keys(problem, grad, state, mean, key_grad, value_grad, lists.whole)
