"""General in graphs: compiled, exported, traced and copied, with what its regularizer holds."""

from __future__ import annotations

import copy
import functools
import gc
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fenchel
from fenchel import General
from fenchel.mappings import _general
from fenchel.mappings._closure import holds_tensors
from regularizers import FORMS, TARGET, Omega, Penalty, exact, inputs, penalty, scores, weights

# torch.compile looks at the gradient of what goes from one graph to the next.
QUIET = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


def compiled(
    function: Callable[[Tensor], Tensor], fullgraph: bool = False
) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=fullgraph)


@QUIET
@pytest.mark.parametrize("form", FORMS)
def test_compiled_gradients_in_the_weights(form: str) -> None:
    x, weight = inputs()
    mapping = exact(FORMS[form](weight))

    def step(x: Tensor) -> Tensor:
        return (2 * mapping(x))[:, 0].sum() + mapping.loss(x, TARGET)

    expected = torch.autograd.grad(step(x), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(compiled(step)(x), (x, weight)), expected)
    with pytest.raises(RuntimeError, match="holds tensors"):
        compiled(step, fullgraph=True)(x)


@QUIET
def test_a_compiled_function_makes_its_own() -> None:
    x, weight = inputs()

    def step(x: Tensor) -> Tensor:
        double = 2 * weight
        return General(lambda y: (double * y * y).sum(-1))(x)[:, 0].sum()

    expected = torch.autograd.grad(step(x), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(compiled(step)(x), (x, weight)), expected)


def test_a_graph_changes_what_the_regularizer_holds() -> None:
    weight = weights()
    mapping = General(lambda y: (weight * y * y).sum(-1))

    def step(x: Tensor) -> Tensor:
        weight.mul_(2)
        return mapping(x)

    y = compiled(step)(scores())
    torch.testing.assert_close(y, mapping(scores()))


class Holder:
    shared = torch.ones(3)

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, y: Tensor) -> Tensor:
        return (y * y).sum(-1) * self.scale


class Chain:
    def __init__(self, depth: int) -> None:
        self.next = Chain(depth - 1) if depth else None

    def square(self, y: Tensor) -> Tensor:
        return (y * y).sum(-1)


def nested(y: Tensor) -> Tensor:
    return sum(part(y) for part in (lambda y: (HELD[0] * y * y).sum(-1),))  # type: ignore[return-value]


def square(y: Tensor, power: float = 2.0) -> Tensor:
    return nn.functional.relu(y).pow(power).sum(-1) * math.sqrt(2)


HELD = [torch.ones(3)]
REACHES = {
    "module": (Penalty(torch.ones(3)), True),
    "class": (Holder(2.0), True),
    "closure": ((lambda held: lambda y: (held["w"] * y * y).sum(-1))({"w": torch.ones(3)}), True),
    "default": (lambda y, w=HELD[0]: (w * y * y).sum(-1), True),
    "nested": (nested, True),
    "called": (lambda y: nested(y), True),
    "partial": (functools.partial(penalty, torch.ones(3)), True),
    "large": (functools.partial(max, list(range(20_000))), True),
    "plain": (square, False),
    "calls plain": (lambda y: square(y) + 0.1 * square(y, 4.0), False),
    "deep": (Chain(400).square, False),
    "linear": (nn.Identity(), False),
}


@pytest.mark.parametrize("case", REACHES)
def test_which_functions_hold_tensors(case: str) -> None:
    function, holds = REACHES[case]
    assert holds_tensors(function) == holds


def test_one_compiled_function_of_several() -> None:
    several = [General(lambda y, k=k: k * (y * y).sum(-1)) for k in (1.0, 2.0, 5.0)]
    torch._dynamo.reset()
    apply = torch.compile(lambda mapping, x: mapping(x), backend="aot_eager", fullgraph=True)
    for mapping in [*several, *several]:
        torch.testing.assert_close(apply(mapping, scores()), mapping(scores()))


class Layer(nn.Module):
    def __init__(self, omega: Omega) -> None:
        super().__init__()
        self.mapping = General(omega)

    def forward(self, x: Tensor) -> Tensor:
        return self.mapping(x)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("form", [lambda y: (y * y).sum(-1), Penalty(weights())])
def test_refuses_to_be_exported(strict: bool, form: Omega) -> None:
    with pytest.raises(RuntimeError, match="`General` cannot be exported"):
        torch.export.export(Layer(form), (scores(),), strict=strict)


def test_refuses_to_be_traced_into_a_script() -> None:
    with pytest.warns(), pytest.raises(RuntimeError, match="`General` cannot be exported"):
        torch.jit.trace(Layer(lambda y: (y * y).sum(-1)), (scores(),))


def test_a_graph_outlives_its_mapping() -> None:
    def trace() -> Callable[[Tensor], Tensor]:
        mapping = General(lambda y: (y * y).sum(-1))
        return make_fx(lambda x: mapping(x), tracing_mode="fake")(scores())

    graph = trace()
    gc.collect()
    torch.testing.assert_close(graph(scores()), fenchel.sparsemax(scores(), gamma=2.0))


def test_a_graph_from_elsewhere_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="a `General` of another process"):
        torch.ops.fenchel.general(scores(), "0" * 32)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_have_graphs_of_their_own(again: Callable[[General], General]) -> None:
    mapping = General(functools.partial(penalty, weights()), gamma=0.5, max_iter=77)
    other = again(mapping)
    assert (other.gamma, other.max_iter) == (0.5, 77)
    assert other._token != mapping._token  # type: ignore[attr-defined]
    expected = mapping(scores())
    token = mapping._token  # type: ignore[attr-defined]
    del mapping
    gc.collect()
    assert token not in _general._by_token
    torch.testing.assert_close(other(scores()), expected)
    torch.testing.assert_close(compiled(other)(scores()), expected)


def test_a_deep_copy_learns_by_itself() -> None:
    module = Penalty(nn.Parameter(weights()))
    mapping = General(module)
    other = copy.deepcopy(mapping)
    with torch.no_grad():
        module.held[0].mul_(3)
    torch.testing.assert_close(other(scores()), General(lambda y: penalty(weights(), y))(scores()))
    assert not other(scores()).allclose(mapping(scores()))
