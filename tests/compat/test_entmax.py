"""The drop-in for the `entmax` package: the same surface, and the same answers."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import fenchel.compat.entmax as ours
from entmax_package import (
    LOSS_MODULES,
    LOSSES,
    MAPPINGS,
    MODULES,
    close,
    each,
    gradient,
    scores,
    theirs,
)

FUNCTIONS = {
    "SparsemaxFunction": {},
    "Entmax15Function": {},
    "EntmaxBisectFunction": {"alpha": 1.3},
    "SparsemaxBisectFunction": {},
    "NormmaxBisectFunction": {"alpha": 1.7},
    "BudgetBisectFunction": {"budget": 2.5},
    "SparsemaxLossFunction": {},
    "SparsemaxBisectLossFunction": {},
    "Entmax15LossFunction": {},
    "EntmaxBisectLossFunction": {"alpha": 1.3},
    "NormmaxBisectLossFunction": {"alpha": 1.7},
}
MODULES_THERE = ("activations", "losses", "root_finding")
PUBLIC = sorted(
    name for name in vars(theirs) if inspect.isroutine(getattr(theirs, name)) or name[0].isupper()
)


def parameters(function: Any) -> list[tuple]:
    signature = inspect.signature(function)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


# --- the surface


def test_public_names() -> None:
    assert sorted(ours.__all__) == PUBLIC
    assert {*MAPPINGS, *LOSSES, *MODULES, *LOSS_MODULES} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures(name: str) -> None:
    assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name))
    if inspect.isclass(getattr(ours, name)):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert parameters(mine.__init__) == parameters(other.__init__)
        assert parameters(mine.forward) == parameters(other.forward)


def test_import_lines() -> None:
    from fenchel.compat import entmax as module
    from fenchel.compat.entmax import EntmaxBisectLoss, entmax15

    assert module.entmax15 is entmax15
    assert module.EntmaxBisectLoss is EntmaxBisectLoss


@pytest.mark.parametrize("name", MODULES_THERE)
def test_names_of_the_modules(name: str) -> None:
    module, there = (
        importlib.import_module(f"{package.__name__}.{name}") for package in (ours, theirs)
    )
    public = [
        key
        for key, value in vars(there).items()
        if key[0] != "_" and getattr(value, "__module__", "").startswith("entmax.")
    ]
    assert sorted(module.__all__) == sorted(public)
    for key in public:
        if key.endswith("Function"):
            function = getattr(there, key).forward
            assert parameters(getattr(module, key).apply) == parameters(function)[1:]
        else:
            assert getattr(module, key) is getattr(ours, key)


def test_the_package_under_their_name() -> None:
    code = """
import sys
import fenchel.compat.entmax as ours
sys.modules["entmax"] = ours
import entmax.losses
from entmax import entmax15
from entmax.activations import Entmax15, Entmax15Function
from entmax.root_finding import EntmaxBisect
assert entmax15 is ours.entmax15
assert entmax.losses.EntmaxBisectLoss is ours.EntmaxBisectLoss
assert Entmax15 is ours.Entmax15 is ours.activations.Entmax15
assert EntmaxBisect is ours.EntmaxBisect
assert entmax.__version__ == "1.3"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@each(FUNCTIONS)
def test_functions_by_apply(name: str, options: dict) -> None:
    x, target = scores(4, 5).requires_grad_(), torch.tensor([0, 4, 2, 2])
    module = next(m for m in MODULES_THERE if hasattr(getattr(theirs, m), name))
    arguments = (target, *options.values()) if "Loss" in name else tuple(options.values())
    mine, other = (
        getattr(getattr(package, module), name).apply(x, *arguments) for package in (ours, theirs)
    )
    close(mine, other)
    close(gradient(mine, x)[0], gradient(other, x)[0], atol=1e-7)


@each({**MODULES, **LOSS_MODULES})
def test_settings_are_attributes(name: str, options: dict) -> None:
    settings = inspect.signature(getattr(ours, name)).parameters
    mine, other = getattr(ours, name)(**options), getattr(theirs, name)(**options)
    for setting in settings:
        assert getattr(mine, setting) == getattr(other, setting)
        assert f"{setting}={getattr(mine, setting)!r}" in repr(mine)


# --- the same values and gradients


