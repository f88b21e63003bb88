"""Entropies and divergences of Gibbs distributions are those of the sums over all members."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gibbs
import pytest
import torch
from torch import Tensor

from conftest import identify
from fenchel import (
    Bits,
    Choice,
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    log_partition,
    map_inference,
    marginals,
    structures,
)
from fenchel.structures import AbstractStructure, cross_entropy, entropy, k_best, kl, sample

tractable = pytest.mark.parametrize("structure", gibbs.TRACTABLE, ids=identify)
small = pytest.mark.parametrize(
    "structure",
    [
        Sequence(3, 2),
        DependencyTree(3),
        DependencyTree(3, single_root=False),
        DependencyTree(3, projective=True),
        DependencyTree(3, projective=True, single_root=False),
        *(s for s in gibbs.TRACTABLE if s.name in ("bits", "budget", "choice")),
    ],
    ids=identify,
)


def expected(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entropy of p, its cross-entropy with q and its divergence from q, from the scores (K) of
    all members."""
    if (log_p == -torch.inf).all():
        return (torch.zeros((), dtype=torch.float64),) * 3
    p, log_p, log_q = log_p.softmax(0), log_p.log_softmax(0), log_q.log_softmax(0)
    used = p > 0
    own, other = -(p * log_p)[used].sum(), -(p * log_q)[used].sum()
    return own, other, (p * (log_p - log_q))[used].sum()


def check(structure: AbstractStructure, scores: Tensor, other: Tensor, tolerance: float) -> None:
    found = (
        entropy(structure, scores),
        cross_entropy(structure, scores, other),
        kl(structure, scores, other),
    )
    for i in range(len(scores)):
        log_p, log_q = (gibbs.totals(structure, x[i])[1] for x in (scores, other))
        wanted = expected(log_p, log_q)
        for value, truth in zip(found, wanted, strict=True):
            torch.testing.assert_close(value[i], truth, rtol=tolerance, atol=tolerance)


@tractable
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_any_scores(structure: AbstractStructure, scale: float) -> None:
    scores, other = scale * torch.randn(2, 4, *structure.shape, dtype=torch.float64)
    check(structure, scores, other, 1e-10)


@tractable
def test_forbidden_parts(structure: AbstractStructure) -> None:
    """Both forbid the same, then q more than p, then p more than q."""
    scores, other = torch.randn(2, 12, *structure.shape, dtype=torch.float64)
    forbidden, more = torch.rand(2, *scores.shape) < 0.25
    scores[forbidden] = other[forbidden] = -torch.inf
    check(structure, scores, other, 1e-10)
    masked = other.masked_fill(more, -torch.inf)
    for p, q in ((scores, masked), (masked, scores)):
        divergence, cross = kl(structure, p, q), cross_entropy(structure, p, q)
        for i in range(len(p)):
            log_p, log_q = (gibbs.totals(structure, x[i])[1] for x in (p, q))
            excluded = ((log_p > -torch.inf) & (log_q == -torch.inf)).any()
            wanted = expected(log_p, log_q)[1:]
            for value, truth in zip((cross[i], divergence[i]), wanted, strict=True):
                truth = torch.tensor(torch.inf).double() if excluded else truth
                torch.testing.assert_close(value, truth, rtol=1e-10, atol=1e-10)


@tractable
def test_instances_without_structures_have_zeros_and_no_gradient(
    structure: AbstractStructure,
) -> None:
    scores = torch.randn(3, *structure.shape, dtype=torch.float64)
    scores[1] = -torch.inf
    scores.requires_grad_()
    value = entropy(structure, scores)
    (grad,) = torch.autograd.grad(value.sum(), scores)
    assert value[1] == 0
    assert (grad[1] == 0).all()
    assert grad.isfinite().all()
    scores = scores.detach().clone()
    scores[1].flatten()[0] = torch.nan
    value = entropy(structure, scores)
    assert value[1].isnan()
    assert value[[0, 2]].isfinite().all()


@small
def test_derivatives(structure: AbstractStructure) -> None:
    scores, other = torch.randn(2, 2, *structure.shape, dtype=torch.float64)
    scores.requires_grad_()
    other.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: entropy(structure, x), scores)
    assert torch.autograd.gradgradcheck(lambda x: entropy(structure, x), scores)
    for function in (cross_entropy, kl):
        inputs = (scores, other)
        assert torch.autograd.gradcheck(lambda x, y, f=function: f(structure, x, y), inputs)
        assert torch.autograd.gradgradcheck(lambda x, y, f=function: f(structure, x, y), inputs)


def of_losses(function: Callable[..., Any], scores: Tensor) -> list[Tensor]:
    """The gradient of losses that are not linear, without and with a graph."""
    return [
        torch.autograd.grad(sum((x.sin() + x**2).sum() for x in found), scores, create_graph=graph)[
            0
        ]
        for graph in (False, True)
        for found in [function(scores)]
    ]


