"""Compiles the kernels of attention for a GPU that need not be there, and reads the machine code.

    python tests/ops/compiled.py attention|cached_attention WIDTH VALUE_WIDTH DTYPE

prints each instruction that reads a uniform register before any wrote it. The ptxas of CUDA 12.8
does that to addresses of tiles, and then products take another tile's numbers. Of attention in
float32 it prints each product that is added to the sum of other tiles, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia

from fenchel.ops._triton.launcher import Launcher, Launches
from fenchel.ops.attention import triton as attention
from fenchel.ops.cached_attention import num_pages
from fenchel.ops.cached_attention.triton import cached_attention

TOOLS = Path(nvidia.__file__).parent / "bin"
LENGTH = 300


class Driver:
    """What Triton asks of a GPU when it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def machine_code(cubin: bytes) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "nvdisasm"), "-c", file.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [re.sub(r"/\*[0-9a-f]*\*/", "", line).strip() for line in found.stdout.splitlines()]


def _written(line: str) -> set[int]:
    """The uniform registers that an instruction writes."""
    found = re.match(r"(?:@!?U?P\w+ )?((?:U|R2UR|S2UR|REDUX)[A-Z0-9_.]*)\s+UR(\d+)", line)
    if found is None:
        return set()
    is_pair = ".64" in found[1] or "WIDE" in found[1]
    return set(range(int(found[2]), int(found[2]) + 1 + is_pair))


def _read(line: str) -> set[int]:
    registers = [int(x) for x in re.findall(r"\bUR(\d+)\b", line)]
    return set(registers[1:] if _written(line) else registers)


def reads_before_writes(code: list[str]) -> list[str]:
    """The instructions, in their order, that read what none before them wrote; subroutines, which
    stand behind the last EXIT, may have written anything of theirs."""
    end = max(i for i, line in enumerate(code) if re.search(r"\bEXIT\b", line))
    known = {x for line in code[end:] for first in _written(line) for x in (first, first + 1)}
    found = []
    for line in code[:end]:
        if _read(line) - known:
            found.append(line)
        known |= _written(line)
    return found


def added_products(code: str) -> list[str]:
    """The products that do not begin at zero."""
    constants = set(re.findall(r"(%\w+) = arith.constant dense<0.0", code))
    products = re.findall(r"tt\.dot [^:]*", code)
    assert products
    return [each for each in products if re.findall(r"%\w+", each)[2] not in constants]


def vectors(width: int, value_width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of two heads."""
    query, key = torch.zeros(2, 1, 2, LENGTH, width, dtype=dtype)
    return query, key, torch.zeros(1, 2, LENGTH, value_width, dtype=dtype)


def of_attention(*sizes: Any) -> list[Any]:
    """The kernels of both passes of fused attention."""
    compiled: list[Any] = []

    def run(launches: Any, later: Any = None) -> None:
        for launcher, grid, arguments in launches._all:
            kernel = launcher._kernel
            compiled.append(kernel.warmup(*arguments, grid=grid, **launcher._constants))
        launches._all.clear()

    Launches.run = run
    query, key, value = vectors(*sizes)
    places = torch.zeros(3, 1, LENGTH, dtype=torch.int32)
    given = (query, key, value, *places, 1.5, 1.0, 0.1, None, None, None, None, 0.0, 0.0)
    results = attention.attention(*given)
    attention.attention_backward(torch.zeros_like(results[0]), *given, *results, 0)
    assert len(compiled) == 3
    return compiled


def of_cached_attention(*sizes: Any) -> list[Any]:
    """The kernels of one query and many pages of keys."""
    compiled: list[Any] = []

    def call(launcher: Any, grid: tuple[int, ...], *arguments: Any) -> None:
        kernel = launcher._kernel
        compiled.append(kernel.warmup(*arguments, grid=grid, **launcher._constants))

    Launcher.__call__ = call
    query, key, value = (x.repeat(1, 1, 10, 1) for x in vectors(*sizes))
    bounds = torch.zeros(2, *key.shape[:2], num_pages(key.shape[2]), key.shape[3], dtype=key.dtype)
    places = torch.zeros(3, 1, 1, dtype=torch.int32)
    given = (query[:, :, :1], key, value, bounds, *places, 1.5, 1.0, 0.1, None, None, 0.0)
    cached_attention(*given)
    assert len(compiled) == 6
    return compiled


KERNELS = {"attention": of_attention, "cached_attention": of_cached_attention}


def main(name: str, width: int, value_width: int, dtype: torch.dtype) -> None:
    triton.runtime.driver.set_active(Driver())
    sums_tiles = name == "attention" and dtype == torch.float32
    for each in KERNELS[name](width, value_width, dtype):
        for line in reads_before_writes(machine_code(each.asm["cubin"])):
            sys.stdout.write(f"{each.metadata.name}: {line}\n")
        for product in added_products(each.asm["ttgir"]) if sums_tiles else ():
            sys.stdout.write(f"{each.metadata.name}: {product}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4]))
