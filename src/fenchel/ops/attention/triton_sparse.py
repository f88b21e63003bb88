"""Fused attention by candidates: dense tiles find the keys that can have weight, and the rest is
done for these alone.

A block of queries with too many candidates, or with scores that are not finite, is done by dense
tiles. Kernels decide that on the device, so nothing waits for the host.
"""

import torch
import triton
from torch import Tensor

from .._triton.launcher import Launches, launcher
from .sizes import BLOCK, GROUP, Kept
from .triton_candidates import bound_kernel, mark_kernel, norm_kernel
from .triton_dense import (
    dense_backward_keys,
    dense_backward_queries,
    dense_forward,
    near_rows,
    new_means,
    tolerance,
)
from .triton_keys import keys_backward_kernel
from .triton_lists import choose_kernel, count_kernel, list_kernel, list_queries_kernel
from .triton_plan import Plan
from .triton_problem import Problem
from .triton_rows import rows_backward_kernel, rows_forward_kernel
from .triton_threshold import ANY, FAST

KEYS = 32
"""Keys that share a list of queries."""
TILE = 128
"""Keys of a tile of scores."""
NORM_KEYS = 64
"""Keys that have their largest norm found together."""


def _words(problem: Problem) -> int:
    """Words of marks for each group of queries."""
    return triton.cdiv(problem.keys, TILE) * TILE // 32