@small
@pytest.mark.parametrize("function", [marginals, log_partition, entropy])
def test_gradients_with_a_graph_are_the_same(
    structure: AbstractStructure, function: Callable[..., Tensor]
) -> None:
    scores = torch.randn(2, *structure.shape, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(*of_losses(lambda x: function(structure, x), scores))


def test_extra_scores_that_come_from_the_scores() -> None:
    structure = Sequence(3, 2)
    scores = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    for function in (marginals, log_partition, entropy):
        of_both = partial(function, structure)
        torch.testing.assert_close(
            *of_losses(
                lambda x, f=of_both: f(x, (x[:, :2, :, None] * x[:, 1:, None]).sin()), scores
            )
        )


@small
def test_derivatives_with_forbidden_parts(structure: AbstractStructure) -> None:
    """They are those of the sums over all members."""
    scores = torch.randn(6, *structure.shape, dtype=torch.float64)
    scores[torch.rand(scores.shape) < 0.3] = -torch.inf
    scores.requires_grad_()
    other = torch.randn_like(scores).requires_grad_()
    found = torch.autograd.grad(kl(structure, scores, other).sum(), (scores, other))
    assert found[0].isfinite().all()
    assert (found[0][scores == -torch.inf] == 0).all()
    for i in range(len(scores)):
        if (gibbs.totals(structure, scores[i])[1] == -torch.inf).all():
            assert (found[0][i] == 0).all()
            assert (found[1][i] == 0).all()
            continue
        leaf = scores[i].detach().masked_fill(scores[i] == -torch.inf, -700.0).requires_grad_()
        q = other[i].detach().requires_grad_()
        value = expected(*(gibbs.totals(structure, x)[1] for x in (leaf, q)))[2]
        grads = torch.autograd.grad(value, (leaf, q))
        for grad, truth in zip((found[0][i], found[1][i]), grads, strict=True):
            torch.testing.assert_close(grad, truth, rtol=1e-9, atol=1e-9)


@tractable
def test_ragged_batches(structure: AbstractStructure) -> None:
    sizes = gibbs.lengths_of(structure)
    scores, other = torch.randn(2, len(sizes), *structure.shape, dtype=torch.float64)
    lengths = torch.cat(sizes)
    outside = ~structure.length_mask(lengths.unsqueeze(1))
    inputs = [x.masked_fill(outside, bad) for x, bad in ((scores, torch.nan), (other, 1e300))]
    for x in inputs:
        x.requires_grad_()
    found = (
        entropy(structure, inputs[0], lengths=lengths),
        cross_entropy(structure, *inputs, lengths=lengths),
        kl(structure, *inputs, lengths=lengths),
    )
    for i, size in enumerate(sizes):
        values = [gibbs.totals(structure, x[i], None, size)[1] for x in (scores, other)]
        if len(values[0]):
            for value, truth in zip(found, expected(*values), strict=True):
                torch.testing.assert_close(value[i], truth, rtol=1e-10, atol=1e-10)
        else:
            assert all(value[i] == 0 for value in found)
    for grad in torch.autograd.grad(found[0].sum() + found[2].sum(), inputs):
        assert (grad[outside] == 0).all()
        assert grad.isfinite().all()


@pytest.mark.parametrize("form", gibbs.FORMS)
@pytest.mark.parametrize("other_form", [*gibbs.FORMS, None])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_extra_scores_of_any_two_forms(form: str, other_form: str | None, n: int) -> None:
    structure = Sequence(n, 2)
    scores, other = torch.randn(2, 3, n, 2, dtype=torch.float64).unbind(0)
    scores, other = scores.requires_grad_(), other.requires_grad_()
    extra = gibbs.extra_scores(structure, form, requires_grad=True)
    other_extra = other_form and gibbs.extra_scores(structure, other_form, requires_grad=True)
    lengths = torch.tensor([3, 2, 1]).clamp(max=n)
    inputs = [x for x in (scores, other, *extra, *(other_extra or ())) if x is not None]
    for p, q in (
        ((scores, extra), (other, other_extra)),
        ((other, other_extra), (scores, extra)),
    ):
        found = torch.stack(
            [
                entropy(structure, *p, lengths=lengths),
                cross_entropy(structure, p[0], q[0], p[1], q[1], lengths=lengths),
                kl(structure, p[0], q[0], p[1], q[1], lengths=lengths),
            ],
            1,
        )
        rows = []
        for i in range(3):
            values = [gibbs.totals(structure, x[i], y, lengths[i : i + 1])[1] for x, y in (p, q)]
            rows.append(torch.stack(expected(*values)))
        truth = torch.stack(rows)
        torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)
        weights = torch.randn_like(truth)
        grads, truths = (
            torch.autograd.grad((x * weights).sum(), inputs, materialize_grads=True)
            for x in (found, truth)
        )
        for grad, wanted in zip(grads, truths, strict=True):
            torch.testing.assert_close(grad, wanted, rtol=1e-9, atol=1e-9)


