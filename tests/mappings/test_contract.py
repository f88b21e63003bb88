"""The contract of every mapping, tested for all of them at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from conftest import assert_compiles, tolerance, total
from fenchel import mappings
from fenchel.mappings import AbstractMapping
from fenchel.mappings._protocols import HasKernels

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def rows(*shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).to(dtype)


def feasible(mapping: AbstractMapping, n: int, d: int) -> torch.Tensor:
    """Random points of the mapping's set, and vertices of it."""
    k = total(mapping)
    if mapping.total is None:
        points = torch.rand(n, d, dtype=torch.float64)
        for _ in range(200):
            points = (points * (k / points.sum(-1, keepdim=True))).clamp(max=1)
        return points
    vertices = torch.eye(d, dtype=torch.float64)
    return torch.cat(
        [vertices, torch.distributions.Dirichlet(0.3 * torch.ones(d)).sample((n,)).double()]
    )


def objective(mapping: AbstractMapping, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (scores * y).sum(-1) - mapping.gamma * mapping.omega(y)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_no_feasible_point_is_better(mapping: AbstractMapping, scale: float) -> None:
    scores = rows(20, 7, scale=scale)
    y = mapping(scores)
    best = objective(mapping, scores, y)
    for point in feasible(mapping, 50, 7):
        assert (objective(mapping, scores, point.expand_as(y)) <= best + 1e-9).all()
    # nor any point a small step towards the others
    for point in feasible(mapping, 20, 7):
        near = y + 1e-3 * (point - y)
        assert (objective(mapping, scores, near) <= best + 1e-9).all()
    torch.testing.assert_close(mapping.max(scores), best)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_sums_to_its_total(mapping: AbstractMapping, dtype: torch.dtype, scale: float) -> None:
    y = mapping(rows(8, 200, dtype=dtype, scale=scale))
    assert y.dtype == dtype
    assert (y >= 0).all()
    sums = y.double().sum(-1)
    # Rounding a solution entry by entry moves its sum by at most half an ulp of each.
    assert (sums - total(mapping)).abs().max() <= total(mapping) * tolerance(mapping, dtype)


def test_half_precision_is_the_rounding_of_float32(mapping: AbstractMapping) -> None:
    scores = rows(6, 40, dtype=torch.bfloat16)
    scores[0, 3] = 3e4
    for dtype in (torch.bfloat16, torch.float16):
        half = scores.to(dtype)
        torch.testing.assert_close(mapping(half), mapping(half.float()).to(dtype), rtol=0, atol=0)


def test_first_and_second_order(mapping: AbstractMapping) -> None:
    scores = rows(3, 5).requires_grad_()
    assert gradcheck(
        mapping,
        (scores,),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(mapping, (scores,))
    assert gradcheck(mapping.max, (scores,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(mapping.max, (scores,))


def test_gradients_with_a_graph_are_the_same(mapping: AbstractMapping) -> None:
    """Of losses that are not linear in what they get, and where one argument comes from another."""
    scores = rows(3, 5).requires_grad_()
    target = torch.full((3, 5), total(mapping) / 5, dtype=scores.dtype)
    for function in (mapping, mapping.max, lambda x: mapping.loss(x, target * x.cos().exp())):
        plain, with_graph = (
            torch.autograd.grad((y.sin() + y**2).sum(), scores, create_graph=graph)[0].detach()
            for graph in (False, True)
            for y in [function(scores)]
        )
        torch.testing.assert_close(with_graph, plain)


def test_gradient_of_max_is_the_mapping(mapping: AbstractMapping) -> None:
    scores = rows(3, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(mapping.max(scores).sum(), scores)
    torch.testing.assert_close(gradient, mapping(scores))


def test_func_transforms(mapping: AbstractMapping) -> None:
    scores = rows(4, 6)
    jacobian = torch.func.vmap(torch.func.jacrev(mapping))(scores)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(mapping))(scores), jacobian)
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(mapping.max))(scores), jacobian)
    torch.testing.assert_close(jacobian, jacobian.transpose(-1, -2))
    torch.testing.assert_close(torch.func.vmap(mapping)(scores), mapping(scores))
    columns = torch.func.vmap(mapping, in_dims=1, out_dims=1)(scores.T.contiguous())
    torch.testing.assert_close(columns, mapping(scores.T, 0))
    gradient = torch.func.grad(lambda x: mapping.max(x).sum())(scores)
    torch.testing.assert_close(gradient, mapping(scores))


def test_fast_backward_equals_the_formula(mapping: AbstractMapping) -> None:
    for dtype, width in ((torch.float32, 300), (torch.float64, 33)):
        y, v = mapping(rows(5, width, dtype=dtype)), rows(5, width, dtype=dtype)
        if isinstance(mapping, HasKernels):
            torch.testing.assert_close(mapping.kernel_jvp(y, v), mapping.jvp(y, v))


def test_compiles_without_graph_breaks(mapping: AbstractMapping) -> None:
    assert_compiles(mapping, "cpu")


def test_autocast_gives_the_type_that_softmax_gives(mapping: AbstractMapping) -> None:
    scores = rows(3, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, value = mapping(scores), mapping.max(scores)
        assert y.dtype == value.dtype == torch.softmax(scores, -1).dtype
    torch.testing.assert_close(y, mapping(scores), rtol=0, atol=0)


def test_any_dim_and_strides(mapping: AbstractMapping) -> None:
    scores = rows(4, 5, 6, dtype=torch.float32)
    for dim in range(-3, 3):
        y = mapping(scores, dim)
        assert y.is_contiguous()
        torch.testing.assert_close(y, mapping(scores.movedim(dim, -1)).movedim(-1, dim))
        assert mapping.max(scores, dim).shape == scores.sum(dim).shape
    strided = rows(10, 12, dtype=torch.float32)[::2, 1::2]
    torch.testing.assert_close(mapping(strided), mapping(strided.contiguous()))
    repeated = rows(1, 6, dtype=torch.float32).expand(4, 6)
    torch.testing.assert_close(mapping(repeated), mapping(repeated.contiguous()))


def test_shapes_at_the_edge(mapping: AbstractMapping) -> None:
    single = rows(6)
    torch.testing.assert_close(mapping(single), mapping(single.unsqueeze(0)).squeeze(0))
    assert mapping(torch.empty(0, 6)).shape == (0, 6)
    assert mapping(torch.empty(2, 0, 6)).shape == (2, 0, 6)
    assert mapping.max(torch.empty(0, 6)).shape == (0,)
    if mapping.total == 1.0:
        assert mapping(torch.randn(3, 1)).eq(1).all()


def test_minus_infinity_is_deletion(mapping: AbstractMapping) -> None:
    scores = rows(5, 9)
    deleted = torch.tensor([1, 2, 6])
    masked = scores.clone()
    masked[:, deleted] = -torch.inf
    kept = [i for i in range(9) if i not in deleted]
    if mapping.name == "general":  # Ω of a user may know positions: then zeros, not deletion
        assert mapping(masked)[:, deleted].eq(0).all()
        return
    y = mapping(masked)
    assert y[:, deleted].eq(0).all()
    torch.testing.assert_close(y[:, kept], mapping(scores[:, kept]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mapping.max(masked), mapping.max(scores[:, kept]))
    masked.requires_grad_()
    v = rows(5, 9)
    (gradient,) = torch.autograd.grad(mapping(masked), masked, v)
    short = scores[:, kept].requires_grad_()
    (expected,) = torch.autograd.grad(mapping(short), short, v[:, kept])
    assert gradient[:, deleted].eq(0).all()
    torch.testing.assert_close(gradient[:, kept], expected, rtol=1e-7, atol=1e-10)


def test_rows_without_entries_give_zeros(mapping: AbstractMapping) -> None:
    scores = torch.stack([rows(6), torch.full((6,), -torch.inf, dtype=torch.float64)])
    scores.requires_grad_()
    y = mapping(scores)
    assert y[1].eq(0).all()
    (gradient,) = torch.autograd.grad(y, scores, rows(2, 6))
    assert gradient[1].eq(0).all()
    assert gradient.isfinite().all()
    assert mapping.max(scores)[1] == -torch.inf


def test_nan_stays_in_its_row(mapping: AbstractMapping) -> None:
    scores = rows(3, 6)
    clean = mapping(scores)
    scores[1, 2] = torch.nan
    y = mapping(scores)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[[0, 2]], clean[[0, 2]])


def test_plus_infinity_takes_the_mass(mapping: AbstractMapping) -> None:
    scores = rows(2, 6)
    scores[0, [1, 4]] = torch.inf
    y = mapping(scores)
    k = min(total(mapping) / 2, 1.0)
    torch.testing.assert_close(y[0, [1, 4]], torch.full((2,), k, dtype=y.dtype))
    torch.testing.assert_close(y[0].sum(), torch.tensor(total(mapping), dtype=y.dtype))


def test_outliers_and_huge_scores(mapping: AbstractMapping) -> None:
    for outlier in (1e4, 1e30):
        scores = rows(3, 50, dtype=torch.float32)
        scores[:, 7] = outlier
        y = mapping(scores)
        assert y.isfinite().all()
        assert (y[:, 7] - 1).abs().max() < 1e-5
    if mapping.name == "general":  # Ω of a user may know positions
        return
    ties = torch.full((2, 8), 1e30)
    torch.testing.assert_close(mapping(ties), torch.full((2, 8), total(mapping) / 8))


def test_inputs_stay_and_answers_repeat(mapping: AbstractMapping) -> None:
    scores = rows(40, 300, dtype=torch.float32)
    before = scores.clone()
    first = mapping(scores)
    assert scores.equal(before)
    assert all(mapping(scores).equal(first) for _ in range(3))
    v = rows(40, 300, dtype=torch.float32)
    scores.requires_grad_()
    gradients = [torch.autograd.grad(mapping(scores), scores, v)[0] for _ in range(3)]
    assert gradients[0].equal(gradients[1])
    assert gradients[1].equal(gradients[2])


def test_only_the_result_is_saved_for_backward(mapping: AbstractMapping) -> None:
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    scores = rows(16, 64, dtype=torch.float32).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = mapping(scores * 1)
    rows_saved = {tensor.data_ptr() for tensor in saved if tensor.numel() >= y.numel()}
    assert rows_saved == {y.data_ptr()}


def test_support_lists_the_nonzeros(mapping: AbstractMapping) -> None:
    scores = rows(3, 4, 7)
    y = mapping(scores, 1)
    support = mapping.support(scores, 1)
    assert support.sizes.equal((y > 0).sum(1))
    assert support.indices.shape[1] == support.sizes.max()
    dense = torch.zeros_like(y).scatter(1, support.indices, support.values)
    torch.testing.assert_close(dense, y)


def test_support_of_a_row_with_nan(mapping: AbstractMapping) -> None:
    scores = rows(2, 7)
    scores[1, 3] = torch.nan
    support = mapping.support(scores)
    assert support.sizes[1] == support.values.shape[-1] == 7
    assert support.values[1].isnan().all()
    clean = mapping.support(scores[:1])
    assert support.sizes[0] == clean.sizes[0]
    torch.testing.assert_close(support.values[:1, : clean.values.shape[-1]], clean.values)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_shift_invariance_and_order(data: st.DataObject) -> None:
    mapping = data.draw(st.sampled_from([m for m in mappings.examples() if m.name != "general"]))
    entries = st.floats(-20, 20, allow_nan=False)
    scores = torch.tensor(
        data.draw(st.lists(entries, min_size=4, max_size=30)), dtype=torch.float64
    )
    shift = data.draw(st.floats(-100, 100))
    y = mapping(scores)
    torch.testing.assert_close(mapping(scores + shift), y, rtol=1e-6, atol=1e-8)
    if mapping.name != "fusedmax":  # a larger score never gets less
        assert (y[scores.argsort()].diff() >= -1e-12).all()
