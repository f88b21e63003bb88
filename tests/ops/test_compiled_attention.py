"""What compilers make of the kernels of attention for a GPU, read without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not made for this platform")
from triton.backends.nvidia import compiler

SCRIPT = Path(__file__).with_name("compiled.py")
HAS_TOOLS = (Path(compiler.__file__).parent / "bin" / "nvdisasm").exists()


@pytest.mark.skipif(not HAS_TOOLS, reason="this Triton has no disassembler")
@pytest.mark.parametrize(
    "case",
    [
        ("attention", "40", "24", "float16"),
        pytest.param(("attention", "24", "40", "bfloat16"), marks=pytest.mark.slow),
        pytest.param(("attention", "20", "100", "float16"), marks=pytest.mark.slow),
        pytest.param(("attention", "64", "64", "bfloat16"), marks=pytest.mark.slow),
        pytest.param(("cached_attention", "40", "24", "float16"), marks=pytest.mark.slow),
        pytest.param(("cached_attention", "128", "128", "bfloat16"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_no_address_is_used_before_it_is_known(case: tuple[str, ...]) -> None:
    check(*case)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TOOLS, reason="this Triton has no disassembler")
def test_float32_adds_up_one_tile_at_a_time() -> None:
    check("attention", "64", "64", "float32")


def check(*case: str) -> None:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *case], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
