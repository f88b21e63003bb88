"""Structures of one's own, and what is checked of every structure's input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fenchel import (
    Bits,
    Budget,
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
from fenchel.structures import _base


class Runs(structures.AbstractStructure):
    """One run of ones among d entries, not empty."""

    def __init__(self, d: int) -> None:
        self.d = d

    name = "runs"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    def members(self) -> Tensor:
        rows = [
            [float(first <= i <= last) for i in range(self.d)]
            for first in range(self.d)
            for last in range(first, self.d)
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def argmax(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        members = self.members().to(scores)
        return members[(scores @ members.T).argmax(1)]

    def log_partition(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        return (scores @ self.members().to(scores).T).logsumexp(1)

    @classmethod
    def examples(cls) -> Iterator[structures.AbstractStructure]:
        yield cls(3)


_base.REGISTRY.classes.pop("runs")  # other tests run over the registry


def test_a_class_needs_only_its_best_structure_and_log_partition() -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    best = map_inference(Runs(5), scores)
    assert best.indicator.shape == scores.shape
    assert best.codes is None
    (grad,) = torch.autograd.grad(best.value.sum(), scores)
    torch.testing.assert_close(grad, best.indicator)
    u = marginals(Runs(5), scores)
    (grad,) = torch.autograd.grad(log_partition(Runs(5), scores).sum(), scores)
    torch.testing.assert_close(u, grad)
    assert torch.autograd.gradcheck(lambda x: marginals(Runs(5), x), scores)
    with torch.no_grad():
        assert not marginals(Runs(5), scores).requires_grad


def test_a_function_for_one_instance_or_for_all() -> None:
    def top(scores: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])

    scores = torch.randn(4, 3)
    expected = map_inference(Choice(3), scores)
    for batched in (False, True):
        found = map_inference(Custom((3,), top, batched=batched), scores)
        torch.testing.assert_close(found.indicator, expected.indicator)
        torch.testing.assert_close(found.value, expected.value)
    with pytest.raises(
        ValueError, match=r"must return indicators of the scores' shape \(3,\), got \(\)"
    ):
        map_inference(Custom((3,), lambda scores: scores.sum()), scores)
    with pytest.raises(TypeError, match=r"`argmax` must return a torch.Tensor, got list"):
        map_inference(Custom((3,), lambda scores: [1, 0, 0]), scores)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Sequence(0, 3), ValueError, "`length` must be at least 1, got 0"),
        (lambda: Sequence(2, 1.5), TypeError, "`tags` must be an int, got float"),
        (lambda: DependencyTree(True), TypeError, "`n` must be an int, got bool"),
        (lambda: Matching(2, -1), ValueError, "`columns` must be at least 1, got -1"),
        (lambda: Bits(0), ValueError, "`d` must be at least 1, got 0"),
        (lambda: Choice(0), ValueError, "`d` must be at least 1, got 0"),
        (lambda: Budget(3, 4), ValueError, "`k` must be at most d = 3, got 4"),
        (lambda: Budget(3, -1), ValueError, "`k` must be at least 0, got -1"),
        (lambda: Custom([3], len), TypeError, "`shape` must be a tuple, got list"),
        (lambda: Custom((3,), 3), TypeError, "`oracle` must be a function, got int"),
    ],
)
def test_options(build, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: map_inference("tree", s), TypeError, "`structure` must be a structure, such as"),
        (lambda s: map_inference(Bits(3), [0.0]), TypeError, "`scores` must be a torch.Tensor"),
        (
            lambda s: map_inference(Bits(3), s),
            ValueError,
            r"must have shape \(..., 3\), got \(2, 4\)",
        ),
        (lambda s: map_inference(Bits(4), s.long()), TypeError, "`scores` must be bfloat16"),
        (
            lambda s: map_inference(Bits(4), s, s),
            ValueError,
            "`extra_scores` must be None for bits",
        ),
        (lambda s: map_inference(Bits(4), s, lengths=[1, 5]), ValueError, "between 1 and 4, got 5"),
        (lambda s: map_inference(Bits(4), s, lengths=[0, 4]), ValueError, "between 1 and 4, got 0"),
        (lambda s: map_inference(Bits(4), s, lengths=[3]), ValueError, r"shape \(2,\), got \(1,\)"),
        (lambda s: map_inference(Bits(4), s, lengths=[1.0, 2.0]), TypeError, "must hold integers"),
        (
            lambda s: map_inference(Bits(4), s, lengths=[1, 2], mask=s > 0),
            ValueError,
            "give `lengths` or `mask`, not both",
        ),
        (
            lambda s: map_inference(Bits(4), s, mask=s),
            TypeError,
            "boolean torch.Tensor, got torch.float",
        ),
        (
            lambda s: map_inference(Bits(4), s, mask=s[0] > 0),
            ValueError,
            r"`mask` must have shape \(2, 4",
        ),
        (
            lambda s: map_inference(Bits(4), s, mask=torch.tensor([[True, False, True, True]] * 2)),
            ValueError,
            "`mask` must be true on the first positions of each instance",
        ),
        (
            lambda s: map_inference(Matching(2, 4), s, mask=s > 0),
            ValueError,
            "`mask` must be None for this structure; give `lengths`",
        ),
        (
            lambda s: map_inference(Custom((4,), torch.zeros_like), s, lengths=[1, 2]),
            ValueError,
            "`lengths` and `mask` must be None for this structure",
        ),
    ],
)
def test_input(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.zeros(2, 4))
