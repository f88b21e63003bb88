"""The drop-in for the `entmax` package: the same surface, the same answers, and fewer mistakes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import entmax
import pytest
import torch
from torch import Tensor, nn

import fenchel.compat.entmax as ours

theirs: Any = entmax  # untyped: its annotations would be guessed from defaults

MAPPINGS = {
    "sparsemax": {},
    "entmax15": {},
    "sparsemax_bisect": {},
    "entmax_bisect": {"alpha": 1.3},
    "normmax_bisect": {"alpha": 1.7},
    "budget_bisect": {"budget": 2.5},
}
LOSSES = {
    "sparsemax_loss": {},
    "entmax15_loss": {},
    "sparsemax_bisect_loss": {},
    "entmax_bisect_loss": {"alpha": 1.3},
    "normmax_bisect_loss": {"alpha": 1.7},
}
MODULES = {
    "Sparsemax": {},
    "Entmax15": {},
    "SparsemaxBisect": {},
    "EntmaxBisect": {"alpha": 1.3},
    "NormmaxBisect": {"alpha": 1.7},
    "BudgetBisect": {"budget": 2.5},
}
LOSS_MODULES = {
    "SparsemaxLoss": {},
    "Entmax15Loss": {},
    "SparsemaxBisectLoss": {},
    "EntmaxBisectLoss": {"alpha": 1.3},
    "NormmaxBisectLoss": {"alpha": 1.7},
}
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


def each(table: dict[str, dict]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "options"), table.items(), ids=list(table))


def parameters(function: Any) -> list[tuple]:
    signature = inspect.signature(function)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


def scores(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def gradient(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return torch.autograd.grad(value, inputs, weights)


def close(actual: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-7)


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


# --- what is better here


@each(LOSSES)
def test_functions_ignore_minus_100(name: str, options: dict) -> None:
    x, target = scores(4, 5).requires_grad_(), torch.tensor([0, -100, 2, -100])
    losses = getattr(ours, name)(x, target, **options)
    kept = target != -100
    assert (losses[~kept] == 0).all()
    close(losses[kept], getattr(theirs, name)(x[kept], target[kept], **options))
    assert (gradient(losses, x)[0][~kept] == 0).all()


@each(LOSS_MODULES)
@pytest.mark.parametrize("ignore_index", [-100, -1, 7])
def test_modules_ignore_what_is_no_class(name: str, options: dict, ignore_index: int) -> None:
    x, target = scores(4, 5), torch.tensor([0, ignore_index, 2, ignore_index])
    kept = target != ignore_index
    loss = getattr(ours, name)(ignore_index=ignore_index, **options)(x, target)
    close(loss, getattr(theirs, name)(**options)(x[kept], target[kept]))


@each(LOSSES)
def test_deleted_classes(name: str, options: dict) -> None:
    x, target = scores(4, 5), torch.tensor([0, 1, 2, 0])
    expected = getattr(theirs, name)(x, target, **options)
    deleted = torch.cat([x, torch.full((4, 2), -torch.inf, dtype=x.dtype)], 1).requires_grad_()
    losses = getattr(ours, name)(deleted, target, **options)
    close(losses, expected)
    grad = gradient(losses, deleted)[0]
    assert grad.isfinite().all()
    assert (grad[:, 5:] == 0).all()


@each(LOSSES)
def test_deleted_target(name: str, options: dict) -> None:
    x = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert getattr(ours, name)(x, torch.tensor([1]), **options).item() == torch.inf


@each({n: o for n, o in MAPPINGS.items() if n != "budget_bisect"})
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, options: dict, dtype: torch.dtype) -> None:
    x = scores(8, 1000, scale=1.0).to(dtype)
    x[0, 0] = 300.0
    y = getattr(ours, name)(x, **options)
    assert y.dtype == dtype
    exact = getattr(ours, name)(x.float(), **options)
    torch.testing.assert_close(y, exact.to(dtype), atol=0, rtol=0)
    # Half an ulp for each entry of the support at most.
    assert (y.double().sum(-1) - 1).abs().max() < torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("dim", [-2, -3, 0, 1])
@pytest.mark.parametrize("k", [1, 2, 50])
def test_any_dim_with_k(name: str, dim: int, k: int) -> None:
    x = scores(6, 7, 4, scale=0.1)
    function = getattr(ours, name)
    torch.testing.assert_close(function(x, dim=dim, k=k), function(x, dim=dim), atol=0, rtol=0)
    close(function(x, dim=dim), getattr(theirs, name)(x, dim=dim))


@each(MAPPINGS)
def test_second_order(name: str, options: dict) -> None:
    x = scores(2, 4, scale=0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: getattr(ours, name)(x, **options), (x,))


@each(LOSSES)
def test_hessian_of_a_loss_is_the_jacobian(name: str, options: dict) -> None:
    x, target = scores(1, 4, scale=0.5), torch.tensor([1])
    mapping = getattr(ours, name.removesuffix("_loss"))
    hessian = torch.autograd.functional.hessian(
        lambda x: getattr(ours, name)(x[None], target, **options).sum(), x[0]
    )
    jacobian = torch.autograd.functional.jacobian(lambda x: mapping(x, **options), x[0])
    close(hessian, jacobian)  # type: ignore[arg-type]


def test_alpha_1_is_softmax() -> None:
    x, target = scores(4, 5), torch.tensor([0, 1, 2, 3])
    close(ours.entmax_bisect(x, alpha=1), x.softmax(-1))
    cross_entropy = nn.functional.cross_entropy(x, target)
    close(ours.EntmaxBisectLoss(alpha=1)(x, target), cross_entropy)
    near = x.float()
    close(ours.entmax_bisect(near, alpha=1.0001), near.softmax(-1), atol=1e-3)


@each(MAPPINGS)
def test_masked_rows_are_zero(name: str, options: dict) -> None:
    x = scores(2, 5)
    x[1] = -torch.inf
    x.requires_grad_()
    y = getattr(ours, name)(x, **options)
    assert (y[1] == 0).all()
    close(y[0], getattr(theirs, name)(x[:1].detach(), **options)[0])
    assert (gradient(y, x)[0][1] == 0).all()


@each({"entmax_bisect_loss": {}, "normmax_bisect_loss": {}})
def test_one_alpha_per_sample_in_a_loss(name: str, options: dict) -> None:
    x, target = scores(3, 5), torch.tensor([0, 1, 2])
    alpha = torch.tensor([[1.3], [1.5], [2.0]], dtype=torch.float64)
    losses = getattr(ours, name)(x, target, alpha=alpha)
    assert losses.shape == (3,)
    for row in range(3):
        one = getattr(theirs, name)(x[[row]], target[[row]], alpha=float(alpha[row]))
        close(losses[[row]], one)


@each({"entmax_bisect_loss": {}, "normmax_bisect_loss": {}, "normmax_bisect": {}})
def test_gradients_in_alpha(name: str, options: dict) -> None:
    x, alpha = scores(3, 5), torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
    rest = (torch.tensor([0, 1, 2]),) if name.endswith("loss") else ()
    assert torch.autograd.gradcheck(lambda a: getattr(ours, name)(x, *rest, alpha=a), (alpha,))


@pytest.mark.parametrize("name", ["EntmaxBisect", "NormmaxBisect", "EntmaxBisectLoss"])
def test_alpha_is_learned(name: str) -> None:
    alpha = nn.Parameter(torch.tensor(1.5))
    assert list(getattr(ours, name)(alpha=alpha).parameters()) == [alpha]


# --- bad input


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("sparsemax", {"k": 0}, ValueError, r"`k` must be at least 1, got 0\."),
        ("entmax15", {"k": "x"}, TypeError, r"`k` must be a number, got str\."),
        ("entmax_bisect", {"n_iter": 0}, ValueError, r"`n_iter` must be at least 1, got 0\."),
        ("entmax_bisect", {"alpha": 0}, ValueError, r"`alpha` must be .*, got 0\."),
        ("normmax_bisect", {"alpha": 1}, ValueError, r"`alpha` must be greater than 1, got 1\."),
        ("budget_bisect", {"budget": 9}, ValueError, r"`budget` must be .* at most 5, got 9\."),
        (
            "budget_bisect",
            {"budget": torch.ones(2, 1)},
            ValueError,
            r"`budget` must broadcast to \(3, 1\)",
        ),
        (
            "sparsemax_bisect",
            {"ensure_sum_one": "no"},
            TypeError,
            r"`ensure_sum_one` must be a bool, got str\.",
        ),
    ],
)
def test_bad_input(name: str, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(ours, name)(scores(3, 5), **options)


@each({**MAPPINGS, **LOSSES})
def test_bad_scores(name: str, options: dict) -> None:
    rest = (torch.tensor([0, 1, 2]),) if name in LOSSES else ()
    with pytest.raises(TypeError, match=r"`X` must be bfloat16, .* got torch.int64"):
        getattr(ours, name)(torch.ones(3, 5, dtype=torch.int64), *rest, **options)
    with pytest.raises(ValueError, match=r"`X` must have at least one entry along `dim`"):
        getattr(ours, name)(torch.ones(3, 0), *rest, **options)


@each(LOSS_MODULES)
def test_bad_reduction(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match=r"`reduction` must be one of elementwise_mean, sum, none"):
        getattr(ours, name)(reduction="average", **options)


@each(LOSSES)
def test_bad_targets(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match=r"`target` must have shape \(3,\)"):
        getattr(ours, name)(scores(3, 5), torch.tensor([0, 1]), **options)
    with pytest.raises(ValueError, match=r"`target` must be in \[0, 4\].* got 5"):
        getattr(ours, name)(scores(3, 5), torch.tensor([0, 1, 5]), **options)


def test_an_element_of_the_targets_can_be_ignored() -> None:
    scores, target = torch.randn(3, 4), torch.tensor([1, 2, 1])
    loss = ours.Entmax15Loss(ignore_index=target[0], reduction="sum")  # type: ignore[arg-type]
    expected = ours.entmax15_loss(scores, target)[1]
    torch.testing.assert_close(loss(scores, target), expected)
