"""Launches the kernels that solve thresholded mappings."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launcher import Launcher
from .mixed import mixed_forward_kernel
from .outside import outside_forward_kernel
from .root import ENTMAX, FAST, NORM, SLOW, SQUARED
from .solve import long_forward_kernel, short_forward_kernel

SHORT = 1024
"""Rows of up to so many entries are held in registers."""
FEW = 1024
"""For up to so many rows a second launch takes longer than what it does."""
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


class Solved(NamedTuple):
    """Of every row the solution, the value max_Ω, and a state to compute y again."""

    y: Tensor | None
    value: Tensor | None
    state: Tensor | None


class Root(NamedTuple):
    """The equation of a row, as the module `root` names things, for one parameter."""

    c: float
    r: float
    out: float

    @classmethod
    def of(cls, parameter: float | None, kind: int) -> "Root":
        """The equation for α or p; NaN if it is None, and differs from row to row."""
        if parameter is None:
            return cls(math.nan, math.nan, math.nan)
        if kind == ENTMAX.value:
            c = max(parameter - 1, 1e-17)
            return cls(c, 1 / c, 1 / c)
        q = parameter / (parameter - 1)
        return cls(1.0, q if kind == NORM.value else q - 1, q - 1)

    def bracket(self, d: int, kind: int, resolution: float, rounding: float) -> tuple[float, float]:
        """The least s − 1, and the shortest step; `root.bracket` is the same for many rows."""
        if math.isnan(self.r):
            return math.nan, math.nan
        squared = kind == SQUARED.value
        lowest = min(self.r, self.out, 2 if squared else 3)
        drop = 2 * math.log(d) / (self.r + 1) if squared else math.log(d) / self.r
        shortest = resolution ** (1 / lowest) / (2 * self.r) + 1.5 * rounding
        least = math.expm1(-drop) * (1 + 1e-3) - 4 * rounding * min(drop, 1.0)
        return max(least, rounding - 1), shortest


class Launch(NamedTuple):
    """A kernel, the rows that a program of it takes, numbers that it is given, and whether further
    programs take a row each."""

    launcher: Launcher
    rows: int
    numbers: tuple[float, ...]
    is_mixed: bool = False

    def grid(self, n: int) -> tuple[int]:
        """How many programs n rows need."""
        return (-(-n // self.rows) + (n if self.is_mixed else 0),)


def rows_of(x: Tensor) -> Tensor:
    """The tensor (..., d) as rows (n, d), without a copy where its strides allow."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x.reshape(-1, x.shape[-1])


def row_values(value: float | Tensor, shape: torch.Size) -> tuple[Tensor | None, float | None]:
    """A parameter as one value per row (n,) and None, or None and the number for all rows."""
    if isinstance(value, Tensor):
        return value.broadcast_to((*shape[:-1], 1)).reshape(-1).contiguous(), None
    return None, value


def power_kind(r: float, wide: torch.dtype) -> int:
    """How to raise to the power r, NaN if it differs from row to row."""
    if r in (1, 2, 3, 4):
        return int(r)
    return FAST.value if 1 < r < 4.5 and wide == torch.float32 else SLOW.value


def exactness(parameter: float | None) -> tuple[bool, ...]:
    """Whether to compute in float64, where an exponent below one would magnify the rounding of u,
    or tails are heavy; twice if some rows may need it and others not."""
    return (False, True) if parameter is None else (parameter > 2 or parameter < 1,)


