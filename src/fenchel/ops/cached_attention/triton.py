"""Cached attention on a GPU: six kernels, which nothing on the host waits for."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._triton import recorder
from .._triton.launcher import Launched, Launcher, Launches, launcher
from .._triton.program import Programs, signature
from ..attention.triton_dense import tolerance
from ..attention.triton_problem import Problem, power_of_two
from .sizes import PAGE, num_pages
from .triton_pages import page_bounds_kernel, page_list_kernel, page_scores_kernel
from .triton_weights import page_output_kernel, page_threshold_kernel, page_values_kernel


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


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
    per_program: int = 8
    """Pages that a program reads, at most, if there are programs enough."""
    bound_pages: int = 32
    list_pages: int = 256
    threshold_pages: int = 64
    chunk_pages: int = 16
    value_keys: int = 32
    """At most a page."""
    bounds: tuple[int, int] = (4, 2)
    lists: tuple[int, int] = (8, 1)
    scores: tuple[int, int] = (4, 3)
    threshold: tuple[int, int] = (8, 2)
    values: tuple[int, int] = (4, 4)
    output: tuple[int, int] = (4, 2)


def choose_plan(problem: Problem, block: int) -> Plan:
    """The plan for blocks of so many queries; wide ones need more registers."""
    plan = Plan()
    if num_pages(problem.keys) <= 512:
        plan = plan._replace(threshold_pages=16, threshold=(4, 2))
    if block > 16:
        plan = plan._replace(bounds=(8, 2), scores=(8, 3), values=(8, 2), list_pages=64)
    if problem.query.dtype.itemsize == 4:
        plan = plan._replace(bounds=(8, 2), bound_pages=16, lists=(16, 1), list_pages=32)
        plan = plan._replace(values=(4, 2)) if block == 16 else plan._replace(scores=(16, 3))
    return plan


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
    if num_pages(keys) < (plan or Plan()).min_pages:
        pages.fill_(num_pages(keys))
    given = (query, key, value, starts, stops, diagonal, alpha, gamma, scale, slopes, sinks)
    size = max(1, (plan or Plan()).max_scores // of_one)
    if batch <= size:
        _at_once(given, softcap, bounds, output, pages, plan)
        return output, pages
    for first in range(0, batch, size):
        part = slice(first, first + size)
        some = [x[part] if isinstance(x, Tensor) and len(x) == batch else x for x in given]
        problem = Problem(*some, None, None, softcap, 0.0)
        _attend(problem, bounds[:, part], output[part], pages[part], plan)
    return output, pages


_PROGRAMS = Programs()


def _at_once(
    given: tuple, softcap: float, bounds: Tensor, output: Tensor, pages: Tensor, plan: Plan | None
) -> None:
    """All sequences by the same launches. Calls that differ only in their tensors repeat those of
    the first: layers of a model have the same sizes, and a call of Python for each kernel would
    take longer than the kernels."""
    query, key, value, starts, stops, diagonal, *numbers = given
    is_plain = plan is None and not any(isinstance(x, Tensor) for x in numbers)
    if not is_plain or recorder.active() is not None:
        _attend(Problem(*given, None, None, softcap, 0.0), bounds, output, pages, plan)
        return
    tensors = (query, key, value, bounds, starts, stops, diagonal, output, pages)
    of_tensors, addresses = signature(tensors)
    device = query.get_device()
    sizes = (device, *numbers, softcap, of_tensors)
    program = _PROGRAMS.get(sizes)
    if program is None:
        problem = Problem(*given, None, None, softcap, 0.0)
        launched, buffer = _attend(problem, bounds, output, pages, plan)
        _PROGRAMS.keep(sizes, launched, addresses, buffer)
        return
    buffer = torch.empty(program.buffer_size, dtype=torch.int32, device=query.device)
    program(device, addresses, buffer)


class _Launchers(NamedTuple):
    """The kernels in their order."""

    bounds: Launcher
    lists: Launcher
    scores: Launcher
    threshold: Launcher
    values: Launcher
    output: Launcher


@lru_cache(maxsize=256)
def _launchers(
    constants: tuple[tuple[str, int], ...], plan: Plan, within: float, edge: bool, rows: int,
    pages: int,
) -> _Launchers:  # fmt: skip
    """For up to so many rows and pages, powers of two."""
    block = max(16, rows)

    def one(kernel: Any, shape: tuple[int, int], **own: Any) -> Launcher:
        of = {name: x for name, x in constants if name in kernel.arg_names}
        return launcher(kernel, **of, **own, num_warps=shape[0], num_stages=shape[1])

    row = min(1024, max(16, pages))
    return _Launchers(
        one(page_bounds_kernel, plan.bounds, BM=block, BP=plan.bound_pages),
        one(
            page_list_kernel, plan.lists, TOLERANCE=within, EDGE=edge, BM=block,
            BP=plan.list_pages, BS=row,
        ),
        one(page_scores_kernel, plan.scores, EDGE=edge, BM=block),
        one(
            page_threshold_kernel, plan.threshold, TOLERANCE=within, BP=row,
            NP=min(plan.threshold_pages, pages),
        ),
        one(
            page_values_kernel, plan.values, BM=rows, BN=plan.value_keys,
            CHUNK=min(plan.chunk_pages, pages),
        ),
        one(page_output_kernel, plan.output, BC=8),
    )  # fmt: skip


def _buffer(device: torch.device, floats: list[int], integers: list[int]) -> tuple:
    """Memory, and its parts of these sizes or a bit more, each from a multiple of 16 bytes on."""
    floats, integers = ([_ceil(size, 4) * 4 for size in sizes] for sizes in (floats, integers))
    buffer = torch.empty(sum(floats) + sum(integers), dtype=torch.int32, device=device)
    first, second = buffer.split([sum(floats), sum(integers)])
    return buffer, first.view(torch.float32).split(floats), second.split(integers)


def _attend(
    problem: Problem, bounds: Tensor, output: Tensor, pages: Tensor, plan: Plan | None
) -> tuple[list[Launched], Tensor]:
    """What was launched, and the memory that it worked in."""
    query, key, value = problem.vectors
    heads, groups, queries = problem.heads, problem.groups, problem.queries
    all_groups, n = problem.batch * groups, problem.batch * heads * queries
    P, shared = num_pages(problem.keys), heads // groups * queries
    block, up_to = power_of_two(shared), power_of_two(P, 1)
    plan = plan or choose_plan(problem, block)
    launchers = _launchers(
        tuple(problem.constants.items()), plan, tolerance(query.dtype), bool(problem.keys % PAGE),
        power_of_two(shared, 8), up_to,
    )  # fmt: skip
    chunks = _ceil(P, min(plan.chunk_pages, up_to))
    buffer, floats, integers = _buffer(
        query.device,
        [n * P * PAGE, n * P, 3 * n, n * chunks * problem.value_width, n * chunks],
        [all_groups * P, n * P, all_groups * P * PAGE],
    )
    scores, peaks, state, parts, totals = floats
    lists, own_lists, marked = integers
    launches = Launches()

    starts, stops, diagonal, rows = problem.pointers[:4]
    alpha, gamma, scale, softcap, _ = problem.numbers
    numbers, counts = (alpha, gamma, scale), (heads, groups, queries)
    intervals = (starts, stops, diagonal)
    strides = [0 if x.shape[0] == 1 else x.stride(0) for x in intervals]
    of_query, of_key = query.stride()[:3], key.stride()[:3]
    if plan.min_pages <= P:
        launches.add(
            launchers.bounds, (all_groups * _ceil(P, plan.bound_pages),),
            query, bounds, *intervals, rows, peaks, *numbers, softcap, *counts, P, n, *of_query,
            *bounds.stride()[:4], *strides,
        )  # fmt: skip
        launches.add(
            launchers.lists, (all_groups,),
            query, key, *intervals, rows, peaks, lists, pages, *numbers, softcap, *counts,
            problem.keys, P, n, *of_query, *of_key, *strides, min(shared, plan.max_seeds),
        )  # fmt: skip
    splits = min(P, max(_ceil(P, plan.per_program), _ceil(plan.programs, all_groups)))
    launches.add(
        launchers.scores, (all_groups * splits,),
        query, key, *intervals, rows, lists if plan.min_pages <= P else None, pages, scores, peaks,
        *numbers, softcap, *counts, problem.keys, P, n, *of_query, *of_key, *strides, splits,
    )  # fmt: skip
    launches.add(
        launchers.threshold, (n,),
        scores, peaks, rows, own_lists, state, *numbers, problem.keys, P, n,
    )  # fmt: skip
    launches.add(
        launchers.values, (all_groups * chunks,),
        scores, peaks, value, rows, state, marked, parts, totals, *numbers, *counts, problem.keys,
        P, n, *value.stride()[:3],
    )  # fmt: skip
    launches.add(
        launchers.output, (n,), parts, totals, rows, state, output, *numbers, chunks, n,
    )  # fmt: skip
    return launches.run(), buffer
