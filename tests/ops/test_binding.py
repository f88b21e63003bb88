"""The binding against the same calls without it: bit for bit, and with the same errors."""

from __future__ import annotations

import copy
import io
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rows import hard_rows
from torch import Tensor, nn

import fenchel
from binding_helpers import (
    IS_LOADED,
    LOSS,
    REDUCTIONS,
    SOLUTION,
    WITH_STATE,
    assert_same,
    both,
    leaf,
    name_of,
    needs_binding,
    without_binding,
)
from fenchel import Entmax, Fusedmax, Ksubset, Softmax, Sparsemax
from fenchel.mappings import AbstractMapping
from fenchel.ops import _binding, _native

pytestmark = needs_binding


def test_it_is_in_use() -> None:
    assert IS_LOADED, _binding.STATUS
    assert fenchel.kernels()["binding"] == f"loaded, for torch {torch.__version__}"
    assert name_of(fenchel.entmax(leaf(3, 4))) == SOLUTION
    assert name_of(Entmax(1.5).loss(leaf(3, 4), torch.arange(3))) == LOSS


def is_bound(mapping: AbstractMapping) -> bool:
    """Whether the binding solves it: the kernels serve these options, and γ = 1."""
    rest = mapping.name == "general" or (isinstance(mapping, Fusedmax) and mapping.lam == 0)
    return mapping.gamma == 1.0 and not rest and getattr(mapping, "lam", 1.0) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5,), (7, 5), (2, 3, 40), (64, 64), (300, 100)], ids=str)
def test_solutions_and_gradients(
    mapping: AbstractMapping, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if isinstance(mapping, Ksubset) and float(mapping.k) > shape[-1]:
        return
    if mapping.name == "general" and len(shape) != 2:
        return
    scores, v = torch.randn(2, *shape, dtype=dtype)

    def call() -> tuple[Tensor, Tensor, Tensor]:
        x = scores.clone().requires_grad_()
        y = mapping(x)
        assert y.is_contiguous()
        (grad,) = torch.autograd.grad(y, x, v, retain_graph=True)
        (spread,) = torch.autograd.grad(y.sum(), x)  # a gradient without a memory of its own
        return mapping(scores), grad, spread

    assert_same(*both(call))
    found = name_of(mapping(scores.clone().requires_grad_()))
    assert (found == SOLUTION) == is_bound(mapping)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_hard_rows(alpha: float) -> None:
    scores = hard_rows(40)

    def call() -> list[Tensor]:
        found = []
        for dtype in (torch.float32, torch.float64):
            x = scores.to(dtype).clone().requires_grad_()
            y = fenchel.entmax(x, alpha=alpha)
            found += [y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))]
        return found

    assert_same(*both(call))