def _short(d: int, power: int) -> tuple[int, dict[str, int]]:
    """For short rows, how many in a program, and how to hold them; groups give a start."""
    width = triton.next_power_of_2(d)
    rows, group = (min(32, 256 // width), 1) if width < 256 else (SHORT // width, 4)
    warps = 4 if power == SLOW.value else 1  # or the code would be long
    return rows, {"R": rows, "D": width, "GROUP": group, "num_warps": warps}


def _long(
    d: int, power: int, dtype: torch.dtype, compute: torch.dtype, tile: int | None
) -> dict[str, int]:
    """For a long row, how many slices, tiles to read and to write at a time, and warps."""
    width, warps = 1024, 4
    if d > 8192:
        # Of the longest rows fewer at a time, or the cache would not keep them.
        width, warps = (2048, 8) if d * dtype.itemsize < 2**17 else (4096, 16)
    width = tile or (width // 2 if compute == torch.float64 else width)
    reads = min(8, triton.cdiv(d, width))
    writes = 1 if power == SLOW.value else min(4, reads)  # or the code would be long
    return {"M": width, "READS": reads, "WRITES": writes, "num_warps": warps}


def _outside(parameter: float | None, d: int, write: bool, state: bool, tile: int | None) -> Launch:
    """The launch for α-entmax with α outside [1, 2]."""
    width = tile or min(triton.next_power_of_2(d), 1024)
    constants = {
        "PER_ROW": parameter is None,
        "WRITE": write,
        "STATE": state,
        "M": width,
        "num_warps": max(1, min(8, width // 128)),
    }
    number = 3.0 if parameter is None else parameter
    return Launch(Launcher(outside_forward_kernel, constants), 1, (number,))


def _mixed(d: int, write: bool, state: bool, wide: torch.dtype) -> Launch:
    """The launch for α-entmax of few short rows with an α of their own each."""
    rows, shape = _short(d, SLOW.value)
    eps = torch.finfo(wide).eps
    constants = {
        "WRITE": write,
        "STATE": state,
        "RESOLUTION": eps,
        "ROUNDING": eps,
        "TYPE": TYPES[wide],
        **shape,
    }
    return Launch(Launcher(mixed_forward_kernel, constants), rows, (), is_mixed=True)


@lru_cache(maxsize=4096)
def launches(
    parameter: float | None,
    kind: int,
    dtype: torch.dtype,
    d: int,
    write: bool,
    state: bool,
    tile: int | None,
    are_few: bool,
) -> tuple[Launch, ...]:
    """What to launch for rows of d entries; `parameter` is None if it differs from row to row."""
    wide = torch.promote_types(dtype, torch.float32)
    is_short = tile is None and d <= SHORT
    if parameter is None and kind == ENTMAX.value and is_short and are_few:
        return (_mixed(d, write, state, wide),)
    root, found = Root.of(parameter, kind), []
    for exact in exactness(parameter):
        if exact and kind == ENTMAX.value:
            found.append(_outside(parameter, d, write, state, tile))
            continue
        compute = torch.float64 if exact else wide
        resolution, rounding = torch.finfo(wide).eps, torch.finfo(compute).eps
        power = power_kind(root.r, compute)
        if is_short:
            kernel, (rows, shape) = short_forward_kernel, _short(d, power)
        else:
            kernel, rows, shape = long_forward_kernel, 1, _long(d, power, dtype, compute, tile)
        constants = {
            "KIND": kind,
            "POWER": power,
            "OUT": power if root.out == root.r else power_kind(root.out, compute),
            "START": round(root.r) if power <= 0 and 1 < root.r < 4.5 else power,
            "PER_ROW": parameter is None,
            "EXACT": exact,
            "WRITE": write,
            "STATE": state,
            "RESOLUTION": resolution,
            "ROUNDING": rounding,
            "TYPE": TYPES[compute],
            **shape,
        }
        number = 2.0 if parameter is None else parameter
        numbers = (number, *root, *root.bracket(d, kind, resolution, rounding))
        found.append(Launch(Launcher(kernel, constants), rows, numbers))
    return tuple(found)


def solve(
    scores: Tensor,
    parameter: float | Tensor,
    kind: tl.constexpr,
    write: bool = True,
    state: bool = False,
    tile: int | None = None,
) -> Solved:
    """Solves every row of scores (..., d).

    Args:
        scores: half precision, float32 or float64.
        parameter: α or p; a tensor holds one per row, (..., 1).
        kind: ENTMAX, NORM or SQUARED.
        write: whether to write the solution.
        state: whether to write the value and the state, of entmax.
        tile: how many slices to cut a row into; every row counts as long if given.
    """
    x, d = rows_of(scores), scores.shape[-1]
    y = torch.empty_like(scores, memory_format=torch.contiguous_format) if write else None
    value = saved = None
    if state:
        value = scores.new_empty(scores.shape[:-1], dtype=torch.float64)
        saved = scores.new_empty((*scores.shape[:-1], 4), dtype=torch.float64)
    n = x.shape[0]
    values, number = row_values(parameter, scores.shape)
    if n:
        known = launches(number, kind.value, scores.dtype, d, write, state, tile, n <= FEW)
        for launch in known:
            sizes = n, d, x.stride(0)
            launch.launcher(launch.grid(n), x, y, value, saved, values, *launch.numbers, *sizes)
    return Solved(y, value, saved)


def solution(scores: Tensor, parameter: float | Tensor, kind: tl.constexpr) -> Tensor:
    """The solution of every row, and nothing else."""
    y = solve(scores, parameter, kind).y
    assert y is not None
    return y
