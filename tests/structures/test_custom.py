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
    sparsemap,
    structured_loss,
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
        parts = torch.where(self.members().bool(), scores.unsqueeze(1), 0.0)
        return parts.sum(-1).logsumexp(1)

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


def test_transforms_of_the_marginals_of_a_class() -> None:
    scores = torch.randn(2, 5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: marginals(Runs(5), x), scores)
    for transform in (torch.func.jacfwd, torch.func.jacrev):
        found = transform(lambda x: marginals(Runs(5), x))(scores)
        torch.testing.assert_close(found, jacobian)
    each = torch.func.vmap(lambda x: marginals(Runs(5), x))(scores)
    torch.testing.assert_close(each, marginals(Runs(5), scores))
    impossible = marginals(Runs(5), torch.tensor([[-torch.inf] * 5, [0.0] * 5]))
    assert impossible[0].eq(0).all()
    assert impossible[1].gt(0).all()


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
    with pytest.raises(TypeError, match=r"`oracle` must return a torch.Tensor, got list"):
        map_inference(Custom((3,), lambda scores: [1, 0, 0]), scores)


@pytest.mark.parametrize("batched", [False, True])
def test_scores_without_a_best_structure(batched: bool) -> None:
    def top(scores: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])

    inf, nan = torch.inf, torch.nan
    scores = torch.tensor(
        [[-inf, -inf, -inf], [nan, nan, nan], [-inf, nan, 1.0], [inf, 0.0, 0.0], [-inf, 0.0, 1.0]]
    )
    own = Custom((3,), top, batched)
    found, expected = (map_inference(s, scores) for s in (own, Choice(3)))
    for name in ("indicator", "value"):
        given = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(*given, rtol=0, atol=0, equal_nan=True)