PARAMETERS = {
    "entmax": (fenchel.entmax, "alpha", (1.2, 1.5, 2.0, 0.7, 3.0)),
    "normmax": (fenchel.normmax, "alpha", (1.2, 1.5, 2.0, 4.0, 3.0)),
    "ksubset": (fenchel.ksubset, "k", (1.0, 2.0, 0.5, 3.0, 2.5)),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("kind", ["scalar", "same", "each"])
@pytest.mark.parametrize("types", [(f, g) for f in (4, 8) for g in (4, 8)], ids=str)
def test_parameters_that_are_tensors(name: str, kind: str, types: tuple[int, int]) -> None:
    function, option, values = PARAMETERS[name]
    of = {4: torch.float32, 8: torch.float64}
    scores, v = torch.randn(2, 5, 7, dtype=of[types[0]])
    value = torch.tensor(values, dtype=of[types[1]]).unsqueeze(-1)
    value = {"scalar": value[0, 0], "same": value[:1].repeat(5, 1), "each": value}[kind]
    for for_scores, for_value in ((False, False), (True, False), (False, True), (True, True)):

        def call(for_scores: bool = for_scores, for_value: bool = for_value) -> list[Tensor]:
            x = scores.clone().requires_grad_(for_scores)
            p = value.clone().requires_grad_(for_value)
            y = function(x, **{option: p})
            wanted = [t for t in (x, p) if t.requires_grad]
            assert y.requires_grad == bool(wanted)
            return [y.detach(), *(torch.autograd.grad(y, wanted, v) if wanted else ())]

        assert_same(*both(call))
    x = scores.clone().requires_grad_()
    assert name_of(function(x, **{option: nn.Parameter(value)})) == SOLUTION


@pytest.mark.parametrize("mapping", WITH_STATE, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignore_index", [None, -100, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses(
    mapping: AbstractMapping, reduction: str, ignore_index: int | None, dtype: torch.dtype
) -> None:
    for shape in ((5,), (6, 5), (2, 3, 5), (200, 100)):
        scores = torch.randn(shape, dtype=dtype)
        target = torch.randint(5, shape[:-1])
        if ignore_index == -100 and len(shape) > 1:
            target[..., 0] = -100

        def call(scores: Tensor = scores, target: Tensor = target) -> tuple[Tensor, Tensor]:
            x = scores.clone().requires_grad_()
            loss = mapping.loss(x, target, reduction=reduction, ignore_index=ignore_index)
            return loss.detach(), torch.autograd.grad(loss * 3, x)[0]

        assert_same(*both(call))
    x = leaf(3, 4)
    assert name_of(mapping.loss(x, torch.arange(3), reduction=reduction)) == LOSS
    assert not mapping.loss(x.detach(), torch.arange(3)).requires_grad


def test_inputs_of_other_kinds_go_the_usual_way() -> None:
    scores = leaf(4, 6)
    for x in (scores.t(), scores[:, ::2], scores.half(), scores[:0], scores.detach()._neg_view()):
        assert_same(*both(lambda x=x: fenchel.entmax(x)))
    for dim in (0, -2):
        assert_same(*both(lambda dim=dim: fenchel.entmax(scores, dim)))
    assert name_of(fenchel.entmax(scores, 1)) == SOLUTION
    assert_same(*both(lambda: fenchel.entmax(scores, gamma=0.5)))
    alpha = torch.tensor([1.5, 2.0]).repeat(4, 3)[:, ::6]
    assert_same(*both(lambda: fenchel.entmax(scores, alpha=alpha)))
    target = torch.randint(6, (8,))[::2]
    assert_same(*both(lambda: Entmax(1.5).loss(scores, target)))
    assert_same(*both(lambda: Entmax(1.5).loss(scores, target.int())))
    assert_same(*both(lambda: Entmax(1.5).loss(scores, target, reduction="none")))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(*both(lambda: fenchel.entmax(scores)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: fenchel.entmax(x, alpha=torch.tensor(-1.0)), ValueError),
        (lambda x: fenchel.entmax(x, alpha=torch.tensor(0.0)), ValueError),
        (lambda x: fenchel.entmax(x, alpha=torch.tensor([[1.5], [torch.nan], [1.5]])), ValueError),
        (lambda x: fenchel.entmax(x, alpha=torch.full((3, 1), torch.inf)), ValueError),
        (lambda x: fenchel.entmax(x, alpha=torch.ones(2, 1)), ValueError),
        (lambda x: fenchel.entmax(x, alpha=torch.ones(3, 1, dtype=torch.int64)), TypeError),
        (lambda x: fenchel.entmax(x, alpha=-1.0), ValueError),
        (lambda x: fenchel.entmax(x, alpha="1.5"), TypeError),
        (lambda x: fenchel.entmax(x, 5), ValueError),
        (lambda x: fenchel.entmax(x, 2**70), ValueError),
        (lambda x: fenchel.entmax(x, 1.5), TypeError),
        (lambda x: fenchel.entmax(x.tolist()), TypeError),
        (lambda x: fenchel.entmax(x.sum()), ValueError),
        (lambda x: fenchel.entmax(x.long()), TypeError),
        (lambda x: fenchel.entmax(x[:, :0]), ValueError),
        (lambda x: fenchel.normmax(x, alpha=torch.tensor(1.0)), ValueError),
        (lambda x: fenchel.ksubset(x, k=5), ValueError),
        (lambda x: fenchel.ksubset(x, k=torch.full((3, 1), 4.5)), ValueError),
        (lambda x: Entmax(1.5).loss(x, torch.tensor([0, 4, 1])), ValueError),
        (lambda x: Entmax(1.5).loss(x, torch.tensor([0, 1])), ValueError),
        (lambda x: Entmax(1.5).loss(x, torch.arange(3), reduction="max"), ValueError),
        (lambda x: Entmax(1.5).loss(x, torch.arange(3), ignore_index=1.5), TypeError),
    ],
)
def test_errors_are_the_same(call: Callable[[Tensor], Any], error: type[Exception]) -> None:
    scores = torch.randn(3, 4)
    messages = []
    for context in (None, without_binding()):
        if context is not None:
            context.__enter__()
        with pytest.raises(error) as raised:
            call(scores)
        messages.append(str(raised.value))
        if context is not None:
            context.__exit__(None, None, None)
    assert messages[0] == messages[1]


