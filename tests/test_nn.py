"""A mapping as a module: its tensors are the module's, wherever that goes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fenchel
from fenchel import Entmax, Ksubset, mappings
from fenchel.mappings import AbstractMapping
from fenchel.nn import Mapping

SCORES = torch.randn(3, 5)


def learner() -> Any:
    """A module with one parameter, one buffer, and a number."""
    alpha = nn.Parameter(torch.tensor([[1.2], [1.5], [1.8]]))
    return Mapping(Entmax(alpha, gamma=torch.tensor(0.5)))


def test_it_is_the_mapping(mapping: AbstractMapping) -> None:
    module = Mapping(mapping, dim=0)
    torch.testing.assert_close(module(SCORES.T), mapping(SCORES.T, 0))
    assert module.mapping is mapping
    assert not module.state_dict()


def test_a_mapping_by_name() -> None:
    model = nn.Sequential(nn.Linear(5, 4), Mapping("sparsemax"))
    assert model(SCORES).sum(-1).allclose(torch.ones(3))
    with pytest.raises(ValueError, match="the name of a mapping must be one of entmax"):
        Mapping("hardmax")
    with pytest.raises(TypeError, match="`mapping` must be a mapping"):
        Mapping(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`dim` must be an int, got str"):
        Mapping("sparsemax", dim="last")  # type: ignore[arg-type]


def test_tensors_become_parameters_and_buffers() -> None:
    module = learner()
    assert [name for name, _ in module.named_parameters()] == ["alpha"]
    assert [name for name, _ in module.named_buffers()] == ["gamma"]
    module(SCORES).square().sum().backward()
    alpha = torch.tensor([[1.2], [1.5], [1.8]], requires_grad=True)
    fenchel.entmax(SCORES, alpha=alpha, gamma=0.5).square().sum().backward()
    torch.testing.assert_close(module.alpha.grad, alpha.grad)
    assert repr(module) == "Mapping(Entmax(gamma=Tensor(), alpha=Parameter(3, 1)), dim=-1)"
    assert [name for name, _ in Mapping(Ksubset(torch.tensor(2.0))).named_buffers()] == ["k"]


def test_the_mapping_has_the_tensors_of_now() -> None:
    module = learner()
    other = learner()
    with torch.no_grad():
        other.alpha.fill_(2.0)
        other.gamma.fill_(1.0)
    module.load_state_dict(other.state_dict())
    torch.testing.assert_close(module(SCORES), fenchel.sparsemax(SCORES))
    replaced = torch.func.functional_call(module, {"alpha": torch.ones(3, 1)}, (SCORES,))
    torch.testing.assert_close(replaced, torch.softmax(SCORES, -1))
    double = module.double().mapping
    assert isinstance(double, Entmax)
    assert double.alpha.dtype == double.gamma.dtype == torch.float64  # type: ignore[union-attr]
    module.to("meta")
    assert module(SCORES.to("meta")).device.type == "meta"
    with pytest.raises(ValueError, match="`alpha` must be on the device of `scores`, cpu"):
        module(SCORES)


def test_copies_are_independent() -> None:
    module = learner()
    expected = module(SCORES)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(SCORES), expected)
        with torch.no_grad():
            twin.alpha.fill_(2.0)
        torch.testing.assert_close(module(SCORES), expected)
        assert not twin(SCORES).allclose(expected)


@pytest.mark.parametrize("name", ["entmax", "normmax", "fusedmax", "ksubset"])
def test_compiles(name: str) -> None:
    torch._dynamo.reset()
    options: dict = {"gamma": nn.Parameter(torch.tensor(0.5))}
    if name in ("entmax", "normmax"):
        options["alpha"] = nn.Parameter(torch.full((3, 1), 1.5))
    module = Mapping(mappings.get(name, **options))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(SCORES), module(SCORES))
    gradients = [
        torch.autograd.grad(run(SCORES).square().sum(), list(module.parameters()))
        for run in (module, compiled)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])


class Between(nn.Module):
    """α between 1 and 2."""

    def forward(self, raw: Tensor) -> Tensor:
        return 1 + torch.sigmoid(raw)

    def right_inverse(self, alpha: Tensor) -> Tensor:
        return torch.logit(alpha - 1)


def test_a_parametrization_keeps_alpha_in_its_range() -> None:
    free, kept = (Mapping(Entmax(nn.Parameter(torch.tensor(1.5)))) for _ in range(2))
    parametrize.register_parametrization(kept, "alpha", Between())
    for module in (free, kept):
        optimizer = torch.optim.SGD(module.parameters(), lr=1000.0)
        # Towards the uniform distribution, that is towards small alpha.
        module(SCORES).square().sum().backward()
        optimizer.step()
    alpha: Any = kept.alpha
    assert 1 <= alpha.item() <= 2
    assert kept(SCORES).sum(-1).allclose(torch.ones(3))
    with pytest.raises(ValueError, match="`alpha` must be"):
        free(SCORES)


def test_the_parameters_of_a_regularizer_are_the_modules() -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return (self.weight * y * y).sum(-1) / 2

    module = fenchel.nn.Mapping(fenchel.General(Weighted()))
    assert [name for name, _ in module.named_parameters()] == ["omega.weight"]
    y = module(torch.randn(2, 3, dtype=torch.float64))
    y[:, 0].sum().backward()
    assert module.get_parameter("omega.weight").grad is not None


def test_a_computed_tensor_is_refused() -> None:
    raw = nn.Parameter(torch.zeros(()))
    with pytest.raises(ValueError, match="`alpha` must be no result of a computation"):
        Mapping(Entmax(1 + torch.sigmoid(raw)))


def test_a_loss_of_a_module_says_what_it_takes() -> None:
    with pytest.raises(TypeError, match="a module of one: give its attribute `mapping`"):
        fenchel.fenchel_young_loss(Mapping("entmax"), torch.zeros(1, 3), torch.tensor([0]))  # type: ignore[arg-type]
