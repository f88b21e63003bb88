"""The binding on a GPU against the same calls without it: bit for bit, whatever surrounds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rows import hard_rows
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fenchel
from binding_helpers import (
    LOSS,
    REDUCTIONS,
    SOLUTION,
    WITH_STATE,
    assert_same,
    name_of,
    needs_binding,
    without_binding,
)
from fenchel import Entmax, Fusedmax, Ksubset, Normmax, Oscarmax, Pnormmax, Softmax, Sparsemax
from fenchel.mappings import AbstractMapping
from fenchel.ops import _binding

pytestmark = [
    needs_binding,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
MAPPINGS = (
    Softmax(),
    Sparsemax(),
    Entmax(1.5),
    Entmax(1.3),
    Entmax(0.7),
    Entmax(3.0),
    Normmax(2.0),
    Pnormmax(1.5),
    Fusedmax(0.1),
    Oscarmax(0.05),
    Ksubset(2.0),
    Ksubset(2.5, 1.5),
)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
REPEATS = 4
"""Calls after which launches are repeated: of a solution the third, of its gradient the fourth."""


def num_replays() -> int:
    return _binding._COMPILED.num_replays()


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=grad)


def compared(call: Callable[[], Any], replays: int) -> Any:
    """The result of a call whose launches are repeated, the same as without the binding."""
    for _ in range(REPEATS):
        call()
    before = num_replays()
    found = call()
    assert num_replays() == before + replays
    with without_binding():
        expected = call()
    assert_same(found, expected)
    return found


def in_half(mapping: AbstractMapping) -> bool:
    return not isinstance(mapping, Fusedmax | Oscarmax)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(5,), (1, 7), (64, 128), (3, 2, 33), (2, 1100), (17, 9000)], ids=str
)
def test_solutions_and_gradients(
    mapping: AbstractMapping, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    scores, v = randn(2, *shape, dtype=dtype).unbind()

    def call() -> tuple[Tensor, ...]:
        x = scores.clone().requires_grad_()
        y = mapping(x)
        assert y.is_contiguous()
        (grad,) = torch.autograd.grad(y, x, v, retain_graph=True)
        (spread,) = torch.autograd.grad(y.sum(), x)
        with torch.no_grad():
            return y.detach(), grad, spread, mapping(scores)

    is_pure = not (isinstance(mapping, Oscarmax) and shape[-1] > 64)
    is_padded = isinstance(mapping, Fusedmax) and shape[-1] > 256 and shape[-1] % 16
    replays = 4 if is_pure and (in_half(mapping) or dtype.itemsize > 2) else 0
    compared(call, 0 if is_padded else replays)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_hard_rows(alpha: float, dtype: torch.dtype) -> None:
    scores = hard_rows(40).to("cuda", dtype)

    def call() -> tuple[Tensor, ...]:
        x = scores.clone().requires_grad_()
        y = fenchel.entmax(x, alpha=alpha)
        return y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))

    compared(call, 2)


@pytest.mark.parametrize("name", ["entmax", "normmax", "ksubset"])
@pytest.mark.parametrize("kind", ["scalar", "each"])
@pytest.mark.parametrize("types", [(f, g) for f in TYPES for g in TYPES[:2]], ids=str)
def test_parameters_that_are_tensors(
    name: str, kind: str, types: tuple[torch.dtype, torch.dtype]
) -> None:
    option = "k" if name == "ksubset" else "alpha"
    scores, v = randn(2, 5, 9, dtype=types[0]).unbind()
    value = torch.tensor([[1.2], [1.5], [2.0], [4.0], [3.0]], dtype=types[1], device="cuda")
    value = value[1, 0] if kind == "scalar" else value
    is_served = not (kind == "scalar" and types[0].itemsize == 2)
    for for_scores, for_value in ((False, False), (True, False), (False, True), (True, True)):

        def call(for_scores: bool = for_scores, for_value: bool = for_value) -> list[Tensor]:
            x = scores.clone().requires_grad_(for_scores)
            p = value.clone().requires_grad_(for_value)
            y = getattr(fenchel, name)(x, **{option: p})
            wanted = [t for t in (x, p) if t.requires_grad]
            return [y.detach(), *(torch.autograd.grad(y, wanted, v) if wanted else ())]

        backward = int(for_scores) + int(for_value) if name == "entmax" else int(not for_value)
        compared(call, (1 + backward * (for_scores or for_value)) if is_served else 0)
    wrong = torch.full((5, 1), -1.0, dtype=types[1], device="cuda")
    compared(lambda: getattr(fenchel, name)(scores, **{option: wrong}), 1)


@pytest.mark.parametrize("mapping", WITH_STATE, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("ignore_index", [None, -100, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses(
    mapping: AbstractMapping, reduction: str, ignore_index: int | None, dtype: torch.dtype
) -> None:
    for shape in ((5,), (6, 5), (2, 3, 70), (64, 128), (3, 5000)):
        scores = randn(*shape, dtype=dtype)
        target = torch.randint(5, shape[:-1], device="cuda")
        if ignore_index == -100 and len(shape) > 1:
            target[..., 0] = -100

        def call(scores: Tensor = scores, target: Tensor = target) -> tuple[Tensor, Tensor]:
            x = scores.clone().requires_grad_()
            loss = mapping.loss(x, target, reduction=reduction, ignore_index=ignore_index)
            return loss.detach(), torch.autograd.grad(loss * 3, x)[0]

        compared(call, 2)
    x = scores.clone().requires_grad_()
    assert name_of(mapping.loss(x, target, reduction=reduction, ignore_index=ignore_index)) == LOSS
    outside = target.clone()
    outside[0] = scores.shape[-1]
    compared(lambda: mapping.loss(scores, outside, reduction=reduction), 1)
    ignored = torch.full_like(target, -100)
    compared(lambda: mapping.loss(scores, ignored, reduction=reduction), 1)


def test_inputs_of_other_kinds() -> None:
    scores, memory = randn(6, 8), randn(101)
    for x in (scores.t(), scores[:, ::2], scores[:0], scores.cfloat().conj().real):
        compared(lambda x=x: fenchel.entmax(x), int(x.is_contiguous() and x.numel() > 0))
    compared(lambda: fenchel.entmax(scores, 0), 0)
    compared(lambda: fenchel.entmax(scores, gamma=0.5), 0)
    for start in range(4):  # not aligned, beside aligned ones of the same shape
        compared(lambda start=start: fenchel.entmax(memory[start : start + 40].view(5, 8)), 1)
    single = torch.randn(1, 40, device="cuda").as_strided((1, 13), (7, 1))
    compared(lambda: fenchel.entmax(single), 1)
    target = torch.randint(8, (12,), device="cuda")[::2]
    compared(lambda: Entmax(1.5).loss(scores, target), 0)
    compared(lambda: Entmax(1.5).loss(scores, target.contiguous().int()), 0)
    compared(lambda: Entmax(1.5).loss(scores.bfloat16(), target.contiguous()), 0)
    with pytest.raises(ValueError, match="alpha"):
        fenchel.entmax(scores, alpha=torch.full((6, 1), 1.5))  # on the CPU
    with pytest.raises(ValueError, match="`target`"):
        Entmax(1.5).loss(scores, target.cpu())


def test_autocast() -> None:
    for dtype in TYPES:
        scores = randn(6, 8, dtype=dtype)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = compared(lambda scores=scores: fenchel.entmax(scores), int(dtype.itemsize > 2))
        assert y.dtype == (dtype if dtype.itemsize > 2 else torch.float32)


def test_modes_of_autograd() -> None:
    scores, target = randn(6, 8, grad=True), torch.arange(6, device="cuda")
    for _ in range(REPEATS):
        with torch.no_grad():
            assert not fenchel.entmax(scores).requires_grad
            assert not Entmax(1.5).loss(scores, target).requires_grad
        with torch.inference_mode():
            y = fenchel.entmax(scores)
            assert y.is_inference()
            assert Entmax(1.5).loss(scores, target).is_inference()
        assert_same(y.clone(), fenchel.entmax(scores).detach())
        assert name_of(fenchel.entmax(scores)) == SOLUTION


def test_streams() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    scores = randn(64, 128, grad=True)
    expected = fenchel.entmax(scores)
    v = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, scores, v, retain_graph=True)
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in (first, second):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000)
                own = (scores.detach() + 0).requires_grad_()  # ready only when that has ended
                y = fenchel.entmax(own)
                (grad,) = torch.autograd.grad(y, own, v)
                result = y.detach() + 0
            stream.synchronize()
            assert_same(result, expected.detach())
            assert_same(grad, gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graph_capture(dtype: torch.dtype) -> None:
    scores, v = randn(16, 64, dtype=dtype), randn(16, 64, dtype=dtype)
    target = torch.randint(64, (16,), device="cuda")

    def step() -> tuple[Tensor, Tensor, Tensor]:
        x = scores.detach().requires_grad_()
        y = fenchel.sparsemax(x)
        loss = Entmax(1.5).loss(x.float(), target)
        (grad,) = torch.autograd.grad((y, loss), x, (v, torch.ones_like(loss)))
        return y.detach(), loss.detach(), grad

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(REPEATS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    before = num_replays()
    with torch.cuda.graph(graph):
        found = step()
    assert num_replays() > before
    for _ in range(3):
        scores.copy_(torch.randn_like(scores))
        graph.replay()
        with without_binding():
            assert_same(found, step())


def test_capture_of_new_shapes() -> None:
    for alpha in (1.5, 2.0):  # the kernels are compiled before, for other shapes
        fenchel.entmax(randn(8, 48), alpha=alpha)
        fenchel.entmax(randn(16, 48), alpha=alpha)
    scores = randn(24, 48)
    for _ in range(3):  # seen, noted and repeated for the first time in a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fenchel.entmax(scores)
        graph.replay()
        with without_binding():
            assert_same(y, fenchel.entmax(scores))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_other_devices() -> None:
    scores = torch.randn(6, 8, device="cuda:1")
    compared(lambda: fenchel.entmax(scores), 0)
    with torch.cuda.device(1):
        compared(lambda: fenchel.entmax(scores), 1)
    compared(lambda: fenchel.entmax(scores.to("cuda:0")), 1)


def test_threads() -> None:
    scores, v = randn(64, 100), randn(64, 100)
    x = scores.clone().requires_grad_()
    expected = torch.autograd.grad(fenchel.entmax(x), x, v)[0]
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for i in range(50):
                own = scores.clone().requires_grad_()
                grad = torch.autograd.grad(fenchel.entmax(own), own, v)[0]
                fenchel.entmax(randn(3, 4 + (seed + i) % 9))
                torch.cuda.current_stream().synchronize()
                if not torch.equal(grad, expected):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_shapes() -> None:
    scores = randn(1200, 8)
    with without_binding():
        expected = fenchel.sparsemax(scores[:1199])
    for _ in range(3):
        for n in range(1, 1200):
            y = fenchel.sparsemax(scores[:n])
        assert_same(y, expected)
    compared(lambda: fenchel.sparsemax(scores[:5]), 1)


def test_memory_of_tensors_that_are_gone_is_used_again() -> None:
    scores, v = randn(256, 256), randn(256, 256)
    with without_binding():
        x = scores.clone().requires_grad_()
        expected = torch.autograd.grad(fenchel.entmax(x), x, v)[0]
    for _ in range(100):
        x = scores.clone().requires_grad_()
        y = fenchel.entmax(x)
        (grad,) = torch.autograd.grad(y, x, v)
        del x, y
        assert_same(grad, expected)


def test_second_derivatives_and_transforms() -> None:
    scores = randn(3, 5, dtype=torch.float64, grad=True)
    for _ in range(REPEATS):
        y = fenchel.entmax(scores)
        (grad,) = torch.autograd.grad(y.square().sum(), scores, create_graph=True)
        torch.autograd.grad(y.square().sum(), scores, retain_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), scores)
    with without_binding():
        y = fenchel.entmax(scores)
        (grad,) = torch.autograd.grad(y.square().sum(), scores, create_graph=True)
        assert_same(second, torch.autograd.grad(grad.square().sum(), scores)[0])
    x = scores.detach()
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        found = transform(fenchel.entmax)(x)
        with without_binding():
            assert_same(found, transform(fenchel.entmax)(x))
    torch.testing.assert_close(torch.vmap(fenchel.entmax)(x), fenchel.entmax(x))


def test_graphs_are_kept_and_released() -> None:
    scores, target = randn(3, 4, grad=True), torch.arange(3, device="cuda")
    for call in (lambda: fenchel.entmax(scores).sum(), lambda: Entmax(1.5).loss(scores, target)):
        for _ in range(REPEATS):
            value = call()
            value.backward(retain_graph=True)
            value.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                value.backward()


def test_hooks_and_checkpoints() -> None:
    scores = randn(3, 4)

    def call() -> list[Tensor]:
        x, seen = scores.clone().requires_grad_(), []
        y = fenchel.entmax(x)
        y.register_hook(lambda grad: grad * 2)
        x.register_hook(lambda grad: seen.append(grad.clone()))
        (y * torch.arange(4.0, device="cuda")).sum().backward()
        z = checkpoint(fenchel.entmax, x * 2, use_reentrant=False)
        assert isinstance(z, Tensor)
        return [x.grad, *seen, *torch.autograd.grad(z.square().sum(), x)]  # type: ignore[list-item]

    compared(call, 5)


def test_changes_in_place_are_noticed() -> None:
    scores, target = randn(3, 4, grad=True), torch.arange(3, device="cuda")
    for _ in range(REPEATS):
        y = fenchel.entmax(scores)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        hidden = scores * 1
        loss = Entmax(1.5).loss(hidden, target)
        hidden.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Seen(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_looks_at_operations_sees_them() -> None:
    scores = randn(3, 4)
    for _ in range(REPEATS):
        fenchel.entmax(scores)
    with Seen() as seen:
        fenchel.entmax(scores)
    assert "fenchel.entmax.default" in seen.names
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        fenchel.entmax(scores)
    assert any("fenchel::entmax" in event.name for event in profile.events())


def test_compilers() -> None:
    torch._dynamo.reset()
    layer = nn.Sequential(nn.Linear(8, 8), fenchel.nn.Mapping(Entmax(1.5))).cuda()
    scores = randn(4, 8)
    for _ in range(REPEATS):
        expected = layer(scores)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores), expected)
