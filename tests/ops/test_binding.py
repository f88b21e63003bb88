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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rows import hard_rows
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fenchel
from fenchel import Entmax, Fusedmax, Ksubset, Normmax, Pnormmax, Softmax, Sparsemax, mappings
from fenchel.mappings import AbstractMapping
from fenchel.ops import _binding, _native

IS_LOADED = _binding.STATUS.startswith("loaded")
needs_binding = pytest.mark.skipif(
    not IS_LOADED and not os.environ.get("CI"), reason=f"the binding is {_binding.STATUS}"
)
pytestmark = needs_binding
SOLUTION, LOSS = "BoundArgmaxBackward", "BoundClassLossBackward"
REDUCTIONS = ("mean", "sum")
WITH_STATE = (Softmax(), Sparsemax(), Entmax(1.5), Entmax(3))


@contextmanager
def without_binding() -> Iterator[None]:
    """All classes of mappings without what the binding gives them."""
    with pytest.MonkeyPatch.context() as patch:
        for mapping in mappings.examples():
            patch.setattr(type(mapping), "_solver", None)
            patch.setattr(type(mapping), "_class_loss", None)
        yield


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """The result with the binding and without it."""
    with_it = call()
    with without_binding():
        return with_it, call()


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def name_of(y: Tensor) -> str:
    """The name of the node that made a tensor."""
    assert y.grad_fn is not None
    return y.grad_fn.name()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


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


def test_derivatives_of_second_order() -> None:
    scores = leaf(3, 5, dtype=torch.float64)
    alpha = torch.full((3, 1), 1.4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 4, 2])
    for mapping in (Entmax(1.5), Softmax(), Pnormmax(1.5), Fusedmax(0.1), Ksubset(2.0, 1.5)):
        assert name_of(mapping(scores)) == SOLUTION
        assert gradcheck(mapping, (scores,), check_batched_grad=True)
        assert gradgradcheck(mapping, (scores,))
    for mapping in (Entmax, Normmax):
        assert gradcheck(lambda x, a, m=mapping: m(a)(x), (scores, alpha), check_batched_grad=True)
        assert gradgradcheck(lambda x, a, m=mapping: m(a)(x), (scores, alpha))
    for reduction in REDUCTIONS:
        loss = lambda x, r=reduction: Entmax(1.5).loss(x, target, reduction=r)  # noqa: E731
        assert gradcheck(loss, (scores,), check_batched_grad=True)
        assert gradgradcheck(loss, (scores,))


def test_changes_in_place_are_noticed() -> None:
    scores, alpha = leaf(3, 4), torch.full((3, 1), 1.5)
    y = fenchel.entmax(scores)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = fenchel.entmax(scores, alpha=alpha)
    alpha.fill_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    hidden, target = scores * 1, torch.arange(3)
    for changed in (hidden, target):
        loss = Entmax(1.5).loss(hidden, target)
        changed.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        hidden = scores * 1


def test_graphs_are_used_once_unless_kept() -> None:
    scores, target = leaf(3, 4), torch.arange(3)
    for call in (lambda: fenchel.entmax(scores).sum(), lambda: Entmax(1.5).loss(scores, target)):
        value = call()
        value.backward(retain_graph=True)
        value.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.backward()


def test_hooks() -> None:
    def call() -> list[Tensor]:
        torch.manual_seed(1)
        scores, seen = leaf(3, 4), []
        y = fenchel.entmax(scores)
        y.register_hook(lambda grad: grad * 2)
        scores.register_hook(lambda grad: seen.append(grad.clone()))
        assert y.grad_fn is not None
        y.grad_fn.register_hook(lambda grads, _: (grads[0] * 3,))
        y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
        y.retain_grad()
        (y * torch.arange(4.0)).sum().backward()
        return [scores.grad, y.grad, *seen]  # type: ignore[list-item]

    assert_same(*both(call))


def test_a_gradient_that_is_missing_is_zero() -> None:
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *_: Any) -> None:
            return None

    target = torch.arange(3)

    def call() -> list[Tensor]:
        scores = leaf(3, 4)
        y, loss = fenchel.entmax(scores), Entmax(1.5).loss(scores, target)
        return [torch.autograd.grad(Silent.apply(z).sum(), scores)[0] for z in (y, loss)]

    found, expected = both(call)
    assert_same(found, expected)
    assert all(grad.eq(0).all() for grad in found)


def test_tensors_are_saved_as_without_it() -> None:
    alpha, target = torch.full((3, 1), 1.5), torch.arange(3)
    scores = leaf(3, 4)

    def call() -> list[Tensor]:
        saved: list[Tensor] = []

        def pack(x: Tensor) -> Tensor:
            saved.append(x.detach().clone())
            return x.t().contiguous() if x.ndim == 2 else x

        with saved_tensors_hooks(pack, lambda x: x.t() if x.ndim == 2 else x):  # not contiguous
            y, loss = fenchel.entmax(scores, alpha=alpha), Entmax(1.5).loss(scores, target)
        return [*saved, *torch.autograd.grad(y.square().sum() + loss, scores)]

    assert_same(*both(call))
    x = leaf(3, 4)
    grads = []
    for run in (
        lambda x: fenchel.entmax(x),
        lambda x: checkpoint(fenchel.entmax, x, use_reentrant=False),
    ):
        grads.append(torch.autograd.grad(run(x * 2).square().sum(), x)[0])
    assert_same(*grads)


