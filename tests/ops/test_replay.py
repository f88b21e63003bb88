"""Launches that the binding repeats, with a driver whose kernels run in Triton's interpreter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import fake_gpu as fake
import pytest
import torch
from torch import Tensor

import fenchel
from binding_helpers import (
    LOSS,
    REDUCTIONS,
    SOLUTION,
    WITH_STATE,
    assert_same,
    leaf,
    name_of,
    needs_binding,
)
from fenchel import Entmax, Fusedmax, Ksubset, Normmax, Oscarmax, Pnormmax, Softmax, Sparsemax
from fenchel.mappings import AbstractMapping
from fenchel.mappings._eager import bound_class_loss, bound_solver
from fenchel.ops import _binding, entmax, fusedmax, ksubset, oscarmax, pnormmax
from fenchel.ops._binding import replay
from fenchel.ops._triton.recorder import Recorder

pytestmark = [
    needs_binding,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted"),
]


class Case(NamedTuple):
    """A mapping with what its solver is made of."""

    mapping: AbstractMapping
    kernels: Any
    parameter: str | float
    limits: dict[str, Any]

    @property
    def number(self) -> float:
        name = self.parameter
        return float(getattr(self.mapping, name)) if isinstance(name, str) else name

    @property
    def option(self) -> float:
        name = self.limits.get("option")
        return 0.0 if name is None else float(getattr(self.mapping, name))


_SUBSETS = {"option": "alpha", "minimum": 0.0, "max_option": 2.0, "is_part": True}
_GROUPS = {"above": 0.0, "takes_half": False}
CASES = {
    "softmax": Case(Softmax(), entmax.KERNELS, 1.0, {}),
    "sparsemax": Case(Sparsemax(), entmax.KERNELS, 2.0, {}),
    "entmax": Case(Entmax(1.5), entmax.KERNELS, "alpha", {"above": 0.0}),
    "entmax3": Case(Entmax(3), entmax.KERNELS, "alpha", {"above": 0.0}),
    "normmax": Case(Normmax(2.0), pnormmax.NORMMAX_KERNELS, "alpha", {"above": 1.0}),
    "pnormmax": Case(Pnormmax(1.5), pnormmax.PNORMMAX_KERNELS, "p", {}),
    "fusedmax": Case(Fusedmax(0.1), fusedmax.KERNELS, "lam", _GROUPS),
    "oscarmax": Case(Oscarmax(0.1), oscarmax.KERNELS, "lam", _GROUPS),
    "ksubset": Case(Ksubset(2.0), ksubset.KERNELS, "k", _SUBSETS),
    "ksubset1.5": Case(Ksubset(2.5, 1.5), ksubset.KERNELS, "k", _SUBSETS),
}
WITH_TENSOR = ("entmax", "normmax", "ksubset")


@pytest.fixture
def gpu() -> Iterator[fake.FakeGpu]:
    with fake.fake_gpu() as found:
        yield found


def solver(name: str) -> Any:
    case = CASES[name]
    return bound_solver(case.kernels, case.parameter, **case.limits)


def solved(call: Any, case: Case, scores: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The solution and its gradient."""
    x = scores.detach().requires_grad_()
    y = call(case.mapping, x, -1)
    assert name_of(y) == SOLUTION
    return y.detach(), torch.autograd.grad(y, x, v)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_launches_are_repeated(gpu: fake.FakeGpu, name: str, dtype: torch.dtype) -> None:
    case, call = CASES[name], solver(name)
    if dtype == torch.bfloat16 and case.limits.get("takes_half") is False:
        assert call(case.mapping, torch.randn(3, 4, dtype=dtype), -1) is None
        return
    for shape in ((5, 7), (2, 1, 9), (4,)):
        scores, v = torch.randn(2, *shape, dtype=dtype)
        assert call(case.mapping, scores, -1) is None
        solved(call, case, scores, v)  # the solution is noted, the gradient is new
        solved(call, case, scores, v)  # the gradient is noted
        before, notes = _binding._COMPILED.num_replays(), gpu.notes
        scores, v = torch.randn(2, *shape, dtype=dtype)
        y, grad = solved(call, case, scores, v)
        assert _binding._COMPILED.num_replays() == before + 2
        assert gpu.notes == notes
        assert_same(y, case.kernels.gpu_solve(scores, case.number, case.option))
        assert_same(grad, case.kernels.gpu_jvp(y, v, case.number, case.option))
    for _, sizes, stream, extra, scratch in gpu.launches:
        assert sizes[3:] == (32 * fake.USUAL["num_warps"], 1, 1, fake.USUAL["shared"])
        assert (stream, extra, scratch) == (fake.STREAM, None, [0, 0])


