"""The structured losses against all structures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import exact
from conftest import identify
from fenchel import (
    Bits,
    Budget,
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    StructuredLoss,
    map_inference,
    marginals,
    sparsemap,
    structured_loss,
    structures,
)
from fenchel.losses._structured import KINDS, MARGIN
from fenchel.ops.sparsemap import reference
from fenchel.ops.sparsemap.solution import Limits
from fenchel.structures import AbstractStructure

EXAMPLES = [s for s in structures.examples() if s.name != "custom"]
every = pytest.mark.parametrize("structure", EXAMPLES, ids=identify)
kinds = pytest.mark.parametrize("kind", KINDS)


def inputs_for(structure: AbstractStructure, batch: int = 5) -> tuple[Tensor, Tensor | None]:
    scores = torch.randn(batch, *structure.shape, dtype=torch.float64)
    if not isinstance(structure, Sequence):
        return scores, None
    return scores, torch.randn(batch, structure.tags, structure.tags, dtype=torch.float64)


def skip_intractable(structure: AbstractStructure, kind: str) -> None:
    if kind.endswith("crf") and isinstance(structure, Matching):
        pytest.skip("intractable")


def all_scores(structure: AbstractStructure, scores: Tensor, extra_scores: Tensor | None) -> Tensor:
    """The scores (B, K) of all structures."""
    value = scores.flatten(1) @ exact.members(structure).flatten(1).T
    if extra_scores is not None:
        extra = structure.extra_indicator(exact.codes(structure), extra_scores)  # type: ignore[attr-defined]
        value = value + extra_scores.flatten(1) @ extra.flatten(1).T
    return value


def sparsemap_value(theta: Tensor, rows: Tensor) -> Tensor:
    """max over distributions y of <theta, y> − ½|y rows|², with every structure looked at."""
    each = torch.eye(len(rows)).double()

    def oracle(scores: Tensor, extra_scores: Tensor, places: Tensor) -> reference.Columns:
        best = (scores @ rows.T + extra_scores).argmax(1)
        found = torch.ones(len(best), dtype=torch.bool)
        return reference.Columns(best, rows[best], each[best], found)

    zeros = torch.zeros(len(theta), rows.shape[1]).double()
    limits = Limits(1e-12, 1000)
    u, weights, support, _ = reference.solve(
        oracle, zeros, theta, None, "active_set", limits, False
    )
    y = torch.einsum("bk,bkn->bn", weights, support.extras)
    return (theta * y).sum(1) - (u * u).sum(1) / 2


@every
@kinds
def test_value_and_gradient_by_brute_force(structure: AbstractStructure, kind: str) -> None:
    skip_intractable(structure, kind)
    scores, extra_scores = inputs_for(structure)
    codes = exact.codes(structure)  # type: ignore[attr-defined]
    place = torch.randint(len(codes), (5,))
    target, members = codes[place], exact.members(structure)
    hamming = (codes != target.unsqueeze(1)).sum(-1).double()
    value = all_scores(structure, scores, extra_scores)
    at_target = value.gather(1, place.unsqueeze(1)).squeeze(1)
    if kind in MARGIN:
        value = value + hamming
    if kind in ("perceptron", "svm"):
        expected = value.amax(1) - at_target
    elif kind.endswith("crf"):
        expected = value.logsumexp(1) - at_target
    else:
        expected = sparsemap_value(value, members.flatten(1)) - at_target
        expected = expected + (members[place] ** 2).flatten(1).sum(1) / 2
    scores.requires_grad_()
    loss = structured_loss(
        structure, scores, target, extra_scores, kind=kind, reduction="none", tol=1e-12
    )
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-7)
    assert (loss >= -1e-12).all()
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    step = 1e-6 * torch.randn_like(scores)
    options = {"kind": kind, "reduction": "none", "tol": 1e-13}
    both = [
        structured_loss(structure, scores.detach() + s * step, target, extra_scores, **options)
        for s in (1, -1)
    ]
    torch.testing.assert_close(
        (gradient * step).flatten(1).sum(1), (both[0] - both[1]) / 2, rtol=1e-3, atol=1e-10
    )


@every
@kinds
def test_gradient_is_the_prediction_less_the_target(
    structure: AbstractStructure, kind: str
) -> None:
    skip_intractable(structure, kind)
    scores, extra_scores = inputs_for(structure)
    codes = exact.codes(structure)  # type: ignore[attr-defined]
    target = codes[torch.randint(len(codes), (5,))]
    leaves = [scores.requires_grad_()]
    if extra_scores is not None:
        leaves.append(extra_scores.requires_grad_())
    loss = structured_loss(
        structure, scores, target, extra_scores, kind=kind, reduction="sum", tol=1e-12
    )
    gradients = torch.autograd.grad(loss, leaves)
    if kind in MARGIN:
        return
    y = structure.indicator(target)  # type: ignore[attr-defined]
    if kind == "perceptron":
        best = map_inference(structure, scores, extra_scores)
        u, v = best.indicator, best.extra
    elif kind == "crf":
        found = marginals(structure, scores, extra_scores)
        u, v = found if isinstance(found, tuple) else (found, None)
    else:
        posterior = sparsemap(structure, scores, extra_scores, tol=1e-12)
        u, v = posterior.marginals, posterior.extra
    torch.testing.assert_close(gradients[0], u - y, rtol=0, atol=1e-6)
    if extra_scores is not None:
        z = structure.extra_indicator(target, extra_scores)  # type: ignore[attr-defined]
        torch.testing.assert_close(gradients[1], v - z, rtol=0, atol=1e-6)


@kinds
def test_zero_where_the_target_wins_by_its_margin(kind: str) -> None:
    structure = DependencyTree(4)
    target = exact.codes(structure)[7:8]
    scores = 3 * structure.indicator(target)
    loss = structured_loss(structure, scores, target, kind=kind)
    assert (loss > 0.0) if kind.endswith("crf") else (loss.abs() < 1e-12)
    if kind in MARGIN:  # without the margin
        tied = structured_loss(structure, torch.zeros_like(scores), target, kind=kind)
        assert tied >= 1


@every
def test_targets_as_codes_or_indicators(structure: AbstractStructure) -> None:
    scores, extra_scores = inputs_for(structure)
    codes = exact.codes(structure)  # type: ignore[attr-defined]
    target = codes[torch.randint(len(codes), (5,))]
    options = {"kind": "margin_sparsemap", "reduction": "none"}
    by_codes = structured_loss(structure, scores, target, extra_scores, **options)
    y = structure.indicator(target)  # type: ignore[attr-defined]
    torch.testing.assert_close(
        structured_loss(structure, scores, y, extra_scores, **options), by_codes
    )
    if extra_scores is not None:
        z = structure.extra_indicator(target, extra_scores)  # type: ignore[attr-defined]
        both = structured_loss(structure, scores, (y, z), extra_scores, **options)
        torch.testing.assert_close(both, by_codes)


def test_a_soft_target() -> None:
    structure = Matching(3, 3)
    scores = torch.randn(4, 3, 3).double()
    posterior = sparsemap(structure, scores, tol=1e-12)
    loss = structured_loss(structure, scores, posterior.marginals, reduction="none", tol=1e-12)
    torch.testing.assert_close(loss, torch.zeros(4).double(), rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="zeros and ones of a structure of the library, where"):
        structured_loss(Sequence(2, 2), torch.randn(2, 2), torch.full((2, 2), 0.5), torch.eye(2))


def test_a_cost_of_ones_own() -> None:
    structure = Sequence(3, 2)
    scores, target = torch.randn(4, 3, 2).double(), torch.randint(2, (4, 3))
    wrong = 1.0 - structure.indicator(target)
    default = structured_loss(structure, scores, target, kind="svm", reduction="none")
    own = structured_loss(structure, scores, target, kind="svm", cost=wrong, reduction="none")
    torch.testing.assert_close(own, default)
    double = structured_loss(
        structure, scores, target, kind="svm", cost=2 * wrong, reduction="none"
    )
    assert (double >= default).all()
    with pytest.raises(ValueError, match="`cost` must be None for crf"):
        structured_loss(structure, scores, target, kind="crf", cost=wrong)
    with pytest.raises(ValueError, match="`cost` must broadcast"):
        structured_loss(structure, scores, target, kind="svm", cost=torch.zeros(4))


@pytest.mark.parametrize("structure", [Bits(4), Budget(4, 2), Matching(4, 3)])
def test_hamming_counts_what_is_missing_too(structure: AbstractStructure) -> None:
    codes = exact.codes(structure)  # type: ignore[attr-defined]
    target = codes[3:4]
    loss = structured_loss(structure, torch.zeros(1, *structure.shape).double(), target, kind="svm")
    assert float(loss) == float((codes != target).sum(1).max())


def test_ragged_batches() -> None:
    structure, small = DependencyTree(5), DependencyTree(3)
    scores = torch.randn(2, 5, 5).double()
    heads = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, -1, -1]])
    for kind in KINDS:
        loss = structured_loss(
            structure, scores, heads, lengths=torch.tensor([5, 3]), kind=kind, reduction="none"
        )
        alone = structured_loss(small, scores[1, :3, :3], heads[1, :3], kind=kind)
        torch.testing.assert_close(loss[1], alone)


def test_reductions_and_module() -> None:
    structure = DependencyTree(3)
    scores, target = torch.randn(2, 3, 3, 3), exact.codes(structure)[:6].reshape(2, 3, 3)
    each = structured_loss(structure, scores, target, reduction="none")
    assert each.shape == (2, 3)
    assert each.dtype == torch.float32
    torch.testing.assert_close(structured_loss(structure, scores, target), each.mean())
    torch.testing.assert_close(
        structured_loss(structure, scores, target, reduction="sum"), each.sum()
    )
    module = StructuredLoss(structure, kind="svm", reduction="none")
    expected = structured_loss(structure, scores, target, kind="svm", reduction="none")
    assert module(scores, target).equal(expected)
    assert "kind='svm'" in repr(module)


def test_second_derivatives() -> None:
    structure = Sequence(3, 2)
    scores, transitions = torch.randn(3, 3, 2).double(), torch.randn(3, 2, 2).double()
    target = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1]])
    for kind in ("sparsemap", "margin_sparsemap"):

        def loss(s: Tensor, t: Tensor, kind: str = kind) -> Tensor:
            return structured_loss(structure, s, target, t, kind=kind, tol=1e-13)

        leaves = (scores.requires_grad_(), transitions.requires_grad_())
        assert torch.autograd.gradcheck(loss, leaves, eps=1e-7, atol=1e-5)
        assert torch.autograd.gradgradcheck(loss, leaves, eps=1e-7, atol=1e-5)


def test_a_structure_of_ones_own() -> None:
    table = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).double()
    structure = Custom((3,), lambda scores: table[(scores @ table.T).argmax(-1)], batched=True)
    scores = torch.randn(4, 3).double()
    target = table[torch.tensor([0, 1, 2, 0])]
    for kind in ("perceptron", "svm", "sparsemap", "margin_sparsemap"):
        assert (structured_loss(structure, scores, target, kind=kind, reduction="none") >= 0).all()
    with pytest.raises(NotImplementedError):
        structured_loss(structure, scores, target, kind="crf")


def test_bad_input() -> None:
    structure, scores = Sequence(3, 2), torch.randn(4, 3, 2)
    good = torch.zeros(4, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="`kind` must be one of perceptron"):
        structured_loss(structure, scores, good, kind="hinge")
    with pytest.raises(TypeError, match=r"`target` must be a torch\.Tensor"):
        structured_loss(structure, scores, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="as integer codes"):
        structured_loss(structure, scores, good[:, :2])
    with pytest.raises(ValueError, match="as indicators"):
        structured_loss(structure, scores, good.float())
    for value in (2, 100):
        with pytest.raises(ValueError, match=f"has no option {value} at that position"):
            structured_loss(structure, scores, torch.full_like(good, value))
    with pytest.raises(NotImplementedError, match="permanent"):
        structured_loss(Matching(2, 2), torch.randn(2, 2), torch.tensor([0, 1]), kind="crf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["svm", "crf", "sparsemap"])
def test_half_is_rounded_once(kind: str, dtype: torch.dtype) -> None:
    scores = (20 * torch.randn(6000, 2, 2)).to(dtype)
    target = torch.randint(2, (6000, 2))
    loss = structured_loss(Sequence(2, 2), scores, target, kind=kind)
    wide = structured_loss(Sequence(2, 2), scores.float(), target, kind=kind)
    assert loss.equal(wide.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        assert structured_loss(Sequence(2, 2), scores, target, kind=kind).equal(wide)
