"""Targets of structured losses: in every form, of every length, and those that are none."""

from __future__ import annotations

import pytest
import torch

import exact
from fenchel import (
    Bits,
    Budget,
    Choice,
    Custom,
    DependencyTree,
    Matching,
    Sequence,
    StructuredLoss,
    map_inference,
    sparsemap,
    structured_loss,
)

KINDS = ("perceptron", "svm", "crf", "margin_crf", "sparsemap", "margin_sparsemap")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [True, False])
def test_nothing_behind_the_end_of_a_target_counts(kind: str, given: bool) -> None:
    structure, lengths = Sequence(4, 3), torch.tensor([4, 2])
    scores = torch.randn(2, 4, 3, dtype=torch.float64)
    transitions = torch.randn(3, 3, dtype=torch.float64) if given else None
    codes = torch.randint(3, (2, 4))
    loss = StructuredLoss(structure, kind, "none")
    found = loss(scores, codes, transitions, lengths=lengths)
    short = StructuredLoss(Sequence(2, 3), kind, "none")
    alone = short(scores[1:, :2], codes[1:, :2], transitions)
    torch.testing.assert_close(found[1:], alone)
    for padding in (-1, -100, 99):
        padded = codes.clone()
        padded[1, 2:] = padding
        torch.testing.assert_close(loss(scores, padded, transitions, lengths=lengths), found)
    y = structure.indicator(codes)
    torch.testing.assert_close(loss(scores, y, transitions, lengths=lengths), found)
    y[1, 2:] = torch.nan
    torch.testing.assert_close(loss(scores, y, transitions, lengths=lengths), found)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_what_map_inference_returns_is_a_target(reduction: str) -> None:
    structure, scores = DependencyTree(4), torch.randn(3, 4, 4, dtype=torch.float64)
    best = map_inference(structure, torch.randn_like(scores))
    loss = StructuredLoss(structure, "margin_sparsemap", reduction)
    torch.testing.assert_close(loss(scores, best), loss(scores, best.codes))
    assert loss(scores, best).shape == ((3,) if reduction == "none" else ())
    table = torch.eye(3, dtype=torch.float64)
    own = Custom((3,), lambda x: table[x.argmax()])
    flat = torch.randn(3, dtype=torch.float64)
    found = structured_loss(own, flat, map_inference(own, flat), kind="perceptron")
    torch.testing.assert_close(found, torch.zeros_like(found))


@pytest.mark.parametrize(
    ("structure", "codes"),
    [
        (Sequence(3, 2), [0, -1, 1]),
        (DependencyTree(3), [1, 0, 0]),
        (DependencyTree(3), [0, 1, 0]),
        (DependencyTree(3, single_root=False), [1, 2, 0]),
        (DependencyTree(4, projective=True), [2, 1, 1, 1]),
        (Matching(3, 3), [1, 1, 0]),
        (Matching(2, 3), [1, -1]),
        (Budget(4, 2), [1, 1, 1, 0]),
        (Budget(4, 2, exact=True), [1, 0, 0, 0]),
    ],
)
def test_codes_that_are_no_structure(structure, codes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"`target` must hold structures of .* is none"):
        structured_loss(structure, torch.zeros(structure.shape), torch.tensor(codes))


def test_a_head_behind_the_end_is_none() -> None:
    with pytest.raises(ValueError, match=r"\[0, 2, -1\] is none, for the size"):
        structured_loss(
            DependencyTree(3), torch.zeros(1, 3, 3), torch.tensor([[0, 2, 2]]), lengths=[2]
        )


def test_a_soft_target_needs_no_pair_where_no_transitions_are_given() -> None:
    scores, y = torch.randn(2, 2, dtype=torch.float64), torch.full((2, 2), 0.5).double()
    loss = structured_loss(Sequence(2, 2), scores, y)
    value = sparsemap(Sequence(2, 2), scores, tol=1e-12).marginals
    best = (value * scores).sum() - value.square().sum() / 2
    torch.testing.assert_close(loss, best - (y * scores).sum() + y.square().sum() / 2)
    with pytest.raises(ValueError, match="`target` must be a tensor, or a pair of them; got 3"):
        structured_loss(Sequence(2, 2), scores, (y, y, y))  # type: ignore[arg-type]


def test_a_module_checks_its_options() -> None:
    with pytest.raises(ValueError, match="`max_iter` must be at least 1, got 0"):
        StructuredLoss(Bits(3), max_iter=0)
    with pytest.raises(ValueError, match="`tol` must be at least 0"):
        StructuredLoss(Choice(3), tol=-1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_large_scores_in_float32_lose_nothing(kind: str) -> None:
    structure = DependencyTree(4)
    target = exact.codes(structure)[::9]
    scores = torch.randn(len(target), 4, 4)
    for shift in (1e4, 1e30):
        moved = scores + shift
        found = structured_loss(structure, moved, target, kind=kind, reduction="none")
        wide = structured_loss(structure, moved.double(), target, kind=kind, reduction="none")
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wide, rtol=1e-6, atol=1e-6)
        assert (found >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_forbidden_costs_infinity(kind: str) -> None:
    scores = torch.zeros(3, 3, 3, dtype=torch.float64)
    scores[0] = -torch.inf
    scores[1, 0, 1] = -torch.inf
    scores.requires_grad_()
    target = torch.tensor([[0, 0, 0]] * 3)
    losses = structured_loss(DependencyTree(3), scores, target, kind=kind, reduction="none")
    assert losses.isposinf().tolist() == [True, True, False]
    (gradient,) = torch.autograd.grad(losses[2], scores)
    assert gradient.isfinite().all()
