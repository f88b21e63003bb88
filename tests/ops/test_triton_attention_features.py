"""The features of the fused attention kernels, alone and together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_case import (
    HALF,
    LISTS,
    SHORT_LISTS,
    WAYS,
    added_mask,
    boolean_mask,
    case,
    causal,
    dropout,
    intervals,
    param,
    rows,
    sinks,
    slopes,
    softcap,
    tiles,  # noqa: F401
)

from fenchel.ops.attention.triton import Plan, Tiles, attention

pytestmark = pytest.mark.usefixtures("tiles")

LISTED = [softcap, slopes, sinks, dropout, intervals]
"""What candidates can have; with a mask dense tiles are taken."""
FEATURES = [*LISTED, boolean_mask, added_mask]
PAIRS = [(a, b) for i, a in enumerate(FEATURES) for b in FEATURES[i:]]


@pytest.mark.parametrize(
    ("one", "other"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
def test_features_and_their_pairs(one: Any, other: Any) -> None:
    if {one, other} == {boolean_mask, added_mask}:
        return
    problem = case(h=1, t=18, s=21, d=8, e=8)
    for add in {one, other}:
        add(problem)
    problem.check(3e-6, 2e-5)


@pytest.mark.parametrize("lists", [param("lists"), param("short lists")])
@pytest.mark.parametrize("add", LISTED)
def test_features_of_lists(add: Any, lists: str) -> None:
    problem = case(h=1, t=18, s=21, d=8, e=8, way=WAYS[lists])
    add(problem)
    problem.check(3e-6, 2e-5)


@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_all_features_with_numbers_of_every_query(alpha: float) -> None:
    problem = case(h=4, g=2, t=5, s=21, d=24, e=40, alpha=alpha)
    for add in (softcap, slopes, sinks, added_mask, dropout, intervals):
        add(problem)
    problem.check(3e-6, 2e-5)
    problem.alpha, problem.gamma = rows(problem, alpha, alpha), rows(problem, 0.5, 2.0)
    problem.scale = rows(problem, 0.2, 0.5)
    problem.check(3e-6, 3e-5)


def test_dropout_does_not_depend_on_tiles() -> None:
    problem = case(t=33, s=40)
    dropout(problem)
    first, *_ = problem.run()
    problem.way = Tiles(32, 16, 4, 1)
    second, *_ = problem.run()
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lists", [LISTS, SHORT_LISTS], ids=["lists", "short lists"])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33])
def test_features_together_in_lists(alpha: float, lists: Plan) -> None:
    problem = causal(case(h=4, g=2, t=20, s=150, alpha=alpha, way=lists))
    for add in (slopes, sinks, dropout):
        add(problem)
    problem.check(5e-6, 2e-5)


def test_lists_in_half_precision() -> None:
    problem = causal(case(h=2, g=1, t=33, s=140, dtype=torch.bfloat16, way=LISTS))
    problem.check(1e-5, 8 * HALF[torch.bfloat16])


def test_far_scores_do_not_spoil_gradients_in_half_precision() -> None:
    problem = causal(case(h=2, g=1, t=33, s=140, dtype=torch.bfloat16, way=LISTS))
    problem.query *= 5
    problem.key += 1
    grad = torch.randn(1, 2, 33, 16).bfloat16()
    *_, found = problem.run_backward(grad, problem.run(), 2 + 4)
    given = problem.parameters()
    output, _ = problem.truth(given)
    wanted = torch.autograd.grad(output, given[4:6], grad.double())
    for got, want in zip(found[1:3], wanted, strict=True):  # of γ and of the scale
        error = (got.cpu().double() - want.squeeze(-1)).abs().max() / want.abs().max()
        assert error < 2**-7


def test_nothing_is_kept_without_a_backward_pass() -> None:
    problem = causal(case(h=2, g=1, t=33, s=140, way=LISTS))
    output, tau, _ = attention(*problem.arguments(), keep=False, way=LISTS)
    expected = problem.run()
    torch.testing.assert_close((output, tau), expected[:2], rtol=0, atol=0)