def tagger(batched: bool) -> Custom:
    """Sequences of 4 positions and 3 tags, with transitions and lengths."""

    def best(scores: Tensor, transitions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        assert (scores[torch.arange(4) >= lengths.unsqueeze(1)] == -torch.inf).all()
        found = map_inference(Sequence(4, 3), scores, transitions.unsqueeze(1), lengths=lengths)
        return found.indicator, found.extra.squeeze(1)

    def best_of_one(scores: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
        found = map_inference(Sequence(len(scores), 3), scores, transitions)
        return found.indicator, found.extra

    oracle = best if batched else best_of_one
    return Custom((4, 3), oracle, batched, extra_shape=(3, 3), lengths_of_dims=(0,))


@pytest.mark.parametrize("lengths", [None, [4, 1, 2, 3, 4]])
@pytest.mark.parametrize("batched", [False, True])
def test_extra_scores_and_lengths(batched: bool, lengths: list[int] | None) -> None:
    own, sequences = tagger(batched), Sequence(4, 3)
    scores = torch.randn(5, 4, 3, dtype=torch.float64)
    if lengths is not None:
        scores[1, 1:] = torch.nan  # is ignored
    for shape in ((3, 3), (5, 3, 3)):
        transitions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        leaf = scores.clone().requires_grad_()
        found, expected = (
            map_inference(s, leaf, transitions, lengths=lengths) for s in (own, sequences)
        )
        assert found.indicator.equal(expected.indicator)
        assert found.extra.equal(expected.extra)
        torch.testing.assert_close(found.value, expected.value)
        solved = [
            sparsemap(s, leaf, transitions, lengths=lengths, tol=1e-12) for s in (own, sequences)
        ]
        torch.testing.assert_close(solved[0].marginals, solved[1].marginals)
        torch.testing.assert_close(solved[0].extra, solved[1].extra)
        v = torch.randn(5, 4, 3, dtype=torch.float64)
        grads = [torch.autograd.grad((p.marginals * v).sum(), (leaf, transitions)) for p in solved]
        torch.testing.assert_close(*grads)
        again = sparsemap(own, leaf, transitions, lengths=lengths, start=solved[0])
        assert (again.iterations == 1).all()
        other = sparsemap(own, leaf, lengths=lengths, start=solved[0], tol=1e-12)
        plain = sparsemap(sequences, leaf, lengths=lengths, tol=1e-12)
        torch.testing.assert_close(other.marginals, plain.marginals)
        with pytest.raises(ValueError, match="a result with extra scores of the same shape"):
            sparsemap(own, leaf, transitions, lengths=lengths, start=other)
        target = (expected.indicator, expected.extra.flip(0))
        losses = [
            structured_loss(s, leaf, target, transitions, lengths=lengths, kind=kind)
            for kind in ("perceptron", "sparsemap")
            for s in (own, sequences)
        ]
        torch.testing.assert_close(losses[::2], losses[1::2])
    without = [sparsemap(s, scores, lengths=lengths).marginals for s in (own, sequences)]
    torch.testing.assert_close(*without, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("structure", "lengths_of_dims", "lengths"),
    [
        (DependencyTree(4), (0, 0), [4, 1, 3]),
        (Matching(3, 4), (0, 1), [[3, 4], [1, 2], [2, 1]]),
        (Budget(5, 2), (0,), [2, 5, 3]),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_lengths_of_every_kind(
    structure: structures.AbstractStructure, lengths_of_dims: tuple, lengths: list, batched: bool
) -> None:
    def best(scores: Tensor, sizes: Tensor) -> Tensor:
        return map_inference(structure, scores, lengths=sizes).indicator

    def best_of_one(scores: Tensor) -> Tensor:
        if isinstance(structure, Budget):
            return map_inference(Budget(len(scores), min(2, len(scores))), scores).indicator
        sizes = scores.shape if isinstance(structure, Matching) else scores.shape[:1]
        return map_inference(type(structure)(*sizes), scores).indicator  # type: ignore[call-arg]

    oracle = best if batched else best_of_one
    own = Custom(structure.shape, oracle, batched, lengths_of_dims=lengths_of_dims)
    assert own.max_lengths == structure.max_lengths
    scores = torch.randn(3, *structure.shape)
    found, expected = (map_inference(s, scores, lengths=lengths) for s in (own, structure))
    assert found.indicator.equal(expected.indicator)
    u, v = (sparsemap(s, scores, lengths=lengths, tol=1e-9).marginals for s in (own, structure))
    torch.testing.assert_close(u, v, rtol=0, atol=1e-5)


def test_oracles_that_return_something_else_than_was_asked() -> None:
    scores, extra = torch.zeros(2, 3), torch.zeros(2)
    lengths = [3, 2]
    for batched in (False, True):
        alone = Custom((3,), lambda s, e: s, batched, extra_shape=(2,))
        with pytest.raises(TypeError, match="must return a pair where there are extra scores"):
            map_inference(alone, scores, extra)
        other = Custom((3,), lambda s, e: (s, e[..., :1]), batched, extra_shape=(2,))
        with pytest.raises(ValueError, match="indicators of the extra scores' shape"):
            sparsemap(other, scores, extra)
        infinite = Custom((3,), lambda s, e: (s, e / 0), batched, extra_shape=(2,))
        with pytest.raises(ValueError, match="must return finite indicators"):
            sparsemap(infinite, scores, extra)
    beyond = Custom((3,), lambda s, n: torch.ones_like(s), True, lengths_of_dims=(0,))
    with pytest.raises(ValueError, match="zero behind the end of each instance"):
        map_inference(beyond, scores, lengths=lengths)
    with pytest.raises(ValueError, match=r"`extra_scores` must have shape \(..., 2\)"):
        map_inference(alone, scores, torch.zeros(3))
    cropped = Custom((3,), lambda s: torch.ones(3), lengths_of_dims=(0,))
    with pytest.raises(ValueError, match=r"of the scores' shape \(2,\), got \(3,\)"):
        map_inference(cropped, scores, lengths=lengths)


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
        (
            lambda: Custom((3,), len, extra_shape=3),
            TypeError,
            "`extra_shape` must be a tuple, got int",
        ),
        (
            lambda: Custom((3,), len, extra_shape=(0,)),
            ValueError,
            "`extra_shape` must be at least 1, got 0",
        ),
        (
            lambda: Custom((3,), len, lengths_of_dims=0),
            TypeError,
            "`lengths_of_dims` must be a tuple, got int",
        ),
        (
            lambda: Custom((3,), len, lengths_of_dims=(1,)),
            ValueError,
            r"`lengths_of_dims` must number lengths from 0, .* got \(1,\)",
        ),
        (
            lambda: Custom((3,), len, lengths_of_dims=(0, 1)),
            ValueError,
            r"at most as many dimensions as `shape` has, 1; got \(0, 1\)",
        ),
        (
            lambda: Custom((3, 4), len, lengths_of_dims=(0, 0)),
            ValueError,
            r"must bound dimensions of one size by the same length, got \(0, 0\) for .* \(3, 4\)",
        ),
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
