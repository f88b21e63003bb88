"""Fused attention by dense tiles: all scores that a query sees are computed in every pass.

The functions add their launches to others.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .._triton.launcher import Launches
from .sizes import Kept
from .triton_backward import attention_backward_query_kernel
from .triton_backward_keys import attention_backward_key_kernel
from .triton_forward import attention_forward_kernel
from .triton_near import near_kernel
from .triton_problem import Problem
from .triton_scores import PER_ROW
from .triton_threshold import ANY, FAST, NARROW


class Tiles(NamedTuple):
    """How many queries and keys a tile has, and how many warps, stages and registers a program."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        options = {"BM": self.queries, "BN": self.keys}
        options |= {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else options | {"maxnreg": self.registers}


_TILES = {
    "near": {
        2: {64: Tiles(64, 64, 4, 3, 128), 128: Tiles(64, 64, 4, 2), 256: Tiles(64, 64, 4, 2)},
        4: {64: Tiles(64, 32, 8, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(32, 32, 16, 2)},
    },
    "forward": {
        2: {64: Tiles(64, 64, 4, 3), 128: Tiles(128, 64, 8, 2), 256: Tiles(64, 32, 4, 2)},
        4: {64: Tiles(64, 32, 8, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(32, 32, 16, 2)},
    },
    "query": {
        2: {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 32, 4, 2), 256: Tiles(64, 32, 8, 1)},
        4: {64: Tiles(32, 32, 4, 1), 128: Tiles(32, 32, 8, 1), 256: Tiles(32, 16, 8, 1)},
    },
    "key": {
        2: {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 8, 2), 256: Tiles(32, 64, 8, 1)},
        4: {64: Tiles(32, 32, 4, 1), 128: Tiles(32, 32, 8, 1), 256: Tiles(32, 16, 8, 1)},
    },
}
"""For each kernel, by the bytes of an entry and the widest head."""


class Variant(NamedTuple):
    """A kernel for the blocks of a class, or for all of them if it is 0."""

    block_class: int
    kind: int
    is_started: bool
    """Whether `bound_kernel` found a threshold to start from."""


def variants(problem: Problem, has_flags: bool) -> Iterator[Variant]:
    """The kernels that do all dense blocks. With parameters of the rows a second one does those
    that a bound does not suit, as flags tell."""
    kind = problem.constants["KIND"]
    if not has_flags:
        yield Variant(0, kind, False)
    elif problem.constants["FEATURES"] & PER_ROW.value:
        yield Variant(1, problem.half_kind, True)
        yield Variant(2, kind, False)
    else:
        alpha, _, scale, *_ = problem.numbers
        is_plain = NARROW.value <= alpha <= 2 and scale > 0
        yield Variant(0, problem.half_kind if is_plain else kind, is_plain)


PROGRAMS, MAX_EACH = 512, 8
"""Programs that look for dense blocks: from so many on each has several blocks, up to MAX_EACH."""


def _grid(blocks: int, flags: Tensor | None) -> tuple[int]:
    each = 1 if flags is None else min(max(blocks // PROGRAMS, 1), MAX_EACH)
    return (triton.cdiv(blocks, each),)


def choose_tiles(kernel: str, problem: Problem, kind: int) -> Tiles:
    """The tiles of the kernel of that name; with features it takes any registers."""
    width = max(64, triton.next_power_of_2(problem.widest))
    tiles = _TILES[kernel][problem.query.dtype.itemsize][width]
    if problem.constants["FEATURES"] or kind == ANY.value:
        return tiles._replace(registers=None)
    return tiles


def tolerance(dtype: torch.dtype) -> float:
    """How far a sum of weights may be from 1 before it is divided by itself: so little that outputs
    are rounded as if it were exact, but for a few in a thousand."""
    return {torch.float32: 2.0**-22, torch.float16: 2.0**-21}.get(dtype, 2.0**-18)


def near_rows(launches: Launches, problem: Problem, state: Tensor, lists: Kept) -> None:
    """Moves the thresholds of dense blocks that `bound_kernel` started near to their ends."""
    of = choose_tiles("near", problem, 0)
    blocks = triton.cdiv(problem.queries, of.queries) * problem.all_heads
    for block_class, kind, is_started in variants(problem, True):
        if is_started:
            launches.add(
                problem.launcher(
                    near_kernel, **of.options(), CLASS=block_class,
                    KIND=FAST.value if kind == ANY.value else kind,
                ),
                _grid(blocks, lists.dense), *problem.vectors, *problem.pointers, state, lists.dense,
                lists.whole, *problem.numbers, *problem.sizes,
            )  # fmt: skip


def dense_forward(
    launches: Launches, problem: Problem, output: Tensor, tau: Tensor, state: Tensor,
    lists: Kept | None = None, means: Tensor | None = None, tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """Output, thresholds and states, and means if there is room for them; with lists only of the
    blocks that are dense."""
    dense, whole = (None, None) if lists is None else (lists.dense, lists.whole)
    for block_class, kind, is_started in variants(problem, lists is not None):
        of = tiles or choose_tiles("forward", problem, kind)
        blocks = triton.cdiv(problem.queries, of.queries) * problem.all_heads
        launches.add(
            problem.launcher(
                attention_forward_kernel, **of.options(), TOLERANCE=tolerance(output.dtype),
                KIND=kind, CLASS=block_class, STARTED=is_started,
            ),
            _grid(blocks, dense), *problem.vectors, *problem.pointers, output, tau, state, means,
            dense, whole, *problem.numbers, *problem.sizes,
        )  # fmt: skip


def new_means(problem: Problem) -> Tensor:
    """Room for Σ w dp / Σ w of each query. Of any α it is the sum of two numbers, and a third says
    of which key the first is dp, see `triton_backward`; lists leave zeros in the second."""
    shape = problem.query.shape[:-1]
    if problem.constants["KIND"] != ANY.value:
        return problem.query.new_empty(shape, dtype=torch.float32)
    means = problem.query.new_zeros((3, *shape), dtype=torch.float32)
    means[2].view(torch.int32).fill_(-1)
    return means


def dense_backward_queries(
    launches: Launches, problem: Problem, grad: Tensor, output: Tensor, state: Tensor,
    mean: Tensor, query_grad: Tensor, rows: Tensor, needs: int, lists: Kept | None = None,
    tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """The gradients of the queries and of their parameters, and the means Σ w dp / Σ w; with lists
    only of the blocks that are dense. The means of values that these have are near enough for half
    precision."""
    dense, whole = (None, None) if lists is None else (lists.dense, lists.whole)
    is_half = problem.query.dtype != torch.float32
    means = lists.means if lists is not None and is_half else None
    for block_class, kind, _ in variants(problem, lists is not None):
        of = tiles or choose_tiles("query", problem, kind)
        blocks = triton.cdiv(problem.queries, of.queries) * problem.all_heads
        launches.add(
            problem.launcher(
                attention_backward_query_kernel, **of.options(),
                NEEDS=needs, KIND=kind, CLASS=block_class,
            ),
            _grid(blocks, dense), *problem.vectors, *problem.pointers, grad, state, output,
            None if kind == ANY.value else means, mean, query_grad, rows, dense, whole,
            *problem.numbers, *problem.sizes, *grad.stride()[:3],
        )  # fmt: skip


def dense_backward_keys(
    launches: Launches, problem: Problem, grad: Tensor, state: Tensor, mean: Tensor,
    key_grad: Tensor, value_grad: Tensor, whole: Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """The gradients of keys and values, with flags only of groups that are dense."""
    for block_class, kind, _ in variants(problem, whole is not None):
        of = tiles or choose_tiles("key", problem, kind)
        blocks = triton.cdiv(problem.keys, of.keys) * problem.batch * problem.groups
        launches.add(
            problem.launcher(
                attention_backward_key_kernel, **of.options(), KIND=kind, CLASS=block_class
            ),
            _grid(blocks, whole), *problem.vectors, *problem.pointers, grad, state, mean,
            key_grad, value_grad, whole, *problem.numbers, *problem.sizes, *grad.stride()[:3],
        )  # fmt: skip