@pytest.mark.parametrize("name", WITH_TENSOR)
@pytest.mark.parametrize("kind", ["scalar", "each"])
def test_parameters_that_are_tensors(gpu: fake.FakeGpu, name: str, kind: str) -> None:
    case, call = CASES[name], solver(name)
    values = torch.tensor([[1.2], [1.5], [2.0], [3.0]])
    values = values[1, 0] if kind == "scalar" else values
    for dtype in (torch.float32, torch.float64):
        value = values.to(dtype)
        for attempt in range(5):
            scores, v = torch.randn(2, 4, 7)
            x, p = scores.clone().requires_grad_(), value.clone().requires_grad_()
            mapping = case.mapping.unchecked(**{**vars(case.mapping), case.parameter: p})
            y = call(mapping, x, -1)
            if attempt < 1:
                assert y is None
                continue
            grads = torch.autograd.grad(y, (x, p), v)
        each = value.expand(4, 1).contiguous()
        assert_same(y.detach(), case.kernels.gpu_solve(scores, each, case.option))
        vjp = case.kernels.gpu_parameter_vjp
        if vjp is not None:
            assert_same(grads[0], case.kernels.gpu_jvp(y.detach(), v, each, case.option))
            slope = vjp(y.detach(), v, each, case.option)
            assert_same(grads[1], slope.sum_to_size(value.shape).to(dtype))
    half = torch.randn(4, 7, dtype=torch.bfloat16)
    mapping = case.mapping.unchecked(**{**vars(case.mapping), case.parameter: value})
    found = [call(mapping, half, -1) for _ in range(3)]
    assert (found[-1] is None) == (kind == "scalar")


