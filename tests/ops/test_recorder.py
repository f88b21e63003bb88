"""What is noted of launches, and what is refused."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fake_gpu as fake
import pytest
import torch

from fenchel.ops._binding import replay
from fenchel.ops._triton.recorder import Recorder, RefusedError


def described(compiled: Any, *arguments: Any, inputs: Any = (), results: Any = ()) -> Any:
    notes = Recorder()
    notes.note(compiled, (3, 2), arguments)
    return notes.described(list(inputs), tuple(results))


def test_arguments_are_packed_as_triton_does() -> None:
    x, y, buffer = torch.randn(3, 4), torch.empty(2, 4), torch.empty(2, 5, dtype=torch.float64)
    kinds = ["*fp32", "*fp32", "*fp64", "constexpr", "i32", "i64", "u64", "fp32", "fp64"]
    made = fake.compiled(77, kinds, num_warps=2)
    values = x, y[1], buffer[1], None, -3, -(2**40), 2**63 + 1, 0.1, -0.1
    buffers, launches = described(made, *values, inputs=[x], results=[y])
    assert buffers == [80]

    def bits(code: str, value: float) -> tuple[int, int]:
        return -1, int.from_bytes(struct.pack(code, value).ljust(8, b"\0"), "little")

    words = [
        (0, 0), (1, 16), (2, 40), bits("<i", -3), bits("<q", -(2**40)), (-1, 2**63 + 1),
        bits("<f", 0.1), bits("<d", -0.1), (-1, 0), (-1, 0),
    ]  # fmt: skip
    assert launches == [(77, (3, 2, 1), 64, 96, words)]


COMPILED = """
import re, torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fenchel.ops._triton.recorder import Recorder

@triton.jit
def kernel(p_x, p_none, p_y, a: tl.float64, b, n, d, stride, M: tl.constexpr):
    o = tl.arange(0, M)
    tl.store(p_y + o + stride, tl.load(p_x + o, mask=o < d) * a + b + n, mask=o < d)

kinds = ["*fp32", "constexpr", "*fp64", "fp64", "fp32", "i64", "i32", "constexpr", "constexpr"]
source = ASTSource(kernel, dict(zip(kernel.arg_names, kinds)), {(1,): None, (7,): 1, (8,): 32})
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 2})
compiled.function = 7
x, y = torch.zeros(32), torch.zeros(40, dtype=torch.float64)
notes = Recorder()
notes.note(compiled, (5,), (x, None, y, 0.5, 0.25, 2**40, 32, 1, 32))
buffers, [(function, grid, threads, shared, words)] = notes.described([x], (y,))
assert (buffers, function, grid, threads, shared) == ([], 7, (5, 1, 1), 64, 0), grid
assert len({compiled}) == 1
entry = re.search(r"[.]entry.*?[)]", compiled.asm["ptx"], re.S).group(0)
print(*re.findall(r"[.]param [.](\\w+)", entry), len(words))
"""


@pytest.mark.skipif(
    not find_spec("triton") or not version("triton").startswith(replay.TRITON),
    reason=f"launches are repeated with Triton {' and '.join(replay.TRITON)} alone",
)
def test_kernels_take_as_many_words(tmp_path: Path) -> None:
    file = tmp_path / "compiled.py"
    file.write_text(COMPILED)
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**kept, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["u64", "u64", "f64", "f32", "u64", "u32", "u64", "u64", "8"]


@pytest.mark.parametrize(
    "unusual",
    [
        {"num_ctas": 2},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"global_scratch_size": 8},
        {"profile_scratch_size": 8},
    ],
    ids=str,
)
def test_unusual_kernels_are_refused(unusual: dict[str, Any]) -> None:
    x = torch.randn(3)
    with pytest.raises(RefusedError, match="more than a grid"):
        described(fake.compiled(1, ["*fp32"], **unusual), x, inputs=[x])


def test_unusual_arguments_are_refused() -> None:
    x, y = torch.randn(2, 3, 4)
    with pytest.raises(RefusedError, match="an argument is of type fp16"):
        described(fake.compiled(1, ["*fp32", "fp16"]), x, 1.0, inputs=[x])
    with pytest.raises(RefusedError, match="a kernel has other arguments"):
        described(fake.compiled(1, ["*fp32", "i32"]), x, inputs=[x])
    with pytest.raises(RefusedError, match="a part of an input"):
        described(fake.compiled(1, ["*fp32"]), x[1], inputs=[x])
    with pytest.raises(RefusedError, match="two of its tensors are one"):
        described(fake.compiled(1, ["*fp32"]), x, inputs=[x, x])
    with pytest.raises(RefusedError, match="a result is a view"):
        described(fake.compiled(1, ["*fp32"]), x, inputs=[x.clone()], results=[y])
    with pytest.raises(RefusedError, match="interprets"):
        described(None, x, inputs=[x])


def test_a_triton_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "version", lambda _: "3.5.1")
    with pytest.raises(RefusedError, match=r"it is for Triton 3\.6 and 3\.7"):
        replay._driver.__wrapped__()
