"""The drop-in for the `entmax` package: what is better here, and bad input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fenchel.compat.entmax as ours
from entmax_package import (
    LOSS_MODULES,
    LOSSES,
    MAPPINGS,
    close,
    each,
    gradient,
    scores,
    theirs,
)

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