def test_modes_of_autograd() -> None:
    scores, target = leaf(3, 4), torch.arange(3)
    with torch.no_grad():
        assert not fenchel.entmax(scores).requires_grad
        assert not Entmax(1.5).loss(scores, target).requires_grad
    with torch.inference_mode():
        y = fenchel.entmax(scores)
        assert y.is_inference()
        assert Entmax(1.5).loss(scores, target).is_inference()
        alpha = torch.full((3, 1), 1.5)
    assert_same(y.clone(), fenchel.entmax(scores).detach())
    assert_same(fenchel.entmax(y), fenchel.entmax(y.clone()))
    for call in (lambda: fenchel.entmax(scores, alpha=alpha),):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            call()
        with without_binding(), pytest.raises(RuntimeError, match="Inference tensors cannot be"):
            call()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert_same(*both(lambda: torch.autograd.grad(fenchel.entmax(scores)[0, 0], scores)))


class Seen(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Changes nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Named(Tensor):
    """A subclass without anything of its own."""


def test_what_looks_at_operations_sees_them() -> None:
    scores, target = leaf(3, 4), torch.arange(3)
    y, loss = fenchel.entmax(scores), Entmax(1.5).loss(scores, target)
    with Seen() as seen:
        assert_same(fenchel.entmax(scores), y)
        assert_same(Entmax(1.5).loss(scores, target), loss)
        y.sum().backward()
    assert {"fenchel.entmax.default", "fenchel.entmax_jvp.default"} <= set(seen.names)
    with Functions():
        assert name_of(fenchel.entmax(scores)) != SOLUTION
        assert name_of(Entmax(1.5).loss(scores, target)) != LOSS
    with torch.profiler.profile() as profile:
        fenchel.entmax(scores)
    assert any("fenchel::entmax" in event.name for event in profile.events())
    named = scores.detach().as_subclass(Named)
    assert type(fenchel.entmax(named)) is Named
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        assert fenchel.entmax(torch.empty(3, 4)).shape == (3, 4)
    assert fenchel.entmax(scores.to("meta")).device.type == "meta"


def test_transforms() -> None:
    scores, target = torch.randn(5, 4), torch.randint(4, (5,))
    expected = fenchel.entmax(scores)
    torch.testing.assert_close(torch.vmap(fenchel.entmax)(scores), expected)
    jacobians = torch.func.jacrev(fenchel.entmax)(scores), torch.func.jacfwd(fenchel.entmax)(scores)
    assert_close = torch.testing.assert_close
    assert_close(*jacobians)
    loss = lambda x: Entmax(1.5).loss(x, target)  # noqa: E731
    x = scores.clone().requires_grad_()
    assert_close(torch.func.grad(loss)(scores), torch.autograd.grad(loss(x), x)[0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(scores, torch.ones_like(scores))
        assert forward_ad.unpack_dual(fenchel.entmax(dual)).tangent is not None
    v = torch.randn(3, 5, 4)
    y = fenchel.entmax(x)
    (batched,) = torch.autograd.grad(y, x, v, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in v]
    assert_close(batched, torch.stack(each))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_compilers() -> None:
    torch._dynamo.reset()
    scores, target = leaf(3, 4), torch.arange(3)

    def step(x: Tensor) -> Tensor:
        return fenchel.entmax(x).square().sum() + Entmax(1.5).loss(x, target)

    expected = torch.autograd.grad(step(scores), scores)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(scores), scores), expected)
    program = torch.export.export(nn.Sequential(fenchel.nn.Mapping(Entmax(1.5))), (scores,))
    assert "fenchel.entmax" in str(program.graph)
    traced = torch.jit.trace(lambda x: fenchel.entmax(x), scores.detach())
    torch.testing.assert_close(traced(scores), fenchel.entmax(scores))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_backward() -> None:
    from torch._dynamo import compiled_autograd

    scores, alpha, target = leaf(3, 4), torch.full((3, 1), 1.5, requires_grad=True), torch.arange(3)

    def gradients(compile: bool, mapping: AbstractMapping) -> tuple:
        scores.grad = alpha.grad = None
        total = mapping(scores).square().sum() + fenchel.entmax(scores, alpha=alpha)[0, 0]
        total = total + mapping.loss(scores, target)
        if compile:
            with compiled_autograd._enable(torch.compile(backend="eager")):
                total.backward()
        else:
            total.backward()
        return scores.grad, alpha.grad

    for mapping in (Entmax(1.3), Entmax(1.7), Softmax()):
        torch.testing.assert_close(gradients(True, mapping), gradients(False, mapping))


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
    )
    with pytest.raises(MemoryError, match="could not allocate"):
        solver(Fusedmax(0.1), torch.randn(3, 4), -1)
    with pytest.raises(TypeError, match="3 arguments are needed, got 1"):
        solver(Fusedmax(0.1))
    with pytest.raises(ValueError, match=r"no kernel is called with T\*"):
        _binding._COMPILED.solver(
            solve=("T*", 0, 0), jvp=("T*", 0, 0), parameter_vjp=None, rule=None, parameter=1.0,
            option=None, minimum=0.0, max_option=0.0, is_part=False,
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
