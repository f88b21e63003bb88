"""General: derivatives in what its regularizer is made of, types, and bad regularizers."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import fenchel
from fenchel import ConvergenceWarning, General
from fenchel.mappings import _general
from regularizers import FORMS, TARGET, exact, inputs, penalty, scores, weights


def distribution() -> Tensor:
    return torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], dtype=torch.float64)


USES: dict[str, Callable[[General, Tensor], Tensor]] = {
    "solution": lambda mapping, x: mapping(x),
    "max": lambda mapping, x: mapping.max(x),
    "classes": lambda mapping, x: mapping.loss(x, TARGET),
    "distributions": lambda mapping, x: mapping.loss(x, distribution()),
    "columns": lambda mapping, x: mapping(x.T.contiguous(), 0),
    "support": lambda mapping, x: mapping.support(x).values,
}


# --- derivatives in what the regularizer is made of


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_function(form: str) -> None:
    assert gradcheck(lambda x, weight: exact(FORMS[form](weight))(x), inputs(), fast_mode=True)


@pytest.mark.parametrize("use", USES)
def test_every_use(use: str) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return USES[use](exact(lambda y: penalty(weight, y), gamma=0.7), x)

    assert gradcheck(function, inputs(), fast_mode=True)


@pytest.mark.parametrize("use", ["solution", "max", "classes"])
def test_second_order(use: str) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return USES[use](exact(lambda y: penalty(weight, y), gamma=0.7), x)

    assert gradgradcheck(function, inputs(), fast_mode=True)


def test_forward_mode_and_batches() -> None:
    function = lambda weight: exact(lambda y: penalty(weight, y))(scores())  # noqa: E731
    given = (weights().requires_grad_(),)
    assert gradcheck(function, given, check_forward_ad=True, check_batched_grad=True)


def test_a_gamma_for_each_row() -> None:
    gamma = torch.tensor([[0.5], [1.5]], dtype=torch.float64, requires_grad=True)
    function = lambda x, w, g: exact(lambda y: penalty(w, y), g).loss(x, TARGET)  # noqa: E731
    assert gradcheck(function, (*inputs(), gamma), fast_mode=True)


def test_weights_of_each_row() -> None:
    weight = torch.stack([weights(), 2 * weights()]).requires_grad_()
    assert gradcheck(lambda w: exact(lambda y: (w * y * y).sum(-1))(scores()), (weight,))
    pairs = zip(weight, scores(), strict=True)
    each = [exact(lambda y, w=w: (w * y * y).sum(-1))(x) for w, x in pairs]
    y = exact(lambda y: (weight * y * y).sum(-1))(scores())
    torch.testing.assert_close(y, torch.stack(each))


def test_weights_that_are_computed() -> None:
    raw = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def function(raw: Tensor) -> Tensor:
        weight = nn.functional.softplus(raw)
        return exact(lambda y: (weight * y * y).sum(-1))(scores())

    assert gradcheck(function, (raw,))


def test_func_transforms() -> None:
    x, weight = scores(), weights()
    several = torch.stack([weight, weight + 0.3, weight.flip(0)])
    for use in ("solution", "classes"):

        def function(x: Tensor, weight: Tensor, use: str = use) -> Tensor:
            return USES[use](exact(lambda y: penalty(weight, y)), x)

        expected = torch.autograd.functional.jacobian(function, (x, weight))
        torch.testing.assert_close(torch.func.jacrev(function, (0, 1))(x, weight), expected)
        torch.testing.assert_close(torch.func.jacfwd(function, (0, 1))(x, weight), expected)
        each = torch.stack([function(x, one) for one in several])
        torch.testing.assert_close(torch.func.vmap(function, (None, 0))(x, several), each)
        slopes = torch.func.vmap(torch.func.jacrev(function, 1), (None, 0))(x, several)
        torch.testing.assert_close(slopes[0], expected[1])

    def loss(weight: Tensor) -> Tensor:
        return exact(lambda y: penalty(weight, y)).loss(x, TARGET)

    hessian = torch.autograd.functional.hessian(loss, weight)
    torch.testing.assert_close(torch.func.hessian(loss)(weight), hessian)


def test_a_transform_over_the_scores_keeps_the_gradient_of_the_weights() -> None:
    weight = weights().requires_grad_()
    mapping = exact(lambda y: penalty(weight, y))
    (expected,) = torch.autograd.grad(mapping(scores())[:, 0].sum(), weight)
    (gradient,) = torch.autograd.grad(torch.func.vmap(mapping)(scores())[:, 0].sum(), weight)
    torch.testing.assert_close(gradient, expected)


def test_functional_call() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weights())

        def forward(self, x: Tensor) -> Tensor:
            return exact(lambda y: penalty(self.weight, y))(x)[:, 0].sum()

    head = Head()
    (expected,) = torch.autograd.grad(head(scores()), head.weight)
    loss = lambda p: torch.func.functional_call(head, p, (scores(),))  # noqa: E731
    gradient = torch.func.grad(loss)({"weight": head.weight.detach()})["weight"]
    torch.testing.assert_close(gradient, expected)


def test_hooks_on_saved_tensors() -> None:
    weight = weights().requires_grad_()
    function = lambda x: exact(lambda y: penalty(weight, y))(x)[:, 0].sum()  # noqa: E731
    x = scores().requires_grad_()
    expected = torch.autograd.grad(function(x), (x, weight))
    gradient = torch.autograd.grad(checkpoint(function, x, use_reentrant=False), (x, weight))
    torch.testing.assert_close(gradient, expected)


def graph_size(result: Tensor) -> int:
    nodes, left = set(), [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            left += [following for following, _ in node.next_functions]
    return len(nodes)


def test_no_graph_of_the_solver() -> None:
    weight = weights().requires_grad_()
    mapping = General(lambda y: (weight * y * y).sum(-1))
    assert graph_size(mapping(scores())) < 40
    assert mapping(scores()).grad_fn is not None
    with torch.no_grad():
        assert mapping(scores()).grad_fn is None
    frozen = weights()
    assert General(lambda y: (frozen * y * y).sum(-1))(scores()).grad_fn is None


def test_a_first_derivative_needs_one_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    hessian = _general._implicit.hessian
    monkeypatch.setattr(
        _general._implicit, "hessian", lambda *given: (seen.append(1), hessian(*given))[1]
    )
    x, weight = inputs()
    mapping = exact(lambda y: penalty(weight, y))
    torch.autograd.grad(mapping(x)[:, 0].sum(), (x, weight))
    assert len(seen) == 1
    torch.autograd.grad(mapping.loss(x, TARGET), (x, weight))
    assert len(seen) == 1


def test_rows_that_are_not_finite_spare_the_weights() -> None:
    weight = weights().requires_grad_()
    mapping = exact(lambda y: (weight * y * y).sum(-1))
    x = torch.tensor([[-math.inf] * 3, [math.inf, 0.0, 0.0], [0.3, -math.inf, 0.1]]).double()
    x.requires_grad_()
    y = mapping(x)
    assert y[0].eq(0).all()
    assert y[1].tolist() == [1.0, 0.0, 0.0]
    assert y[2, 1] == 0
    gradients = torch.autograd.grad(y[:, 0].sum(), (x, weight))
    expected = torch.autograd.grad(mapping(x[2:])[:, 0].sum(), (x, weight))
    torch.testing.assert_close(gradients, expected)
    value = mapping.max(x)
    assert value[:2].tolist() == [-math.inf, math.inf]
    (gradient,) = torch.autograd.grad(value[2], weight)
    assert gradient.isfinite().all()
    x = torch.tensor([[math.nan, 0.0, 0.0], [0.3, 0.2, 0.1]]).double()
    assert mapping(x).isnan().all(-1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_narrow_types(dtype: torch.dtype) -> None:
    weight = weights().to(dtype).requires_grad_()
    mapping = General(lambda y: penalty(weight, y))
    x = scores().to(dtype).requires_grad_()
    y = mapping(x)
    assert y.dtype == dtype
    gradients = torch.autograd.grad(y[:, 0].sum() + mapping.loss(x, TARGET), (x, weight))
    wide = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    mapping = General(lambda y: penalty(wide[1], y))
    expected = torch.autograd.grad(
        mapping(wide[0])[:, 0].sum() + mapping.loss(wide[0], TARGET), wide
    )
    for one, other in zip(gradients, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_learns_its_regularizer() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    raw = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def omega(y: Tensor) -> Tensor:
        return (nn.functional.softplus(raw) * y * y).sum(-1) + module(y).square().sum(-1) / 20

    truth = General(lambda y: (torch.tensor([0.2, 2.0, 0.7]).double() * y * y).sum(-1))
    x = torch.randn(30, 3, dtype=torch.float64)
    target = truth(x)
    mapping = General(omega, tol=1e-8)
    optimizer = torch.optim.Adam([raw, *module.parameters()], lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = mapping.loss(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert (mapping(x) - target).abs().max() < 0.2


def test_the_linear_loss_takes_constant_regularizers_only() -> None:
    weight = weights().requires_grad_()
    arguments = (torch.randn(2, 4).double(), torch.randn(3, 4).double(), TARGET)
    with pytest.raises(ValueError, match=r"use `fenchel_young_loss`"):
        fenchel.linear_fenchel_young_loss(General(lambda y: penalty(weight, y)), *arguments)
    frozen = General(lambda y: penalty(weights(), y))
    torch.testing.assert_close(
        fenchel.linear_fenchel_young_loss(frozen, *arguments),
        frozen.loss(arguments[0] @ arguments[1].T, TARGET),
    )


# --- types and bad regularizers


def test_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_general, "widest", lambda device: torch.float32)
    types = set()

    def omega(y: Tensor) -> Tensor:
        types.add(y.dtype)
        return penalty(weight, y)

    x, weight = scores().float().requires_grad_(), weights().float().requires_grad_()
    mapping = General(omega)
    y = mapping(x)
    torch.autograd.grad(y[:, 0].sum() + mapping.loss(x, TARGET), (x, weight))
    expected = General(lambda y: penalty(weights(), y))(scores())
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-5)
    assert types == {torch.float32}
    assert mapping.solve_with_status(20 * torch.randn(50, 30)[:, :3])[1].converged.all()


BAD = {
    "number": (lambda y: 3.0, TypeError, "`omega` must return a tensor, got float"),
    "scalar": (lambda y: (y * y).sum(), ValueError, r"must return real numbers of shape \(2,\)"),
    "rows": (lambda y: y * y, ValueError, r"one per row, for y of shape \(2, 3\)"),
    "integers": (lambda y: (y > 0).sum(-1), ValueError, r"got torch.int64 of shape \(2,\)"),
    "detached": (lambda y: (y.detach() ** 2).sum(-1), ValueError, "it does not depend on y"),
    "constant": (lambda y: torch.ones(2).double(), ValueError, "it does not depend on y"),
    "concave": (lambda y: -(y * y).sum(-1), ValueError, "`omega` must be convex"),
    "waves": (lambda y: (9 * y).cos().sum(-1), ValueError, "`omega` must be convex"),
    "entropy": (lambda y: (y * y.log()).sum(-1), ValueError, "finite slope on the whole simplex"),
    "nan": (lambda y: (y * y).sum(-1) * math.nan, ValueError, "boundary included; got NaN"),
    "inf": (lambda y: (y.sqrt()).sum(-1), ValueError, "finite slope"),
    "types": (lambda y: (y @ torch.eye(3) * y).sum(-1), TypeError, r"cast what it is made of"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_regularizers(case: str) -> None:
    omega, kind, message = BAD[case]
    x = torch.tensor([[5.0, 1.0, 0.0], [0.1, -0.2, -9.0]], dtype=torch.float64)
    for grad in (False, True):
        with pytest.raises(kind, match=message):
            General(omega)(x.requires_grad_(grad))
        with pytest.raises(kind, match=message):
            General(omega).max(x.requires_grad_(grad))


def test_a_flat_hessian() -> None:
    x = scores().requires_grad_()
    y = General(lambda y: (y**4).sum(-1) / 4 + (y[..., 0] - y[..., 1]) ** 2 * 0 + y[..., 2] ** 2)(x)
    flat = General(lambda y: (y[..., 0] + y[..., 1]) ** 2, on_failure="raise")
    with pytest.raises(ValueError, match="`omega` must be strongly convex"):
        flat(x).sum().backward()
    assert y.isfinite().all()


def test_only_the_simplex_is_asked_about() -> None:
    def omega(y: Tensor) -> Tensor:
        assert (y >= 0).all()
        assert (y.sum(-1) - 1).abs().max() < 1e-9
        return (y * y).sum(-1) / 2 + (y**1.5).sum(-1)

    with torch.no_grad():
        assert General(omega)(3 * torch.randn(20, 8)).isfinite().all()


def test_steps_are_bounded() -> None:
    calls = []

    def kinked(y: Tensor) -> Tensor:
        calls.append(1)
        return (y - 0.3).abs().sum(-1)

    with torch.no_grad(), pytest.raises(fenchel.ConvergenceError, match="`max_iter` = 5"):
        General(kinked, max_iter=5)(scores() / 10)
    assert len(calls) <= 5 * 65


ENDLESS = """
import os, signal, threading, torch
from fenchel import General
weights = 1e-3 + 1e4 * torch.arange(6)
mapping = General(lambda y: (y * y * weights).sum(-1), tol=1e-300, max_iter=10**9)
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    mapping(torch.randn(3, 6))
except KeyboardInterrupt:
    print("stopped")
"""


def test_ctrl_c_ends_a_solve() -> None:
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{ENDLESS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "stopped\n", done.stderr


def test_a_warning_names_the_line_of_the_caller() -> None:
    mapping = General(lambda y: (y**4).sum(-1), max_iter=2, on_failure="warn")
    x = torch.tensor([1.0, 0.0])
    for call in (mapping, mapping.max, torch.func.vmap(mapping, in_dims=0)):
        with pytest.warns(ConvergenceWarning) as found:
            call(x.unsqueeze(0))
        assert found[0].filename == __file__
