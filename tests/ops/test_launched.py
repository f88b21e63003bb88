"""What launches pass to CUDA's driver, without a GPU: the same as Triton itself passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this platform")
from triton.backends.nvidia import compiler

FOLDER = Path(__file__).parent
BACKEND = Path(compiler.__file__).parent
C_COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
HEADER = Path(sysconfig.get_paths()["include"]) / "Python.h"

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA's own driver is here"),
    pytest.mark.skipif(C_COMPILER is None, reason="no C compiler makes what takes its place"),
    pytest.mark.skipif(not HEADER.exists(), reason="Triton needs the headers of Python"),
    pytest.mark.skipif(not (BACKEND / "bin" / "ptxas").exists(), reason="no ptxas is here"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """For a process in which `libcuda.c` is the driver."""
    folder = tmp_path_factory.mktemp("driver")
    command = [str(C_COMPILER), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    command += [f"-I{BACKEND / 'include'}", str(FOLDER / "libcuda.c")]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    found = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    return found | {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}


def compared(environment: dict[str, str], script: str, case: str) -> dict[str, int]:
    """How many launches and parameters were the same."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), case],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    counts = (line.split() for line in done.stdout.splitlines())
    return {name: int(count) for name, count in counts}


@pytest.mark.parametrize(
    "case",
    [
        "all_arguments",
        "host_tensors",
        "dense_attention",
        pytest.param("mappings", marks=pytest.mark.slow),
        pytest.param("other_attention", marks=pytest.mark.slow),
    ],
)
def test_a_known_kernel_gets_what_triton_passes(environment: dict[str, str], case: str) -> None:
    counts = compared(environment, "launched.py", case)
    assert counts["known"]
    assert counts["parameters"] > counts["known"]


@pytest.mark.parametrize(
    "case",
    [
        "tensors",
        "devices",
        "threads",
        pytest.param("sizes", marks=pytest.mark.slow),
        pytest.param("strides", marks=pytest.mark.slow),
        pytest.param("no_programs", marks=pytest.mark.slow),
    ],
)
def test_a_program_launches_what_a_call_would(environment: dict[str, str], case: str) -> None:
    counts = compared(environment, "repeated.py", case)
    assert counts["known"]
    assert counts["repeated"]
    assert counts["parameters"] > counts["known"] + counts["repeated"]
