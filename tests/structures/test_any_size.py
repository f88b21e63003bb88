"""Inference with scores of any size, against sums in exact arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import exact
from conftest import identify
from fenchel import (
    Budget,
    DependencyTree,
    Sequence,
    log_partition,
    map_inference,
    marginals,
    sparsemap,
    structures,
)
from fenchel.ops import _native
from fenchel.structures._coded import CodedStructure

pytestmark = pytest.mark.skipif(
    _native.LIBRARY is None, reason="the references round sums of large scores"
)
TREES = [
    DependencyTree(n, projective=projective, single_root=single)
    for n in (1, 2, 3, 4)
    for projective in (False, True)
    for single in (False, True)
]
STRUCTURES = [
    *TREES,
    DependencyTree(5),
    Sequence(1, 3),
    Sequence(4, 1),
    Sequence(4, 3),
    Budget(1, 1),
    Budget(5, 2),
    Budget(5, 3, exact=True),
]
every = pytest.mark.parametrize("structure", STRUCTURES, ids=identify)


def instances(shape: tuple[int, ...], size: float) -> Tensor:
    """Scores up to `size`: all large, with ties, large ones among small ones, or forbidden."""
    large = size * (2 * torch.rand(9, *shape).double() - 1)
    small = torch.randn_like(large)
    large[1] = large[1].sign() * size
    large[2] = size
    large[3] = -size
    for k in (4, 5, 6):  # the small ones decide between those that share large ones
        large[k] = torch.where(torch.rand(shape) < 0.5, large[k].sign() * size, small[k])
    for k in (6, 7, 8):
        large[k][torch.rand(shape) < 0.3] = -torch.inf
    return large


def check(structure: CodedStructure, scores: Tensor, members: Tensor, tolerance: float) -> None:
    values, u = log_partition(structure, scores), marginals(structure, scores)
    flat = scores.flatten(1).double()
    ground_truth = [exact.inference(members, row) for row in flat]
    expected = torch.tensor([value for value, _ in ground_truth], dtype=torch.float64)
    torch.testing.assert_close(values.double(), expected, rtol=tolerance, atol=tolerance)
    right = torch.stack([shares for _, shares in ground_truth]).reshape(scores.shape)
    torch.testing.assert_close(u.double(), right, rtol=tolerance, atol=tolerance)


@every
@pytest.mark.parametrize("size", [2e6, 1e10, 1e13, 1e17, 1e30, 1e100, 1e300])
def test_every_size_is_right(structure: CodedStructure, size: float) -> None:
    members = exact.members(structure).flatten(1)
    scores = instances(structure.shape, size)
    check(structure, scores, members, 1e-9)
    if size <= 1e30:
        check(structure, scores.float(), members, 1e-6)


@every
def test_gradients_of_large_scores_are_marginals_and_their_covariance(
    structure: CodedStructure,
) -> None:
    members = exact.members(structure).flatten(1)
    for size in (1e13, 1e300):
        scores = instances(structure.shape, size).requires_grad_()
        direction = torch.randn_like(scores)
        (u,) = torch.autograd.grad(log_partition(structure, scores).sum(), scores)
        (second,) = torch.autograd.grad((marginals(structure, scores) * direction).sum(), scores)
        for k, row in enumerate(scores.detach().flatten(1)):
            _, mean = exact.inference(members, row)
            torch.testing.assert_close(u[k].flatten(), mean, rtol=1e-9, atol=1e-9)
            _, pairs = exact.inference(
                torch.cat([members, members * (members @ direction[k].flatten()).unsqueeze(1)], 1),
                torch.cat([row, torch.zeros_like(row)]),
            )
            product = pairs[len(row) :] - mean * (mean @ direction[k].flatten())
            torch.testing.assert_close(second[k].flatten(), product, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shared", [True, False])
def test_large_transitions(shared: bool) -> None:
    n, m = 4, 3
    structure = Sequence(n, m)
    codes, members = exact.codes(structure), exact.members(structure).flatten(1)
    for size in (1e10, 1e17, 1e300):
        unaries = instances((n, m), size)
        transitions = instances((m, m) if shared else (n - 1, m, m), size)
        values = log_partition(structure, unaries, transitions)
        u, v = marginals(structure, unaries, transitions)
        pairs = structure.extra_indicator(codes, transitions)
        assert pairs is not None
        both = torch.cat([members, pairs.flatten(1).double()], 1)
        scores = torch.cat([unaries.flatten(1), transitions.flatten(1)], 1)
        for k, row in enumerate(scores):
            value, mean = exact.inference(both, row)
            torch.testing.assert_close(values[k].item(), value, rtol=1e-9, atol=1e-9)
            found = torch.cat([u[k].flatten(), v[k].flatten()])
            torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-9)


@every
def test_a_large_negative_score_forbids(structure: CodedStructure) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.randn(6, *structure.shape, dtype=dtype)
        forbidden_parts = torch.rand(scores.shape) < 0.2
        for low in (-1e9, -1e38):
            masked = torch.where(forbidden_parts, low, scores)
            truly = torch.where(forbidden_parts, -torch.inf, scores)
            possible = log_partition(structure, truly) > -torch.inf
            torch.testing.assert_close(
                marginals(structure, masked)[possible], marginals(structure, truly)[possible]
            )


ENDS = [(a, b) for a in (True, False) for b in (True, False)]
CODED = [s for s in structures.examples() if isinstance(s, CodedStructure)]
KINDS = [
    *((structure, None) for structure in CODED),
    *(
        (Sequence(n, m), (shape, start, end))
        for n, m in [(1, 3), (2, 2), (4, 3)]
        for shape in (None, (m, m), (n - 1, m, m))
        for start, end in ENDS
    ),
]


@pytest.mark.parametrize(("structure", "given"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_scores_count_beside_large_ones(
    structure: CodedStructure, given: tuple | None, dtype: torch.dtype
) -> None:
    for large in ([1e30, -1e30], [-1e30]):
        values = torch.tensor([*large, *large, 1.0, -1.0, 0.0, 0.5], dtype=dtype)

        def draw(*shape: int, values: Tensor = values) -> Tensor:
            return values[torch.randint(len(values), shape)]

        for _ in range(4):
            scores, extra_scores = draw(*structure.shape), ()
            if given is not None:
                shape, m = given[0], structure.shape[1]
                transitions = None if shape is None else draw(*shape)
                extra_scores = (transitions, *(draw(m) if there else None for there in given[1:]))
            rows, every_score = exact.with_extra(structure, scores, extra_scores)
            totals = exact.totals(rows, every_score)
            top = exact.best(totals)
            assert top is not None

            found = map_inference(structure, scores, extra_scores or None)
            assert found.codes is not None
            value = totals[exact.index_of(structure, found.codes)]
            assert value is not None
            assert top - value <= 1e-15
            posterior = sparsemap(structure, scores, extra_scores or None)
            assert posterior.converged
            assert exact.gap(structure, totals, posterior) <= 2e-6

            if structure.name == "matching":
                continue
            value, mean = exact.inference(rows, every_score)
            assert log_partition(structure, scores, extra_scores or None).item() == pytest.approx(
                value, rel=1e-6, abs=1e-6
            )
            result = marginals(structure, scores, extra_scores or None)
            u, v = result if extra_scores else (result, ())
            both = torch.cat([x.flatten() for x in (u, *v) if x is not None]).double()
            torch.testing.assert_close(both, mean, rtol=0, atol=1e-6)


def test_first_and_last_tags_beside_large_unaries() -> None:
    unaries = torch.full((1, 2), -1e30, requires_grad=True)
    ends = torch.tensor([1.0, 0.0], requires_grad=True)
    for extra_scores in ((None, ends, None), (None, None, ends)):
        u, _ = marginals(Sequence(1, 2), unaries, extra_scores)
        torch.testing.assert_close(u[0], ends.detach().softmax(0))
        value = log_partition(Sequence(1, 2), unaries, extra_scores)
        found = torch.autograd.grad(value, (unaries, ends))
        torch.testing.assert_close(found, (u.detach(), u[0].detach()))
        (second,) = torch.autograd.grad(u[0, 0], ends)
        torch.testing.assert_close(second, torch.tensor([1.0, -1.0]) * u[0].prod().detach())
        assert map_inference(Sequence(1, 2), unaries, extra_scores).codes.tolist() == [0]
        torch.testing.assert_close(
            sparsemap(Sequence(1, 2), unaries, (None, ends / 2, None)).marginals,
            torch.tensor([[0.75, 0.25]]),
        )
