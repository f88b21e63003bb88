"""The binding and autograd: derivatives, hooks, modes, transforms and compilers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fenchel
from binding_helpers import (
    LOSS,
    REDUCTIONS,
    SOLUTION,
    assert_same,
    both,
    leaf,
    name_of,
    needs_binding,
    without_binding,
)
from fenchel import Entmax, Fusedmax, Ksubset, Normmax, Pnormmax, Softmax
from fenchel.mappings import AbstractMapping

pytestmark = needs_binding


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


def test_nodes_are_pytorchs() -> None:
    scores = leaf(3, 4)
    loss = fenchel.fenchel_young_loss("entmax", scores, torch.tensor([0, 1, 2]))
    for result in (fenchel.entmax(scores), loss):
        assert isinstance(result.grad_fn, torch.autograd.graph.Node)
        assert not isinstance(result, torch.autograd.graph.Node)


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
    with torch.profiler.profile(acc_events=True) as profile:
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
