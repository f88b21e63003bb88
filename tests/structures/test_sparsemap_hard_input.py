"""SparseMAP of what is forbidden, impossible, huge or wrong: a right answer or a clear error."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import Budget, Choice, Custom, DependencyTree, Matching, Sequence, sparsemap
from fenchel.structures import AbstractStructure


def test_forbidden_parts() -> None:
    structure = Sequence(3, 3)
    scores, transitions = torch.randn(4, 3, 3).double(), torch.randn(3, 3).double()
    scores[0, 1, 2] = -torch.inf
    scores[1, 1] = -torch.inf
    scores[2, 0, 0] = torch.nan
    scores.requires_grad_()
    posterior = sparsemap(structure, scores, transitions)
    assert posterior.marginals[0, 1, 2] == 0
    assert (posterior.marginals[1] == 0).all()
    assert posterior.support_size[1] == 0
    assert posterior.marginals[2].isnan().all()
    assert not posterior.converged[2]
    posterior.marginals[0].square().sum().backward()
    assert scores.grad.isfinite().all()
    forbidden_parts = transitions.clone()
    forbidden_parts[0, 1] = -torch.inf
    found = sparsemap(structure, scores.detach()[3:], forbidden_parts)
    codes = found.codes[found.weights > 0]
    assert not ((codes[:, :-1] == 0) & (codes[:, 1:] == 1)).any()


def test_bad_input() -> None:
    scores = torch.randn(3, 3)
    with pytest.raises(TypeError, match="`structure` must be a structure"):
        sparsemap("tree", scores)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`method` must be one of active_set, frank_wolfe"):
        sparsemap(Matching(3, 3), scores, method="simplex")
    with pytest.raises(ValueError, match="`tol` must be at least 0"):
        sparsemap(Matching(3, 3), scores, tol=-1.0)
    with pytest.raises(ValueError, match="`max_iter` must be at least 1"):
        sparsemap(Matching(3, 3), scores, max_iter=0)
    with pytest.raises(ValueError, match="`scores` must have shape"):
        sparsemap(Matching(3, 4), scores)


def test_large_scores_lose_nothing() -> None:
    structure = Matching(5, 5)
    scores = torch.randn(10, *structure.shape, dtype=torch.float64)
    plain = sparsemap(structure, scores, tol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = sparsemap(structure, 1e6 + scores)
        huge = sparsemap(structure, 1e6 * scores)
    torch.testing.assert_close(far.marginals, plain.marginals, rtol=0, atol=1e-4)
    assert far.converged.all()
    assert (huge.support_size == 1).all()


@pytest.mark.parametrize(
    ("structure", "impossible"),
    [(Choice(3), 3), (Budget(3, 2, exact=True), 2), (Sequence(2, 3), 3), (Matching(2, 2), 2)],
)
def test_an_instance_without_structures_has_no_support(
    structure: AbstractStructure, impossible: int
) -> None:
    scores = torch.zeros(3, *structure.shape, dtype=torch.float64)
    scores[0].view(-1)[:impossible] = -torch.inf
    scores[1].view(-1)[0] = torch.nan
    posterior = sparsemap(structure, scores)
    assert posterior.support_size[:2].tolist() == [0, 0]
    assert (posterior.weights[:2] == 0).all()
    assert (posterior.codes[:2] == -1).all()
    assert (posterior.marginals[0] == 0).all()
    assert posterior.marginals[1].isnan().all()
    assert posterior.converged.tolist() == [True, False, True]


def test_sums_without_room_in_a_double() -> None:
    for structure in (Sequence(4, 3), DependencyTree(4), Matching(4, 4), Budget(5, 2)):
        scores = torch.randn(3, *structure.shape, dtype=torch.float64)
        scores[0] = 1e308
        lowest = torch.finfo(torch.float64).min
        forbidden_parts = torch.rand(structure.shape) < 0.3
        scores[1][forbidden_parts] = lowest
        clean = scores.clone()
        clean[1][forbidden_parts] = -torch.inf
        posterior = sparsemap(structure, scores)
        assert posterior.marginals[0].isnan().all()
        assert not posterior.converged[0]
        assert posterior.marginals[1:].equal(sparsemap(structure, clean).marginals[1:])
        assert fenchel.map_inference(structure, scores).value[0].isnan()


def test_start_must_be_a_posterior() -> None:
    with pytest.raises(TypeError, match="`start` must be a Posterior that sparsemap returned, got"):
        sparsemap(Matching(2, 2), torch.zeros(2, 2), start="before")  # type: ignore[arg-type]


def test_an_oracle_that_is_wrong() -> None:
    scores = torch.tensor([1.0, 0.9, 0.8], dtype=torch.float64)
    rows = iter(torch.eye(3, dtype=torch.float64)[[0, 2]])  # 2, then 0 where 1 is to be had
    moody = Custom((3,), lambda x: next(rows))
    with pytest.raises(ValueError, match="must return the best structure; it returned one whose"):
        sparsemap(moody, torch.tensor([2.0, 1.5, 0.0], dtype=torch.float64))
    for value in (torch.nan, torch.inf):
        broken = Custom((3,), lambda x, value=value: torch.full_like(x, value))
        for function in (fenchel.map_inference, sparsemap):
            with pytest.raises(ValueError, match="`oracle` must return finite indicators; for"):
                function(broken, scores)
    with pytest.raises(ZeroDivisionError):
        sparsemap(Custom((3,), lambda x: x / (1 // 0)), scores)

    def in_place(x: Tensor) -> Tensor:
        best = x.argmax(-1)
        return x.zero_().index_fill_(-1, best, 1.0)

    for batched in (False, True):
        kept = scores.expand(1, 3).clone() if batched else scores.clone()
        function = (lambda x: torch.stack([in_place(r) for r in x])) if batched else in_place
        found = sparsemap(Custom((3,), function, batched=batched), kept, tol=1e-12)
        assert kept.flatten().equal(scores)
        torch.testing.assert_close(found.marginals, fenchel.sparsemax(kept))


def test_structures_that_differ_little() -> None:
    for trial in range(60):
        near = 10.0 ** -(4 + trial % 8)
        table = torch.randint(0, 3, (3, 4)).double().repeat(2, 1)
        table[3:] += near * torch.randn(3, 4).double()

        def best(scores: Tensor, table: Tensor = table) -> Tensor:
            return table[(table @ scores).argmax()]

        weights = torch.rand(6).double() * (torch.rand(6) < 0.6)
        scores = weights / weights.sum().clamp(min=1e-9) @ table + near * torch.randn(4).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fenchel.ConvergenceWarning)
            u = sparsemap(Custom((4,), best), scores, tol=0.0).marginals
        assert (table @ (scores - u)).max() - (scores - u) @ u <= 1e-9


def test_an_oracle_that_breaks_later() -> None:
    def breaks(answer: object) -> Custom:
        calls = []

        def best(scores: Tensor) -> object:
            calls.append(scores)
            return torch.nn.functional.one_hot(scores.argmax(-1), 3) if len(calls) < 3 else answer

        return Custom((3,), best, batched=True)  # type: ignore[arg-type]

    scores = torch.tensor([[1.0, 0.9, 0.8]] * 2)
    with pytest.raises(ValueError, match=r"of the scores' shape \(2, 3\), got \(3,\)"):
        sparsemap(breaks(torch.zeros(3)), scores)
    with pytest.raises(TypeError, match=r"`oracle` must return a torch.Tensor, got NoneType"):
        sparsemap(breaks(None), scores)
    with pytest.raises(ValueError, match="`oracle` must return finite indicators"):
        sparsemap(breaks(torch.full((2, 3), torch.nan)), scores)
    with pytest.raises(ValueError, match="must return the best structure; it returned one whose"):
        sparsemap(breaks(torch.tensor([[0, 0, 0]] * 2)), scores)


def test_an_oracle_that_guesses_ends() -> None:
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)

        def guess(scores: Tensor, generator: torch.Generator = generator) -> Tensor:
            return torch.randint(0, 2, scores.shape, generator=generator)

        structure = Custom((6,), guess, batched=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fenchel.ConvergenceWarning)
            with contextlib.suppress(ValueError):  # where it is found out
                found = sparsemap(structure, torch.randn(3, 6), max_iter=20)
                assert (found.iterations <= 20).all()
                assert (found.converged == (found.gap <= 1e-6)).all()