@pytest.mark.parametrize("mapping", WITH_STATE, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignore_index", [None, -100, 2])
def test_losses(gpu: fake.FakeGpu, mapping: Any, reduction: str, ignore_index: int | None) -> None:
    kernels, alpha = entmax.LOSS_KERNELS, float(mapping.exponent)
    call = bound_class_loss(kernels, alpha)
    for shape in ((6, 5), (2, 4, 5), (5,)):
        for attempt in range(5):
            scores, target = torch.randn(shape), torch.randint(5, shape[:-1])
            if ignore_index == -100 and len(shape) > 1:
                target[..., 0] = -100
            x = scores.clone().requires_grad_()
            before = _binding._COMPILED.num_replays()
            total = call(mapping, x, target, -1, reduction, ignore_index)
            if attempt < 1:
                assert total is None
                continue
            assert name_of(total) == LOSS
            (grad,) = torch.autograd.grad(total * 3, x)
        assert _binding._COMPILED.num_replays() == before + 2
        index = -(2**63) if ignore_index is None else ignore_index
        losses, state = kernels.gpu_loss(scores, target, alpha, index)
        expected, weight = losses.sum(), torch.tensor(3.0)
        if reduction == "mean":
            count = target.numel() if ignore_index is None else (target != ignore_index).sum()
            expected, weight = expected / count, weight / count
        assert_same(total.detach(), expected)
        assert_same(grad, kernels.gpu_gradient(scores, state, target, weight, alpha, 0.0))
    assert call(mapping, scores.bfloat16(), target, -1, reduction, ignore_index) is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_backward(gpu: fake.FakeGpu) -> None:
    from torch._dynamo import compiled_autograd

    mapping, target = Entmax(1.5), torch.tensor([0, 2, 3])
    solve, loss = solver("entmax"), bound_class_loss(entmax.LOSS_KERNELS, "alpha")
    scores = leaf(3, 4)
    for index in (None, 2):

        def gradient(compile: bool, index: int | None = index) -> Any:
            y = total = None
            while y is None or total is None:
                y = solve(mapping, scores, -1)
                total = loss(mapping, scores, target, -1, "mean", index)
            scores.grad = None
            if compile:
                with compiled_autograd._enable(torch.compile(backend="eager")):
                    (y.square().sum() + total).backward()
            else:
                (y.square().sum() + total).backward()
            return scores.grad

        for _ in range(3):
            expected = gradient(False)
        torch.testing.assert_close(gradient(True), expected)


def test_calls_that_differ_are_told_apart(gpu: fake.FakeGpu) -> None:
    call = solver("entmax")
    memory = torch.randn(101)
    calls = {
        "plain": (Entmax(1.5), torch.randn(4, 5)),
        "other rows": (Entmax(1.5), torch.randn(3, 5)),
        "other width": (Entmax(1.5), torch.randn(4, 6)),
        "same numbers of entries": (Entmax(1.5), torch.randn(5, 4)),
        "other type": (Entmax(1.5), torch.randn(4, 5, dtype=torch.float64)),
        "other number": (Entmax(1.25), torch.randn(4, 5)),
        "not aligned": (Entmax(1.5), memory[1:21].view(4, 5)),
        "a tensor": (Entmax(torch.full((4, 1), 1.5)), torch.randn(4, 5)),
        "a tensor of another type": (Entmax(torch.full((4, 1), 1.5).double()), torch.randn(4, 5)),
    }
    for mapping, scores in calls.values():
        assert call(mapping, scores, -1) is None
        notes = gpu.notes
        expected = call(mapping, scores, -1)
        assert gpu.notes > notes
        launches = len(gpu.launches)
        assert_same(call(mapping, scores, -1), expected)
        assert len(gpu.launches) > launches
    notes = gpu.notes
    mapping, scores = calls["plain"]
    reshaped = scores.view(2, 2, 5)
    assert_same(call(mapping, reshaped, -1), call(mapping, scores, -1).view(2, 2, 5))
    assert gpu.notes == notes


def test_gradients_of_every_kind(gpu: fake.FakeGpu) -> None:
    case, call = CASES["entmax"], solver("entmax")
    scores = leaf(4, 6)
    for _ in range(4):
        y = call(case.mapping, scores, -1)
        if y is not None:
            torch.autograd.grad(y, scores, torch.ones(4, 6), retain_graph=True)
    v = torch.randn(6, 4).t()
    for given in (v, torch.ones(()).expand(4, 6), torch.randn(4, 1).expand(4, 6)):
        (grad,) = torch.autograd.grad(y, scores, given, retain_graph=True)
        assert_same(grad, case.kernels.gpu_jvp(y.detach(), given.contiguous(), 1.5, 0.0))
    (again,) = torch.autograd.grad(y, scores, y, retain_graph=True)  # v in the same place as y
    expected = case.kernels.gpu_jvp(y.detach(), y.detach().clone(), 1.5, 0.0)
    torch.testing.assert_close(again, expected)
    (grad,) = torch.autograd.grad(y.square().sum(), scores, create_graph=True)
    assert grad.requires_grad
    assert torch.autograd.grad(grad.sum(), scores)[0].isfinite().all()


def test_inputs_that_are_one_tensor_are_no_record(gpu: fake.FakeGpu) -> None:
    jvp = entmax.KERNELS.gpu_jvp
    assert jvp is not None
    y, v = torch.rand(2, 3, 4)
    assert replay.noted(jvp, (y, v), 1.5, 0.0)[1] is not None
    assert replay.noted(jvp, (y, y), 1.5, 0.0)[1] is None


def test_what_does_more_than_launch_is_refused(gpu: fake.FakeGpu) -> None:
    for name, width in (("oscarmax", 65), ("fusedmax", 257)):  # sorted, and padded
        case, call = CASES[name], solver(name)
        scores = torch.randn(2, width)
        found = [call(case.mapping, scores, -1) for _ in range(4)]
        assert [y is None for y in found] == [True, False, True, True]
        assert not gpu.launches


@pytest.mark.parametrize("name", CASES)
def test_operations_only_allocate_and_launch(name: str) -> None:
    case = CASES[name]
    scores, v = torch.rand(2, 6, 32)
    parameters: list[float | Tensor] = [case.number]
    if name in WITH_TENSOR:
        parameters.append(torch.full((6, 1), case.number))
    for parameter in parameters:
        operations = [(case.kernels.gpu_solve, (scores,)), (case.kernels.gpu_jvp, (scores, v))]
        if case.kernels.gpu_parameter_vjp is not None:
            operations.append((case.kernels.gpu_parameter_vjp, (scores, v)))
        for operation, tensors in operations:
            with Recorder() as recorder:
                operation(*tensors, parameter, case.option)
            assert recorder.launches
            assert not recorder.others


def test_losses_only_allocate_and_launch() -> None:
    scores, target, kernels = torch.randn(6, 8), torch.randint(8, (6,)), entmax.LOSS_KERNELS
    weight = torch.ones(())
    with Recorder() as recorder:
        _, state = kernels.gpu_loss(scores, target, 1.5, -100)
        kernels.gpu_gradient(scores, state, target, weight, 1.5, 0.0)
    assert len(recorder.launches) == 3
    assert not recorder.others


def test_another_device_may_be_the_current_one(gpu: fake.FakeGpu) -> None:
    case, call = CASES["entmax"], solver("entmax")
    scores = torch.randn(3, 4)
    expected = [call(case.mapping, scores, -1) for _ in range(3)][-1]
    gpu.device = 1
    assert call(case.mapping, scores, -1) is None
    gpu.device = -1
    assert_same(call(case.mapping, scores, -1), expected)


def test_errors_of_the_driver_are_raised(gpu: fake.FakeGpu) -> None:
    case, call = CASES["entmax"], solver("entmax")
    scores = leaf(3, 4)
    for _ in range(4):
        y = call(case.mapping, scores, -1)
        if y is not None:
            torch.autograd.grad(y, scores, torch.ones(3, 4), retain_graph=True)
    gpu.status = 700
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel returned error 700\."):
        call(case.mapping, scores, -1)
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel returned error 700\."):
        y.sum().backward()
    gpu.status = 0
    assert_same(call(case.mapping, scores, -1), y)


def test_half_precision_in_autocast_goes_the_usual_way(gpu: fake.FakeGpu) -> None:
    case, call = CASES["entmax"], solver("entmax")
    scores = torch.randn(3, 4, dtype=torch.bfloat16)
    expected = [call(case.mapping, scores, -1) for _ in range(3)][-1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call(case.mapping, scores, -1) is None
    assert_same(call(case.mapping, scores, -1), expected)


def replaying(operation: Any) -> Any:
    """A solver with an operation that is already as the binding calls it."""
    kernels = entmax.KERNELS
    return _binding._COMPILED.solver(
        solve=kernels.solve.entry, jvp=kernels.jvp.entry, parameter_vjp=None, rule=None,
        parameter=1.5, option=None, minimum=0.0, max_option=0.0, is_part=False,
        replayed=("cpu", False, [operation, None, None]),
    )  # fmt: skip


def test_the_table_is_bounded(gpu: fake.FakeGpu) -> None:
    calls: list[tuple[int, ...]] = []

    def operation(tensors: tuple[Tensor, ...], parameter: float, option: float) -> tuple:
        calls.append(tuple(tensors[0].shape))
        return (torch.zeros_like(tensors[0]),), (gpu.addresses(), [], [])

    call = replaying(operation)
    first = torch.zeros(1, 1)
    for _ in range(3):
        call(Softmax(), first, -1)
    assert calls == [(1, 1)]
    for d in range(2, 1200):
        assert call(Softmax(), torch.zeros(1, d), -1) is None
    assert [call(Softmax(), first, -1) is None for _ in range(3)] == [True, False, False]
    assert calls == [(1, 1)] * 2


@pytest.mark.parametrize(
    ("launches", "message"),
    [
        ([(1, (1, 1, 1), 32, 0, [(2, 0)])], "an argument is of no tensor"),
        ([(1, (1, 1, 1), 32, 0, [(-2, 0)])], "an argument is of no tensor"),
        ([(1, (1, 1, 1), 32, 0, [(-1, 0)] * 65)], "a kernel has too many arguments"),
    ],
)
def test_records_are_checked(gpu: fake.FakeGpu, launches: list, message: str) -> None:
    call = replaying(lambda x, *_: ((torch.zeros_like(x[0]),), (gpu.addresses(), [], launches)))
    scores = torch.zeros(2, 3)
    assert call(Softmax(), scores, -1) is None
    with pytest.raises(RuntimeError, match=message):
        call(Softmax(), scores, -1)


def test_threads(gpu: fake.FakeGpu) -> None:
    noted: list[int] = []

    def operation(tensors: tuple[Tensor, ...], parameter: float, option: float) -> tuple:
        noted.append(tensors[0].shape[-1])
        return (torch.zeros_like(tensors[0]),), (gpu.addresses(), [], [])

    call = replaying(operation)

    def work() -> None:
        for d in range(1, 100):
            for _ in range(4):
                call(Softmax(), torch.zeros(2, d), -1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(noted) == list(range(1, 100))


def test_without_a_gpu_nothing_is_repeated() -> None:
    assert _binding.DEVICE == "cuda"
    before = _binding._COMPILED.num_replays()
    for _ in range(3):
        fenchel.entmax(torch.randn(3, 4))
    assert _binding._COMPILED.num_replays() == before
