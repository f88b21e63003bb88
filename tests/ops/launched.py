"""Compares launches by a `Launcher` with Triton's own for the same arguments.

    python tests/ops/launched.py CASE

prints how many launches by new and by known kernels were compared, and how many parameters.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from stand_in import Comparison, main

from fenchel.ops._triton.launcher import Launcher
from fenchel.ops.attention import triton as attention
from fenchel.ops.attention.triton_plan import Plan
from fenchel.ops.entmax import triton as entmax
from fenchel.ops.fusedmax import triton as fusedmax

HALF = torch.bfloat16
NUMBERS = (
    0, 1, -1, 15, 16, 17, -16, -17, 2**31 - 1, 2**31, 2**31 + 16, -(2**31), -(2**31) - 1, 2**40,
    2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 0.1, 1.0, 1e-45, 1e300, math.inf,
    math.nan, True, False, None,
)  # fmt: skip
"""They differ in their types, in what kernels are compiled for, or in their bits."""
GRIDS = ((3,), (3, 2), (3, 2, 5), (0,), (70000, 1))


@triton.jit
def any_kernel(x, y, a, b, FIRST: tl.constexpr, SECOND: tl.constexpr):
    pass


def all_arguments(comparison: Comparison) -> None:
    """Arguments of all kinds for one kernel."""
    x, *others = (torch.zeros(64, dtype=t) for t in (torch.float32, HALF, torch.int8, torch.bool))
    tensors = [y[i:] for y in (x, *others) for i in (0, 1, 16, 64)]
    grids = itertools.cycle(GRIDS)
    one = Launcher(any_kernel, {"FIRST": 3, "SECOND": None, "num_warps": 2})
    for _ in range(3):
        for a in (*NUMBERS, *tensors):
            for arguments in ((x, x[1:], a, 7), (x, None, 2.5, a), (x[4:], x, a, a)):
                one(next(grids), *arguments)
    for a, b in itertools.product(NUMBERS[:6], NUMBERS[:6]):
        one((2,), x, x, a, b)


def host_tensors(comparison: Comparison) -> None:
    """A tensor of the CPU is refused, whatever was launched before."""
    gpu, one = comparison.gpu, Launcher(any_kernel, {"FIRST": 3, "SECOND": None})
    x, y, host, pinned = torch.zeros(4, 64).unbind()
    for _ in range(2):
        one((3,), x, y, 1, 1)
    gpu.on_host.add(host.data_ptr())
    gpu.pinned.add(pinned.data_ptr())
    for _ in range(2):
        for arguments in ((host, y, 1, 1), (x, host, 1, 1), (x, y, host, 1), (host, host, 1, 1)):
            with comparison.refused():
                one((3,), *arguments)
        one((3,), pinned, y, 1, 1)
        one((3,), x, pinned, 1, 1)


def mappings(comparison: Comparison) -> None:
    """Kernels that are launched one by one."""
    for columns, rows in itertools.product((33, 64), (1, 3, 3, 16, 16)):
        scores = torch.zeros(rows, columns, dtype=HALF)
        y = entmax.entmax(scores, 1.5)
        entmax.entmax_jvp(y, scores, 1.5)
        fusedmax.fusedmax(scores, 0.5)
    for _ in range(2):
        entmax.entmax(torch.zeros(8, 33), torch.full((8, 1), 1.3))


def attend(way: Any = None, rows: int = 130, alpha: Any = 1.5, offset: int = 0) -> None:
    """Both passes of fused attention, with memory of its own."""
    size = 2 * 2 * rows * 32
    flat = torch.empty(3, size + 8, dtype=HALF)[:, offset : offset + size]
    query, key, value = flat.view(3, 2, 2, rows, 32).unbind()
    places = torch.zeros(3, 1, rows, dtype=torch.int32)
    given: Any = (query, key, value, *places, alpha, 1.0, 0.1, None, None, None, None, 0.0, 0.0)
    results = attention.attention(*given, way=way)
    grad = torch.empty_like(results[0])
    attention.attention_backward(grad, *given, *results, 0, way=way)


def dense_attention(comparison: Comparison) -> None:
    for rows, offset in ((130, 0), (130, 0), (128, 0), (130, 1), (130, 1)):
        attend(rows=rows, offset=offset)


def other_attention(comparison: Comparison) -> None:
    """Lists of candidates, and an α of each row's own."""
    for _ in range(3):
        attend(Plan(), rows=300)
        attend(alpha=torch.full((2, 2, 130), 1.5))


CASES = {
    one.__name__: one
    for one in (all_arguments, host_tensors, mappings, dense_attention, other_attention)
}

if __name__ == "__main__":
    main(CASES)
