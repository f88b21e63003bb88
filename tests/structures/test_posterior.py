"""SparseMAP of every structure: optimal, differentiable, and honest about how exact it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import exact
import fenchel
from conftest import identify
from fenchel import (
    Bits,
    Budget,
    Choice,
    ConvergenceWarning,
    Custom,
    DependencyTree,
    Matching,
    Posterior,
    Sequence,
    sparsemap,
    structures,
)
from fenchel.structures import AbstractStructure

EXAMPLES = structures.examples()
every = pytest.mark.parametrize("structure", EXAMPLES, ids=identify)
METHODS = ("active_set", "away", "pairwise")


def extra_for(structure: AbstractStructure, *batch: int) -> Tensor | None:
    if not isinstance(structure, Sequence):
        return None
    return torch.randn(*batch, structure.tags, structure.tags, dtype=torch.float64)


def scores_for(structure: AbstractStructure, *batch: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*batch, *structure.shape, dtype=torch.float64)


def extra_members(structure: AbstractStructure, extra_scores: Tensor | None) -> Tensor:
    """How often each structure uses each extra score, (K, n)."""
    members = exact.members(structure)
    if extra_scores is None:
        return members.new_zeros(len(members), 0)
    return structure.extra_indicator(exact.codes(structure), extra_scores).flatten(1)  # type: ignore[attr-defined]


def gap_over_members(
    structure: AbstractStructure, scores: Tensor, extra_scores: Tensor | None, u: Tensor, v: Tensor
) -> Tensor:
    """The duality gap (B) of marginals (B, *shape) and extra ones (B, n)."""
    members = exact.members(structure).flatten(1).double()
    slope = (scores - u).flatten(1) @ members.T
    level = ((scores - u) * u).flatten(1).sum(1)
    if extra_scores is not None:
        extra = extra_members(structure, extra_scores).double()
        flat = extra_scores.flatten(1).expand(len(scores), -1)
        slope, level = slope + flat @ extra.T, level + (flat * v).sum(1)
    return slope.amax(1) - level


def flat_extra(posterior: Posterior, like: Tensor) -> Tensor:
    v = posterior.extra
    return like.new_zeros(len(like), 0) if v is None else v.flatten(1)


@every
@pytest.mark.parametrize("method", [None, *METHODS])
def test_no_structure_is_better(structure: AbstractStructure, method: str | None) -> None:
    for scale in (0.3, 1.0, 4.0):
        scores, extra_scores = scores_for(structure, 5, scale=scale), extra_for(structure, 5)
        posterior = sparsemap(structure, scores, extra_scores, method=method, tol=1e-9)
        assert posterior.converged.all()
        v = flat_extra(posterior, scores)
        gap = gap_over_members(structure, scores, extra_scores, posterior.marginals, v)
        assert (gap <= 1.1e-9).all()


@every
def test_marginals_are_those_of_the_weights(structure: AbstractStructure) -> None:
    scores, extra_scores = scores_for(structure, 4), extra_for(structure, 4)
    for method in (None, "active_set"):
        posterior = sparsemap(structure, scores, extra_scores, method=method)
        torch.testing.assert_close(posterior.weights.sum(-1), torch.ones(4).double())
        assert (posterior.weights >= 0).all()
        assert ((posterior.weights > 0).sum(-1) == posterior.support_size).all()
        if hasattr(structure, "indicator"):
            indicators = structure.indicator(posterior.codes)
        else:
            indicators = posterior.codes
        weights = posterior.weights.reshape(*posterior.weights.shape, *[1] * len(structure.shape))
        u = (weights * torch.where(weights > 0, indicators, 0.0)).sum(1)
        torch.testing.assert_close(posterior.marginals, u)
        members = exact.members(structure)
        used = indicators[posterior.weights > 0]
        assert (used.unsqueeze(1) == members).flatten(2).all(2).any(1).all()


@pytest.mark.parametrize("structure", [Bits(5), Budget(6, 2), Budget(6, 3, exact=True), Choice(5)])
def test_closed_forms_agree_with_the_active_set(structure: AbstractStructure) -> None:
    for scale in (0.2, 1.0, 5.0):
        scores = scores_for(structure, 20, scale=scale)
        lengths = torch.randint(3, structure.shape[0] + 1, (20,))
        for sizes in (None, lengths):
            closed = sparsemap(structure, scores, lengths=sizes)
            solved = sparsemap(structure, scores, lengths=sizes, method="active_set", tol=1e-12)
            torch.testing.assert_close(closed.marginals, solved.marginals, rtol=0, atol=1e-7)
            assert (closed.gap == 0).all()
            assert closed.converged.all()


def test_a_choice_is_sparsemax() -> None:
    scores = torch.randn(20, 7).double()
    expected = fenchel.sparsemax(scores)
    assert sparsemap(Choice(7), scores).marginals.equal(expected)
    solved = sparsemap(Choice(7), scores, method="active_set", tol=0)
    torch.testing.assert_close(solved.marginals, expected, rtol=0, atol=1e-12)


@every
def test_gradients(structure: AbstractStructure) -> None:
    scores, extra_scores = scores_for(structure, 4), extra_for(structure, 4)
    inputs = [scores.requires_grad_()]
    if extra_scores is not None:
        inputs.append(extra_scores.requires_grad_())

    def marginals(*inputs: Tensor) -> Tensor:
        return sparsemap(structure, *inputs, tol=1e-13).marginals

    base = sparsemap(structure, *inputs, method="active_set", tol=1e-13)

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        # From the same structures: others may have the same marginals.
        posterior = sparsemap(structure, *inputs, method="active_set", tol=1e-13, start=base)
        rest = () if posterior.extra is None else (posterior.extra,)
        return posterior.marginals, posterior.weights, *rest

    for function in (marginals, outputs):
        assert torch.autograd.gradcheck(function, inputs, eps=1e-7, atol=1e-5)
        assert torch.autograd.gradgradcheck(function, inputs, eps=1e-7, atol=1e-5)


def test_gradient_is_the_jacobian_of_the_paper() -> None:
    structure, scores = DependencyTree(5), torch.randn(5, 5, dtype=torch.float64)
    posterior = sparsemap(structure, scores.requires_grad_(), tol=0)
    columns = structure.indicator(posterior.codes).flatten(1).T
    inverse = (columns.T @ columns).inverse()
    flat = inverse.sum(1, keepdim=True)
    expected = columns @ (inverse - flat @ flat.T / flat.sum()) @ columns.T
    assert int(posterior.support_size) > 1
    rows = [
        torch.autograd.grad(u, scores, retain_graph=True)[0] for u in posterior.marginals.flatten()
    ]
    torch.testing.assert_close(torch.stack(rows).flatten(1), expected)


def test_regularized_transitions() -> None:
    structure = Sequence(4, 2)
    scores, transitions = scores_for(structure, 5), torch.randn(5, 3, 2, 2).double()
    posterior = sparsemap(structure, scores, transitions, regularize_extra=True, tol=1e-12)
    members = exact.members(structure).flatten(1)
    extra = structure.extra_indicator(exact.codes(structure), transitions).flatten(1)
    rows = torch.cat([members, extra], 1)
    theta = torch.cat([scores.flatten(1), transitions.flatten(1)], 1)
    u = torch.cat([posterior.marginals.flatten(1), posterior.extra.flatten(1)], 1)
    gap = ((theta - u) @ rows.T).amax(1) - ((theta - u) * u).sum(1)
    assert (gap <= 1e-11).all()
    shared = transitions[:, 0].contiguous().requires_grad_()
    each = shared.detach().unsqueeze(1).repeat(1, 3, 1, 1).requires_grad_()
    one, other = (
        sparsemap(structure, scores, t, regularize_extra=True, tol=1e-12) for t in (shared, each)
    )
    torch.testing.assert_close(one.marginals, other.marginals)
    torch.testing.assert_close(one.extra, other.extra)
    v = torch.randn_like(scores)
    (one.marginals * v).sum().backward()
    (other.marginals * v).sum().backward()
    torch.testing.assert_close(shared.grad, each.grad.sum(1))


def test_start_and_end_scores() -> None:
    structure, (start, end) = Sequence(3, 2), torch.randn(2, 2).double()
    scores, transitions = scores_for(structure, 4), torch.randn(2, 2).double()
    posterior = sparsemap(structure, scores, (transitions, start, end), tol=1e-12)
    moved = scores.clone()
    moved[:, 0] += start
    moved[:, -1] += end
    plain = sparsemap(structure, moved, transitions, tol=1e-12)
    torch.testing.assert_close(posterior.marginals, plain.marginals)
    torch.testing.assert_close(posterior.extra[0], plain.extra)
    torch.testing.assert_close(posterior.extra[1], plain.marginals[:, 0])
    torch.testing.assert_close(posterior.extra[2], plain.marginals[:, -1])


@pytest.mark.parametrize(
    ("structure", "small", "sizes"),
    [
        (Sequence(5, 3), Sequence(3, 3), 3),
        (DependencyTree(5), DependencyTree(3), 3),
        (DependencyTree(5, projective=True), DependencyTree(3, projective=True), 3),
        (Matching(4, 5), Matching(2, 3), (2, 3)),
        (Budget(6, 2), Budget(4, 2), 4),
    ],
)
def test_ragged_batches(
    structure: AbstractStructure, small: AbstractStructure, sizes: object
) -> None:
    scores = scores_for(structure, 3).requires_grad_()
    whole = structure.shape if isinstance(structure, Matching) else structure.shape[0]
    lengths = torch.tensor([whole, sizes, whole])
    posterior = sparsemap(structure, scores, lengths=lengths, method="active_set", tol=1e-12)
    corner = tuple(slice(n) for n in small.shape)
    alone = scores.detach()[1][corner].clone().requires_grad_()
    expected = sparsemap(small, alone, method="active_set", tol=1e-12)
    torch.testing.assert_close(posterior.marginals[1][corner], expected.marginals)
    torch.testing.assert_close(posterior.marginals[1].sum(), expected.marginals.sum())
    v = torch.randn_like(scores)
    (posterior.marginals[1] * v[1]).sum().backward()
    (expected.marginals * v[1][corner]).sum().backward()
    torch.testing.assert_close(scores.grad[1][corner], alone.grad)
    assert (scores.grad[::2] == 0).all()


def test_batch_dimensions_and_types() -> None:
    structure = Matching(3, 3)
    scores = torch.randn(2, 4, 3, 3)
    posterior = sparsemap(structure, scores)
    wide = sparsemap(structure, scores.double())
    assert posterior.marginals.dtype == posterior.weights.dtype == torch.float32
    assert posterior.gap.dtype == torch.float64
    assert posterior.support_size.shape == posterior.converged.shape == (2, 4)
    torch.testing.assert_close(posterior.marginals.double(), wide.marginals, rtol=0, atol=1e-6)
    half = sparsemap(structure, scores.bfloat16())
    assert half.marginals.dtype == torch.bfloat16
    single = sparsemap(structure, scores[0, 0])
    assert single.marginals.shape == (3, 3)
    torch.testing.assert_close(single.marginals, posterior.marginals[0, 0])
    empty = sparsemap(structure, scores[:0])
    assert empty.marginals.shape == (0, 4, 3, 3)
    unequal = sparsemap(structure, scores.mT)
    torch.testing.assert_close(unequal.marginals, posterior.marginals.mT)


def test_scores_are_not_changed() -> None:
    scores, transitions = torch.randn(3, 4, 2).double(), torch.randn(2, 2).double()
    copies = scores.clone(), transitions.clone()
    sparsemap(Sequence(4, 2), scores, transitions)
    assert scores.equal(copies[0])
    assert transitions.equal(copies[1])


def test_warm_start() -> None:
    structure = DependencyTree(8)
    scores = scores_for(structure, 6)
    first = sparsemap(structure, scores)
    again = sparsemap(structure, scores, start=first)
    assert (again.iterations == 1).all()
    torch.testing.assert_close(again.marginals, first.marginals, rtol=0, atol=1e-7)
    near = scores + 0.05 * torch.randn_like(scores)
    warm, cold = (
        sparsemap(structure, near, start=first, tol=1e-12),
        sparsemap(structure, near, tol=1e-12),
    )
    torch.testing.assert_close(warm.marginals, cold.marginals, rtol=0, atol=1e-6)
    assert warm.iterations.sum() < cold.iterations.sum()
    with pytest.raises(ValueError, match="same structure"):
        sparsemap(DependencyTree(8, single_root=False), scores, start=first)
    with pytest.raises(ValueError, match="scores of shape"):
        sparsemap(structure, scores[:2], start=first)
    with pytest.raises(ValueError, match="same `lengths`"):
        sparsemap(structure, scores, lengths=torch.full((6,), 8), start=first)


def test_one_warning_says_how_to_raise_the_limit() -> None:
    scores = 0.1 * scores_for(DependencyTree(6), 5)
    with pytest.warns(ConvergenceWarning, match="raise `max_iter`, for example to 30") as caught:
        posterior = sparsemap(DependencyTree(6), scores, max_iter=3)
    assert len(caught) == 1
    assert not posterior.converged.all()
    assert (posterior.iterations <= 3).all()
    assert (posterior.gap[~posterior.converged] > 1e-6).all()


@pytest.mark.parametrize("batched", [True, False])
def test_an_oracle_of_ones_own(batched: bool) -> None:
    members = exact.members(DependencyTree(4))
    calls = []

    def best(scores: Tensor) -> Tensor:
        calls.append(len(scores))
        value = scores.flatten(-2) @ members.to(scores).flatten(1).T
        return members.to(scores)[value.argmax(-1)]

    structure = Custom((4, 4), best, batched=batched)
    scores = scores_for(structure, 6).requires_grad_()
    posterior = sparsemap(structure, scores, tol=1e-12)
    expected = sparsemap(DependencyTree(4), scores, tol=1e-12)
    torch.testing.assert_close(posterior.marginals, expected.marginals)
    assert posterior.codes.shape[2:] == (4, 4)
    if batched:  # one call for all that have not converged
        assert len(calls) == 1 + int(posterior.iterations.max())
        assert calls[0] == 6
        assert calls[-1] < 6
    v = torch.randn_like(scores)
    grads = [torch.autograd.grad((p.marginals * v).sum(), scores)[0] for p in (posterior, expected)]
    torch.testing.assert_close(*grads)
    warm = sparsemap(structure, scores, start=posterior, tol=1e-9)
    assert (warm.iterations == 1).all()


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 1, 2])])
def test_regularized_transitions_with_first_and_last_tags(lengths: Tensor | None) -> None:
    structure, n, m = Sequence(3, 2), 3, 2
    scores, ends = torch.randn(3, n, m).double(), torch.randn(2, m).double()
    moved = scores.clone()
    moved[:, 0] += ends[0]
    last = torch.full((3,), n - 1) if lengths is None else lengths - 1
    moved[torch.arange(3), last] += ends[1]
    for shape in ((m, m), (1, n - 1, m, m), (3, n - 1, m, m), (3, 1, m, m)):
        transitions = torch.randn(shape).double()
        one, other = (
            sparsemap(structure, x, y, lengths=lengths, regularize_extra=True, tol=1e-12)
            for x, y in ((scores, (transitions, *ends)), (moved, transitions))
        )
        torch.testing.assert_close(one.marginals, other.marginals)
        torch.testing.assert_close(one.extra[0], other.extra)
        assert one.extra[0].shape == (3, n - 1, m, m)
        torch.testing.assert_close(one.extra[1], one.marginals[:, 0])
