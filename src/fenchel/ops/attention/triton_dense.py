"""Fused attention by dense tiles: all scores that a query sees are computed in every pass.

The functions add their launches to others.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .._triton.launcher import Launches
from .triton_backward import attention_backward_query_kernel
from .triton_backward_keys import attention_backward_key_kernel
from .triton_forward import attention_forward_kernel
from .triton_problem import Problem
from .triton_threshold import ANY


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
    "forward": {
        2: {64: Tiles(128, 64, 8, 3, 128), 128: Tiles(128, 64, 8, 2), 256: Tiles(64, 32, 4, 2)},
        4: {64: Tiles(64, 32, 8, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(32, 32, 16, 2)},
    },
    "query": {
        2: {64: Tiles(128, 64, 8, 2), 128: Tiles(64, 32, 4, 2), 256: Tiles(64, 32, 8, 1)},
        4: {64: Tiles(32, 32, 4, 1), 128: Tiles(32, 32, 8, 1), 256: Tiles(32, 16, 8, 1)},
    },
    "key": {
        2: {64: Tiles(64, 128, 8, 2), 128: Tiles(32, 128, 8, 2), 256: Tiles(32, 64, 8, 1)},
        4: {64: Tiles(32, 32, 4, 1), 128: Tiles(32, 32, 8, 1), 256: Tiles(32, 16, 8, 1)},
    },
}
"""For each kernel, by the bytes of an entry and the widest head."""


def choose_tiles(kernel: str, problem: Problem) -> Tiles:
    """The tiles of the kernel of that name; with features it takes any registers."""
    width = max(64, triton.next_power_of_2(problem.widest))
    tiles = _TILES[kernel][problem.query.dtype.itemsize][width]
    if problem.constants["FEATURES"] or problem.constants["KIND"] == ANY.value:
        return tiles._replace(registers=None)
    return tiles


def tolerance(dtype: torch.dtype) -> float:
    """How far a sum of weights may be from 1 before it is divided by itself."""
    return 2.0**-22 if dtype == torch.float32 else 2.0**-18


def dense_forward(
    launches: Launches, problem: Problem, output: Tensor, tau: Tensor, state: Tensor,
    dense: Tensor | None = None, tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """Output, thresholds and states, with flags only of the blocks that are dense."""
    of = tiles or choose_tiles("forward", problem)
    grid = (triton.cdiv(problem.queries, of.queries) * problem.all_heads,)
    launches.add(
        problem.launcher(
            attention_forward_kernel, **of.options(), TOLERANCE=tolerance(output.dtype)
        ),
        grid, *problem.vectors, *problem.pointers, output, tau, state, dense, *problem.numbers,
        *problem.sizes,
    )  # fmt: skip


def dense_backward_queries(
    launches: Launches, problem: Problem, grad: Tensor, output: Tensor, state: Tensor,
    mean: Tensor, query_grad: Tensor, rows: Tensor, needs: int, dense: Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """The gradients of the queries and of their parameters, and the means Σ w dp / Σ w."""
    of = tiles or choose_tiles("query", problem)
    grid = (triton.cdiv(problem.queries, of.queries) * problem.all_heads,)
    launches.add(
        problem.launcher(attention_backward_query_kernel, **of.options(), NEEDS=needs),
        grid, *problem.vectors, *problem.pointers, grad, state, output, mean, query_grad, rows,
        dense,
        *problem.numbers, *problem.sizes, *grad.stride()[:3],
    )  # fmt: skip


def dense_backward_keys(
    launches: Launches, problem: Problem, grad: Tensor, state: Tensor, mean: Tensor,
    key_grad: Tensor, value_grad: Tensor, whole: Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:  # fmt: skip
    """The gradients of keys and values, with flags only of groups that are dense."""
    of = tiles or choose_tiles("key", problem)
    grid = (triton.cdiv(problem.keys, of.keys) * problem.batch * problem.groups,)
    launches.add(
        problem.launcher(attention_backward_key_kernel, **of.options()),
        grid, *problem.vectors, *problem.pointers, grad, state, mean, key_grad, value_grad, whole,
        *problem.numbers, *problem.sizes, *grad.stride()[:3],
    )  # fmt: skip