def test_errors_of_python_leave_a_backward_pass() -> None:
    scores = leaf(3, 4)
    y = fenchel.entmax(scores)
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_: Any) -> Tensor:
            raise KeyError("refused")

        patch.setattr(Entmax, "jvp", refuse)
        with pytest.raises(KeyError, match="refused"):
            torch.autograd.grad(y.sum(), scores, create_graph=True)


def test_no_memory_is_a_memory_error() -> None:
    from ctypes import CFUNCTYPE, c_double, c_int32, c_int64, c_void_p, cast

    kinds = (c_void_p, c_double, c_int64, c_int64, c_void_p, c_int32)
    refusing = CFUNCTYPE(c_int32, *kinds)(lambda *_: 1)
    address = cast(refusing, c_void_p).value
    solver = _binding._COMPILED.solver(
        solve=("T* f64 i64 i64 T* i32", address, address),
        jvp=("T* T* i64 i64 T* i32", address, address),
        parameter_vjp=None,
        rule=lambda *_: None,
        parameter="lam",
        option=None,
        minimum=0.0,
        max_option=0.0,
        is_part=False,
        replayed=None,
    )
    with pytest.raises(MemoryError, match="could not allocate"):
        solver(Fusedmax(0.1), torch.randn(3, 4), -1)
    with pytest.raises(TypeError, match="3 arguments are needed, got 1"):
        solver(Fusedmax(0.1))
    with pytest.raises(ValueError, match=r"no kernel is called with T\*"):
        _binding._COMPILED.solver(
            solve=("T*", 0, 0), jvp=("T*", 0, 0), parameter_vjp=None, rule=None, parameter=1.0,
            option=None, minimum=0.0, max_option=0.0, is_part=False, replayed=None,
        )  # fmt: skip


def test_modules_are_copied_and_saved() -> None:
    layer = fenchel.nn.Mapping(Entmax(nn.Parameter(torch.tensor(1.5))))
    scores = leaf(3, 4)
    layer(scores).square().sum().backward()
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(layer), torch.load(buffer, weights_only=False)):
        assert_same(other(scores), layer(scores))
        assert name_of(other(scores)) == SOLUTION
    assert_same(copy.deepcopy(Sparsemax())(scores), Sparsemax()(scores))


def test_nodes_let_go_of_what_they_hold() -> None:
    mapping, scores = Entmax(1.7), leaf(3, 4)
    kept = weakref.ref(mapping)
    y = mapping(scores)
    del mapping
    assert kept() is not None
    y.sum().backward()
    del y
    assert kept() is None


def test_threads() -> None:
    scores, v = torch.randn(2, 300, 100)
    x = scores.clone().requires_grad_()
    expected = torch.autograd.grad(fenchel.entmax(x), x, v)[0]
    shared = leaf(8, 8)
    y = fenchel.entmax(shared)
    wanted = torch.autograd.grad(y.square().sum(), shared, retain_graph=True)[0]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for _ in range(20):
            own = scores.clone().requires_grad_()
            if not torch.equal(torch.autograd.grad(fenchel.entmax(own), own, v)[0], expected):
                wrong.append("its own graph")
            found = torch.autograd.grad(
                y.square().sum(), shared, retain_graph=True, create_graph=seed % 2 == 0
            )
            if not torch.allclose(found[0], wanted):
                wrong.append("a shared graph")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


