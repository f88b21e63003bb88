"""What the first call of fused attention compiles, without a GPU."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this platform")
import triton

from fenchel.ops._triton import launcher
from fenchel.ops._triton.launcher import Launcher
from fenchel.ops.attention import triton as attention


@pytest.mark.parametrize("length", [64, 8192])
@pytest.mark.parametrize("learned", [False, True])
def test_the_forward_pass_prepares_the_backward_pass(
    length: int, learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: set[tuple[Any, ...]] = set()
    launched: set[tuple[Any, ...]] = set()

    def prepare(launches: list[tuple]) -> None:
        prepared.update((id(one), launcher._looked_at(given)[0]) for one, _, given in launches)

    def first(self: Launcher, key: tuple, grid: Any, arguments: tuple) -> None:
        launched.add((id(self), key))

    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(launcher, "_prepare", prepare)
    monkeypatch.setattr(Launcher, "_first", first)
    query, key, value = torch.empty(3, 4, 16, length, 64, dtype=torch.bfloat16).unbind()
    places = torch.zeros(3, 1, length, dtype=torch.int32)
    parameters: tuple[Any, ...] = (1.5, 1.0, 0.125)
    if learned:
        parameters = tuple(torch.full((4, 16, length), x) for x in parameters)
        parameters[0].requires_grad_()
    given: Any = (query, key, value, *places, *parameters, None, None, None, None, 0.0, 0.0)
    results = attention.attention(*given)
    expected = set(prepared)
    attention.attention_backward(torch.empty_like(results[0]), *given, *results, int(learned))
    assert expected == prepared == launched

    prepared.clear()
    attention.attention(*given, keep=False)
    assert len(prepared) < len(expected)


class LaunchedByModules:
    """A kernel of Triton 3.6. What launches it is read from a module that all kernels share."""

    arg_names: tuple[str, ...] = ()
    shared: LaunchedByModules | None = None

    def __init__(self) -> None:
        self.src = self.metadata = self
        self.launched_by: LaunchedByModules | None = None
        self.launched: list[tuple[Any, ...]] = []

    @classmethod
    def load(cls, kernel: LaunchedByModules, metadata: Any) -> LaunchedByModules:
        cls.shared = kernel
        time.sleep(0.01)
        return cls.shared

    def warmup(self, *_: Any, **__: Any) -> LaunchedByModules:
        return self

    @property
    def run(self) -> Any:
        if self.launched_by is None:
            self.launched_by = self.load(self, None)
        return self.launched_by

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.run.launched.append(arguments)


def test_each_kernel_is_launched_by_its_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several are new, in several threads."""
    driver = SimpleNamespace(get_current_device=lambda: 0, launcher_cls=LaunchedByModules.load)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=driver))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(launcher, "triton_key", lambda: "")
    kernels = [LaunchedByModules() for _ in range(12)]

    def launch(some: list[LaunchedByModules]) -> None:
        launches = launcher.Launches()
        for kernel in some:
            launches.add(Launcher(kernel, {}), (1,), torch.zeros(1))
        launches.run()

    threads = [threading.Thread(target=launch, args=(kernels[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(kernel.launched) for kernel in kernels] == [1] * 12
