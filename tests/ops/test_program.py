"""Launches that are repeated with other tensors, by kernels that run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not made for this platform")
from fake_gpu import _tensor_at
from test_triton_cached_attention import Case

from fenchel.ops._triton import program
from fenchel.ops._triton.launcher import Launcher
from fenchel.ops._triton.program import Programs
from fenchel.ops.cached_attention import triton as triton_module
from fenchel.ops.cached_attention.triton import cached_attention

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled, not interpreted"
)
SIZES = {"s": 200, "alpha": 1.5}


class Gpu:
    """How often kernels were launched, and with how many new arguments."""

    def __init__(self) -> None:
        self.launches = 0
        self.kinds = 0

    def first(self, launcher: Any, key: tuple, grid: tuple[int, ...], arguments: tuple) -> None:
        """`Launcher._first`, as if Triton compiled: what follows gets addresses."""
        launcher._kernel[grid](*arguments, **launcher._constants)
        self.kinds += 1

        def run(x: int, y: int, z: int, *rest: Any) -> None:
            words = rest[6 : 6 + len(arguments)]
            assert rest[6 + len(arguments) :] == launcher._values
            given = [
                _tensor_at(word, like) if isinstance(like, Tensor) else word
                for word, like in zip(words, arguments, strict=True)
            ]
            self.launches += 1
            launcher._kernel[x, y, z](*given, **launcher._constants)

        launcher._compiled[key] = (run, None, None, None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    found = Gpu()
    monkeypatch.setattr(Launcher, "_first", lambda self, *rest: found.first(self, *rest))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    monkeypatch.setattr(triton_module, "_PROGRAMS", Programs())
    triton_module._launchers.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("fenchel.ops._triton.launcher.launcher", Launcher)
        patch.setattr(triton_module, "launcher", lambda kernel, **rest: Launcher(kernel, rest))
        yield found
    triton_module._launchers.cache_clear()


def programs() -> list[Any]:
    return [*triton_module._PROGRAMS._all.values()]


def check(case: Case) -> None:
    output, pages = cached_attention(*case.arguments())
    torch.testing.assert_close(output.double(), case.truth(), rtol=1e-5, atol=1e-5)
    assert pages.tolist() == [[-(-case.key.shape[2] // 64)] * case.key.shape[1]] * len(case.key)


def test_other_tensors_of_the_same_sizes_repeat_the_launches(gpu: Gpu) -> None:
    check(Case(**SIZES))
    kinds = gpu.kinds
    assert kinds
    assert not gpu.launches
    for count in range(1, 4):
        check(Case(**SIZES))
        assert gpu.launches == count * kinds
    assert (gpu.kinds, len(programs())) == (kinds, 1)


@pytest.mark.parametrize(
    "other",
    [{"alpha": 2.0}, {"gamma": 0.5}, {"scale": 0.1}, {"softcap": 2.0}, {"s": 201}, {"t": 2}],
)
def test_other_numbers_and_sizes_are_other_programs(gpu: Gpu, other: dict[str, Any]) -> None:
    check(Case(**SIZES))
    for _ in range(2):
        check(Case(**{**SIZES, **other}))
        assert len(programs()) == 2


def test_other_strides_are_another_program(gpu: Gpu) -> None:
    for _ in range(2):
        check(Case(b=2, g=2, **SIZES))
    case = Case(b=2, g=2, **SIZES)
    case.key = case.key.transpose(1, 2).contiguous().transpose(1, 2)
    check(case)
    assert len(programs()) == 2


def test_tensors_in_one_place_are_no_program(gpu: Gpu) -> None:
    case = Case(d=12, **SIZES)
    case.value = case.key
    check(case)
    assert not programs()
    other = Case(d=12, **SIZES)
    check(other)
    check(case)  # by the program of tensors that are apart
    assert len(programs()) == 1


def test_tensors_that_are_copied_are_no_program(gpu: Gpu) -> None:
    for _ in range(2):
        case = Case(d=8, **SIZES)
        case.query = torch.randn(1, 2, 1, 16)[..., ::2]
        check(case)
    assert not programs()


def test_tensors_of_numbers_are_no_program(gpu: Gpu) -> None:
    case = Case(**SIZES)
    case.alpha = case.rows(1.5, 2.0)
    check(case)
    assert not programs()


def test_the_oldest_programs_are_forgotten(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_MAX_PROGRAMS", 2)
    for s in (70, 80, 90, 70):
        check(Case(s=s))
        assert len(programs()) <= 2