def test_extra_scores_have_second_derivatives() -> None:
    structure = Sequence(3, 2)
    inputs = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradgradcheck(lambda x, t: entropy(structure, x, t), inputs)
    prior = torch.zeros(2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda x, t: kl(structure, x, prior, other_extra_scores=t), inputs
    )


@tractable
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_are_rounded_once(structure: AbstractStructure, dtype: torch.dtype) -> None:
    """Their sums are in float64, though the log-partition is large."""
    scores = (100 + torch.randn(2, 3, *structure.shape)).to(dtype)
    for batch in (scores, scores[0, 0], scores[:0]):
        found = entropy(structure, batch)
        assert found.dtype == dtype
        exact = entropy(structure, batch.double())
        assert found.shape == exact.shape == batch.shape[: batch.ndim - len(structure.shape)]
        torch.testing.assert_close(found, exact.to(dtype), rtol=0, atol=0)
        assert kl(structure, batch, batch).eq(0).all()


def test_never_negative() -> None:
    scores = 1e3 * torch.randn(50, 6, 6, dtype=torch.float64)
    for structure in (DependencyTree(6), Sequence(6, 6)):
        assert (entropy(structure, scores) >= 0).all()
        assert (kl(structure, scores, scores + 1e-9) >= 0).all()


@pytest.mark.parametrize("structure", [Sequence(4, 3), DependencyTree(4), Choice(9)], ids=identify)
def test_small_entropies_of_large_scores_keep_their_digits(structure: AbstractStructure) -> None:
    """One structure is almost certain, and scores are the same but for large integers."""
    best = map_inference(structure, torch.randn(structure.shape, dtype=torch.float64)).indicator
    for gap in (20.0, 30.0):
        differences = gibbs.totals(structure, gap * best)[1]
        differences = (differences - differences.max()).sort(descending=True).values[1:]
        total = differences.exp().sum().log1p()
        truth = total - (differences * (differences - total).exp()).sum()
        for shift in (0, 10**6, 10**12):
            found = entropy(structure, gap * best + shift)
            torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-14)


def test_other_scores_are_broadcast() -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64)
    other = torch.randn(4, dtype=torch.float64)
    found = kl(Choice(4), scores, other)
    torch.testing.assert_close(found, kl(Choice(4), scores, other.expand(2, 3, 4)))


def test_torch_func() -> None:
    structure, scores = Sequence(3, 2), torch.randn(3, 2, dtype=torch.float64)
    leaf = scores.clone().requires_grad_()
    (grad,) = torch.autograd.grad(entropy(structure, leaf), leaf)
    function = lambda x: entropy(structure, x)  # noqa: E731
    torch.testing.assert_close(torch.func.grad(function)(scores), grad)
    torch.testing.assert_close(torch.func.jacfwd(function)(scores), grad)
    batch = torch.randn(5, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(function)(batch), function(batch))


def test_intractable_structures() -> None:
    scores = torch.zeros(2, 2)
    custom = Custom((2, 2), lambda x: x)
    for structure, reason in ((Matching(2, 2), "a permanent"), (custom, "no log-partition")):
        with pytest.raises(NotImplementedError, match=reason):
            entropy(structure, scores)
        with pytest.raises(NotImplementedError, match=reason):
            cross_entropy(structure, scores, scores)
        with pytest.raises(NotImplementedError, match=reason):
            kl(structure, scores, scores)


def test_wrong_arguments() -> None:
    scores = torch.zeros(4)
    with pytest.raises(TypeError, match="`structure` must be a structure"):
        entropy(structures, scores)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`other_scores` must broadcast to the scores' shape"):
        kl(Bits(4), scores, torch.zeros(3))
    with pytest.raises(TypeError, match="`other_scores` must be a torch\\.Tensor, got list"):
        kl(Bits(4), scores, [0.0] * 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`lengths` must be between 1 and 4, got 5"):
        entropy(Bits(4), scores, lengths=5)


def test_a_mask_says_the_same_as_lengths() -> None:
    structure, lengths = Sequence(4, 3), torch.tensor([4, 1, 3])
    scores, mask = torch.randn(3, 4, 3), torch.arange(4) < lengths.unsqueeze(1)
    for function in (
        lambda **sizes: entropy(structure, scores, **sizes),
        lambda **sizes: kl(structure, scores, -scores, **sizes),
        lambda **sizes: cross_entropy(structure, scores, -scores, **sizes),
        lambda **sizes: k_best(structure, scores, 4, **sizes).codes,
        lambda **sizes: sample(
            structure, scores, 4, generator=torch.Generator().manual_seed(0), **sizes
        ),
    ):
        assert function(mask=mask).equal(function(lengths=lengths))