def _heads_at_a_time(words: int, heads: int, step: int, plan: Plan) -> range:
    """Where each turn begins, so that what one needs takes bounded memory."""
    fitting = max(1, plan.bytes // (4 * words) // step) * step
    turns = triton.cdiv(heads, fitting)
    return range(0, heads, triton.cdiv(heads // step, turns) * step)


def _bound(
    launches: Launches, problem: Problem, state: Tensor, limit: Tensor, unfit: Tensor, plan: Plan
) -> None:
    blocks = triton.cdiv(problem.keys, NORM_KEYS)
    norms = limit.new_empty((problem.batch * problem.groups, blocks))
    widths = {name: problem.constants[name] for name in ("D", "E", "BD", "BE")}
    launches.add(
        launcher(norm_kernel, **widths, BN=NORM_KEYS, num_warps=4),
        (blocks, problem.batch * problem.groups), problem.key, problem.value, norms,
        problem.groups, problem.keys, *problem.key.stride()[:3], *problem.value.stride()[:3],
    )  # fmt: skip
    kind = problem.constants["KIND"]
    kind = FAST.value if kind == ANY.value else kind  # a bound has some slack
    launches.add(
        problem.launcher(
            bound_kernel, **plan.bound.options(), BM=plan.bound.size, BN=TILE, R=GROUP,
            NORMS=min(triton.next_power_of_2(blocks), 1024), STEPS=3, WIDE=plan.wide, KIND=kind,
        ),
        (triton.cdiv(problem.queries, plan.bound.size) * problem.all_heads,), *problem.vectors,
        *problem.pointers, norms, state, limit, unfit, *problem.numbers, *problem.sizes, blocks,
    )  # fmt: skip


def _mark(
    launches: Launches, problem: Problem, limit: Tensor, unfit: Tensor, lists: Kept, plan: Plan
) -> None:
    groups, words = triton.cdiv(problem.queries, GROUP), _words(problem)
    turns = _heads_at_a_time(groups * words, problem.all_heads, 1, plan)
    bits = unfit.new_empty(turns.step * groups * words)
    starts, stops = problem.pointers[:2]
    for first in turns:
        heads = min(turns.step, problem.all_heads - first)
        launches.add(
            problem.launcher(
                mark_kernel, **plan.mark.options(), BM=plan.mark.size, BN=TILE, R=GROUP
            ),
            (triton.cdiv(problem.queries, plan.mark.size) * heads,), *problem.vectors,
            *problem.pointers, limit, unfit, bits, *problem.numbers, *problem.sizes, first, words,
        )  # fmt: skip
        launches.add(
            launcher(list_kernel, R=GROUP, W=plan.words, num_warps=1),
            (groups, heads), bits, lists.candidates, lists.counts, unfit, starts, stops,
            problem.heads, problem.queries, *problem.batch_strides, groups, words, first, plan.cap,
        )  # fmt: skip


def sparse_forward(
    launches: Launches, problem: Problem, output: Tensor, tau: Tensor, lists: Kept, keep: bool,
    plan: Plan,
) -> None:  # fmt: skip
    """Writes output and thresholds, and if asked to, all that the backward pass needs."""
    state = lists.rows
    limit, unfit = torch.empty_like(tau), torch.empty_like(lists.counts)
    _bound(launches, problem, state, limit, unfit, plan)
    _mark(launches, problem, limit, unfit, lists, plan)
    launches.add(
        launcher(choose_kernel, R=GROUP, BM=BLOCK, W=64, num_warps=4),
        (problem.batch * problem.groups,), lists.counts, lists.dense, lists.whole, problem.heads,
        problem.groups, problem.queries, plan.cap,
    )  # fmt: skip
    groups = triton.cdiv(problem.queries, GROUP) * problem.all_heads
    least = 0
    for program, tiles, many in plan.rows:
        launches.add(
            problem.launcher(
                rows_forward_kernel, **program.options(), R=GROUP, C=program.size, NC=tiles,
                MANY=many, TOLERANCE=tolerance(output.dtype), KIND=problem.half_kind, KEEP=keep,
            ),
            (triton.cdiv(groups, many),), *problem.vectors, *problem.pointers, lists.candidates,
            lists.counts, output, tau, state, lists.means, *problem.numbers, *problem.sizes,
            plan.cap, least,
        )  # fmt: skip
        least = program.size * tiles + 1
    near_rows(launches, problem, state, lists)
    means = lists.means if keep else None
    dense_forward(launches, problem, output, tau, state, lists, means)


def sparse_backward(
    launches: Launches, problem: Problem, grad: Tensor, output: Tensor, lists: Kept,
    query_grad: Tensor, key_grad: Tensor, value_grad: Tensor, rows: Tensor, needs: int, plan: Plan,
) -> None:  # fmt: skip
    """Writes all gradients. A part of the launches is run, as their buffers are used again."""
    state, kind = lists.rows, problem.half_kind
    mean = new_means(problem)
    dense_backward_queries(
        launches, problem, grad, output, state, mean, query_grad, rows, needs, lists
    )
    whole = lists.whole.clone()
    blocks, words = triton.cdiv(problem.keys, KEYS), triton.cdiv(problem.queries, 32)
    share, room = problem.heads // problem.groups, plan.pairs * problem.queries
    turns = _heads_at_a_time(blocks * words + room, problem.all_heads, share, plan)
    bits = lists.counts.new_empty(turns.step * blocks * words)
    listed = lists.counts.new_empty(turns.step * room)
    counts, ends = lists.counts.new_empty((2, turns.step * blocks)).unbind()
    arguments = (*problem.vectors, *problem.pointers, grad, state)
    sizes = (*problem.sizes, *grad.stride()[:3])
    for first in turns:
        heads = min(turns.step, problem.all_heads - first)
        bits.zero_()
        launches.add(
            problem.launcher(
                rows_backward_kernel, **plan.back.options(),
                NEEDS=needs, R=GROUP, C=plan.back.size, RK=KEYS, KIND=kind,
            ),
            (triton.cdiv(problem.queries, GROUP) * heads,), *arguments, output, lists.candidates,
            lists.counts, lists.means, mean, query_grad, rows, bits, *problem.numbers, *sizes,
            plan.cap, words, blocks, first,
        )  # fmt: skip
        launches.add(
            launcher(count_kernel, W=128, num_warps=1),
            (blocks * heads,), bits, counts, words,
        )  # fmt: skip
        launches.add(
            launcher(list_queries_kernel, W=plan.words, BW=plan.words, num_warps=1),
            (blocks, heads), bits, counts, listed, ends, whole, blocks, words, room, first, share,
        )  # fmt: skip
        launches.add(
            problem.launcher(
                keys_backward_kernel, **plan.keys.options(), RK=KEYS, C=plan.keys.size, KIND=kind
            ),
            (blocks * heads // share,), *arguments, mean, listed, counts, ends, whole, key_grad,
            value_grad, *problem.numbers, *sizes, room, first,
        )  # fmt: skip
        launches.run()
    dense_backward_keys(launches, problem, grad, state, mean, key_grad, value_grad, whole)
