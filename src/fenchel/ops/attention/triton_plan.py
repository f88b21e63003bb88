"""Sizes of lists, and how many warps, stages and registers the kernels of attention by candidates
take."""

from typing import NamedTuple

import torch
import triton

from .sizes import CAP
from .triton_problem import Problem


class Program(NamedTuple):
    """How many queries, candidates or keys of a list a tile has, and how many warps, stages and at
    most registers a program."""

    size: int
    warps: int
    stages: int = 1
    registers: int | None = None

    def options(self) -> dict[str, int]:
        """As a kernel takes them, but for the size."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else options | {"maxnreg": self.registers}


class Bucket(NamedTuple):
    """A program for lists of up to so many tiles of candidates. It looks at `many` groups, a power
    of two."""

    program: Program
    tiles: int
    many: int = 1


class Plan(NamedTuple):
    """Sizes of lists, and shapes of the kernels' programs."""

    cap: int = CAP
    """Candidates of a group, at most."""
    pairs: int = 64
    """Pairs of a query and a block of keys in lists, at most, for each query on average."""
    bytes: int = 2**27
    """Of marks and such lists at a time."""
    bound: Program = Program(64, 4, 3)
    mark: Program = Program(64, 4, 3)
    rows: tuple[Bucket, ...] = (Bucket(Program(64, 2), 8), Bucket(Program(256, 8), 4, 16))
    """For short lists, and for the rare longer ones."""
    back: Program = Program(64, 2, 2)
    keys: Program = Program(64, 4, 3)
    words: int = 32
    """Words of marks that a program lists at a time."""
    wide: int = 4096
    """Keys from which on a wide support means more candidates than a list takes."""


def choose_plan(problem: Problem) -> Plan:
    """The plan by the bytes of the longest vector, and the length. Registers have a bound only
    where scores and powers are plain, so that these do not need more."""
    width = triton.next_power_of_2(problem.widest) * problem.query.dtype.itemsize
    if problem.query.dtype == torch.float32:
        return Plan(rows=(Bucket(Program(64, 4), 8), Bucket(Program(128, 8), 8, 16)))
    if width > 256:
        return Plan(keys=Program(64, 4, 2))
    is_plain = problem.constants["KIND"] > 0 and not problem.constants["FEATURES"]
    plan, long_lists = Plan(), Plan().rows[1]
    if width > 128:
        rows = (Bucket(Program(128, 4, registers=168), 4), long_lists)
        return plan._replace(rows=rows) if is_plain else plan
    short = Program(32, 1, 3)
    plan = plan._replace(back=short)
    if not is_plain:
        return plan._replace(keys=short) if problem.queries <= 8192 else plan
    tiles = 3 if problem.keys <= 2048 else 4
    return plan._replace(
        bound=Program(64, 4, 3, 168),
        rows=(Bucket(Program(128, 4, registers=128), tiles), long_lists),
        keys=short if problem.queries <= 4096 else Program(64, 4, 2, 128),
    )
