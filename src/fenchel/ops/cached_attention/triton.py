"""Cached attention on a GPU: six kernels, which nothing on the host waits for."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._triton.launcher import launcher
from ..attention.triton_dense import tolerance
from ..attention.triton_problem import Problem
from .sizes import PAGE, num_pages
from .triton_pages import page_bounds_kernel, page_list_kernel, page_scores_kernel
from .triton_weights import page_output_kernel, page_threshold_kernel, page_values_kernel


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_2(n: int) -> int:
    """The next one; Triton's own function takes the host ten times as long."""
    return 1 << (n - 1).bit_length()


class Plan(NamedTuple):
    """How the work is cut. The kernels have (warps, stages)."""

    min_pages: int = 32
    """With fewer pages all of them are read, without bounds."""
    max_seeds: int = 8
    """Pages that are read for a first threshold, at most."""
    max_scores: int = 2**26
    """Scores that are stored at a time; more sequences wait."""
    programs: int = 1056
    """At least so many programs read keys, if there are so many pages."""
    per_program: int = 16
    """Pages that a program reads, at most, if there are programs enough."""
    bound_pages: int = 32
    list_pages: int = 64
    threshold_pages: int = 32
    chunk_pages: int = 16
    value_keys: int = 64
    bounds: tuple[int, int] = (4, 2)
    lists: tuple[int, int] = (8, 1)
    scores: tuple[int, int] = (4, 3)
    threshold: tuple[int, int] = (4, 2)
    values: tuple[int, int] = (4, 2)
    output: tuple[int, int] = (4, 2)


def choose_plan(problem: Problem, block: int) -> Plan:
    """The plan for blocks of so many queries; wide ones need more registers."""
    plan = Plan()
    if block > 16:
        plan = plan._replace(bounds=(8, 2), scores=(8, 3), values=(8, 2), value_keys=32)
    if problem.query.dtype.itemsize == 4:
        plan = plan._replace(
            bounds=(8, 2), bound_pages=16, lists=(16, 1), list_pages=32, value_keys=32
        )
        plan = plan if block == 16 else plan._replace(scores=(16, 3))
    return plan


def _launch(
    problem: Problem, kernel: Any, shape: tuple[int, int], programs: int, *arguments: Any,
    **constants: Any,
) -> None:  # fmt: skip
    of = {name: x for name, x in problem.constants.items() if name in kernel.arg_names}
    warps, stages = shape
    launcher(kernel, **of, **constants, num_warps=warps, num_stages=stages)((programs,), *arguments)


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, starts: Tensor, stops: Tensor,
    diagonal: Tensor, alpha: float | Tensor, gamma: float | Tensor, scale: float | Tensor,
    slopes: Tensor | None, sinks: Tensor | None, softcap: float, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (B, H, T, E), and how many pages of keys it read, (B, G)."""
    batch, heads, queries, _ = query.shape
    groups, keys, value_width = value.shape[1:]
    output = query.new_empty((batch, heads, queries, value_width))
    pages = torch.empty((batch, groups), dtype=torch.int32, device=query.device)
    of_one = heads * queries * num_pages(keys) * PAGE
    if not output.numel() or not keys:
        return output.zero_(), pages.zero_()
    size = max(1, (plan or Plan()).max_scores // of_one)
    for first in range(0, batch, size):
        part = slice(first, first + size)

        def some(x: Any, part: slice = part) -> Any:
            return x[part] if isinstance(x, Tensor) and x.shape[0] == batch > size else x

        given = (query, key, value, starts, stops, diagonal, alpha, gamma, scale, slopes, sinks)
        arguments = [some(x) for x in given]
        problem = Problem(*arguments, None, None, softcap, 0.0)
        bounds_here = bounds if batch <= size else bounds[:, part]
        _attend(problem, bounds_here, output[part], pages[part], plan)
    return output, pages


def _attend(
    problem: Problem, bounds: Tensor, output: Tensor, pages: Tensor, plan: Plan | None
) -> None:
    query, key, value = problem.vectors
    batch, heads, groups, queries = problem.batch, problem.heads, problem.groups, problem.queries
    device, n = query.device, batch * heads * queries
    P, shared = num_pages(problem.keys), heads // groups * queries
    block = max(16, _power_of_2(shared))
    plan = plan or choose_plan(problem, block)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    starts, stops, diagonal, rows = problem.pointers[:4]
    alpha, gamma, scale, softcap, _ = problem.numbers
    numbers = (alpha, gamma, scale)
    intervals = (starts, stops, diagonal)
    strides = [0 if x.shape[0] == 1 else x.stride(0) for x in intervals]
    counts = (heads, groups, queries)
    of_query, of_key = query.stride()[:3], key.stride()[:3]
    within = tolerance(query.dtype)
    edge = bool(problem.keys % PAGE)
    scores, peaks = empty(n, P * PAGE), empty(n, P)
    lists = None
    if plan.min_pages <= P:
        lists = empty(batch * groups, P, dtype=torch.int32)
        _launch(
            problem, page_bounds_kernel, plan.bounds,
            batch * groups * _ceil(P, plan.bound_pages),
            query, bounds, *intervals, rows, peaks, *numbers, softcap, *counts, P, n, *of_query,
            *bounds.stride()[:4], *strides, BM=block, BP=plan.bound_pages,
        )  # fmt: skip
        _launch(
            problem, page_list_kernel, plan.lists, batch * groups,
            query, key, *intervals, rows, peaks, lists, pages, *numbers, softcap, *counts,
            problem.keys, P, n, *of_query, *of_key, *strides, min(shared, plan.max_seeds),
            TOLERANCE=within, EDGE=edge, BM=block, BP=plan.list_pages,
            BS=min(1024, max(16, _power_of_2(P))),
        )  # fmt: skip
    else:
        pages.fill_(P)
    splits = max(_ceil(P, plan.per_program), _ceil(plan.programs, batch * groups))
    splits = min(P, splits)
    _launch(
        problem, page_scores_kernel, plan.scores, batch * groups * splits,
        query, key, *intervals, rows, lists, pages, scores, peaks, *numbers, softcap, *counts,
        problem.keys, P, n, *of_query, *of_key, *strides, splits, EDGE=edge, BM=block,
    )  # fmt: skip
    state = empty(3, n)
    _launch(
        problem, page_threshold_kernel, plan.threshold, n,
        scores, peaks, rows, empty(n, P, dtype=torch.int32), state, *numbers, problem.keys, P, n,
        TOLERANCE=within, BP=min(1024, max(16, _power_of_2(P))),
        NP=min(plan.threshold_pages, _power_of_2(P)),
    )  # fmt: skip
    size = min(plan.chunk_pages, _power_of_2(P))
    chunks = _ceil(P, size)
    parts, totals = empty(n, chunks, problem.value_width), empty(n, chunks)
    _launch(
        problem, page_values_kernel, plan.values, batch * groups * chunks,
        scores, peaks, value, rows, state, empty(batch * groups, P * PAGE, dtype=torch.int32),
        parts, totals, *numbers, *counts, P, n, *value.stride()[:3], BM=block, BN=plan.value_keys,
        CHUNK=size,
    )  # fmt: skip
    _launch(
        problem, page_output_kernel, plan.output, n,
        parts, totals, rows, state, output, *numbers, chunks, n, BC=8,
    )  # fmt: skip