@each(MAPPINGS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_mapping(name: str, options: dict, dim: int) -> None:
    x = scores(3, 4, 5).requires_grad_()
    mine, other = (getattr(package, name)(x, dim=dim, **options) for package in (ours, theirs))
    close(mine, other)
    if name == "budget_bisect":  # their gradient fails along any dimension but the last
        other = theirs.budget_bisect(x.movedim(dim, -1), **options).movedim(-1, dim)
    close(gradient(mine, x)[0], gradient(other, x)[0], atol=1e-7)


@each(MODULES)
def test_module(name: str, options: dict) -> None:
    x = scores(6, 5).requires_grad_()
    values = [getattr(package, name)(**options)(x) for package in (ours, theirs)]
    close(values[0], values[1])
    close(gradient(values[0], x)[0], gradient(values[1], x)[0], atol=1e-7)


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 2, 2.5, 4.0])
def test_alpha(alpha: float) -> None:
    x = scores(6, 9)
    close(ours.entmax_bisect(x, alpha), theirs.entmax_bisect(x, alpha, n_iter=70))
    close(ours.normmax_bisect(x, alpha), theirs.normmax_bisect(x, alpha, n_iter=70))


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5, 0.75, 0.99])
def test_alpha_below_one(alpha: float) -> None:
    x, target = scores(6, 9).requires_grad_(), torch.tensor([0, 4, 2, 2, 1, 8])
    slopes = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    mine, other = ours.entmax_bisect(x, slopes), theirs.entmax_bisect(x, slopes, n_iter=70)
    close(mine, other, atol=1e-8)
    for a, b in zip(gradient(mine, x, slopes), gradient(other, x, slopes), strict=True):
        close(a, b, atol=1e-6)
    losses = [package.EntmaxBisectLoss(alpha, 70)(x, target) for package in (ours, theirs)]
    close(losses[0], losses[1])
    close(gradient(losses[0], x)[0], gradient(losses[1], x)[0], atol=1e-8)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (1, 4, 1), (3, 4, 1)])
def test_tensor_alpha(shape: tuple[int, ...]) -> None:
    x = scores(3, 4, 5).requires_grad_()
    alpha = (1.2 + scores(*shape).abs().clamp(max=1.0)).requires_grad_()
    mine, other = ours.entmax_bisect(x, alpha), theirs.entmax_bisect(x, alpha)
    close(mine, other)
    for a, b in zip(gradient(mine, x, alpha), gradient(other, x, alpha), strict=True):
        close(a, b, atol=1e-7)
    close(ours.normmax_bisect(x, alpha), theirs.normmax_bisect(x, alpha))


def test_alpha_along_another_dim() -> None:
    x, alpha = scores(3, 4, 5), 1.2 + scores(3, 1, 5).abs()
    close(ours.entmax_bisect(x, alpha, dim=1), theirs.entmax_bisect(x, alpha, dim=1))


@pytest.mark.parametrize("budget", [1, 2, 3.3, torch.tensor([[1.0], [2.5], [4.0]])])
def test_budget(budget: float | Tensor) -> None:
    x = scores(3, 5).requires_grad_()
    mine, other = ours.budget_bisect(x, budget), theirs.budget_bisect(x, budget)
    close(mine, other)
    close(gradient(mine, x)[0], gradient(other, x)[0])


def test_integer_tensors_as_parameters() -> None:
    x, whole = scores(3, 5), torch.tensor([[2], [3], [4]])
    close(ours.budget_bisect(x, whole), theirs.budget_bisect(x, whole))
    close(ours.entmax_bisect(x, whole), theirs.entmax_bisect(x, whole))
    close(ours.normmax_bisect(x, whole), theirs.normmax_bisect(x, whole))


@each(LOSSES)
def test_loss(name: str, options: dict) -> None:
    x, target = scores(7, 5).requires_grad_(), torch.tensor([0, 4, 2, 2, 1, 0, 3])
    values = [getattr(package, name)(x, target, **options) for package in (ours, theirs)]
    assert values[0].shape == (7,)
    close(values[0], values[1])
    close(gradient(values[0], x)[0], gradient(values[1], x)[0])


@each(LOSS_MODULES)
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_loss_module(name: str, options: dict, reduction: str, ignore_index: int) -> None:
    x, target = scores(7, 5).requires_grad_(), torch.tensor([0, 4, 2, 2, 1, 0, 3])
    options = {**options, "reduction": reduction, "ignore_index": ignore_index}
    mine, other = (getattr(package, name)(**options) for package in (ours, theirs))
    values = mine(x, target), other(x, target)
    close(*values)
    close(gradient(values[0], x)[0], gradient(values[1], x)[0])
    counted = target != ignore_index
    close(mine.loss(x, target)[counted], other.loss(x, target)[counted])


@each(LOSS_MODULES)
def test_mean_of_ignored_samples_only(name: str, options: dict) -> None:
    x, target = scores(3, 5), torch.tensor([2, 2, 2])
    for package in (ours, theirs):
        assert getattr(package, name)(ignore_index=2, **options)(x, target).isnan()