CODE = """
import torch, fenchel
torch.manual_seed(0)
x = torch.randn(5, 6, requires_grad=True)
alpha = torch.full((5, 1), 1.3, requires_grad=True)
y = fenchel.entmax(x, alpha=alpha)
loss = fenchel.Entmax(1.5).loss(x, torch.arange(5)) + y.square().sum()
print(y.tolist(), loss.item(), [g.tolist() for g in torch.autograd.grad(loss, (x, alpha))])
print(fenchel.kernels()["binding"].split(";")[0])
"""


def test_it_can_be_switched_off() -> None:
    with_it, without_it = (run(CODE, FENCHEL_BINDING=value).splitlines() for value in ("on", "off"))
    assert with_it[0] == without_it[0]
    assert with_it[1].startswith("loaded")
    assert without_it[1] == "switched off by FENCHEL_BINDING=off"
    assert "without the native library" in run(CODE, FENCHEL_KERNELS="reference")


def test_graphs_outlive_the_interpreter() -> None:
    run("import torch, fenchel\nx = torch.randn(3, 4, requires_grad=True)\ny = fenchel.entmax(x)")
    run(
        "import os, torch, fenchel\nx = torch.randn(3, 4, requires_grad=True)\n"
        "y = fenchel.entmax(x)\nchild = os.fork()\n"
        "if not child:\n    fenchel.entmax(x).sum().backward()\n    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )


def test_a_binding_for_another_version_is_ignored(tmp_path: Path) -> None:
    other = tmp_path / _binding.FILE.name.replace(torch.__version__, "2.99.0")
    shutil.copy(_binding.FILE, other)
    module, status = _binding._load(tmp_path / _binding.FILE.name)
    assert module is None
    assert status.startswith(f"not built for torch {torch.__version__}")
    broken = tmp_path / _binding.FILE.name
    broken.write_bytes(b"nothing")
    module, status = _binding._load(broken)
    assert module is None
    assert status.startswith("not loaded")


def test_a_binding_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_binding, "INTERFACE", -1)
    module, status = _binding._load(_binding.FILE)
    assert module is None
    assert "build it again" in status


def test_it_is_for_some_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    cmake = Path(__file__).parents[2] / "src/fenchel/ops/_binding/binding.cmake"
    versions = " ".join(_binding.BUILT_FOR)
    assert f"set(FENCHEL_BINDING_TORCH {versions})" in cmake.read_text(encoding="utf-8")
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    module, status = _binding._load(_binding.FILE)
    assert module is None
    assert status.startswith("for torch 2.11 and 2.13 and not for 2.8.0")


def test_the_name_is_that_of_this_torch_and_python() -> None:
    assert torch.__version__ in _binding.FILE.name
    assert f"{sys.version_info[0]}{sys.version_info[1]}" in _binding.FILE.name
    assert _native.LIBRARY is not None


def test_the_index_of_no_class_may_be_ignored() -> None:
    target = torch.tensor([0, -(2**63)])
    loss = Softmax().loss(torch.zeros(2, 3), target, ignore_index=-(2**63))
    torch.testing.assert_close(loss, torch.tensor(3.0).log())


def test_a_subclass_may_override_methods() -> None:
    def zeros(_: AbstractMapping, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores)

    own: Any = type("Own", (Softmax,), {"solve": zeros, "kernel_solve": zeros})
    assert own()(torch.zeros(2, 3)).eq(0).all()


def test_a_freed_parameter_is_an_error() -> None:
    alpha = torch.full((4, 1), 1.5, dtype=torch.float64)
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    y = fenchel.entmax(scores, alpha=alpha)
    alpha.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"has no memory|storage"):
        y.sum().backward()
