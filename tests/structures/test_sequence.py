"""Transitions, first and last tags of sequences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import fenchel
from fenchel import (
    Sequence,
    log_partition,
    map_inference,
    marginals,
    sparsemap,
    structured_loss,
)


def values(unaries: Tensor, transitions: Tensor, start: Tensor, end: Tensor) -> dict:
    """The score of every sequence of one instance, with transitions of each pair."""
    n, m = unaries.shape
    found = {}
    for tags in itertools.product(range(m), repeat=n):
        total = unaries[range(n), list(tags)].sum() + start[tags[0]] + end[tags[-1]]
        for i in range(n - 1):
            total = total + transitions[i, tags[i], tags[i + 1]]
        found[tags] = total
    return found


def gradients(values: Tensor, inputs: tuple, create_graph: bool = False) -> tuple:
    """The gradients of a sum, zero in what it does not depend on."""
    return torch.autograd.grad(
        values.sum(), inputs, create_graph=create_graph, materialize_grads=True
    )


@pytest.mark.parametrize(("n", "m"), [(1, 3), (2, 2), (4, 3), (3, 9)])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_extra_scores(n: int, m: int, shared: bool, scale: float) -> None:
    def draw(*shape: int) -> Tensor:
        return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()

    unaries, start, end = draw(n, m), draw(m), draw(m)
    transitions = draw(m, m) if shared else draw(n - 1, m, m)
    structure, extra_scores = Sequence(n, m), (transitions, start, end)
    pairs = transitions.expand(n - 1, m, m) if shared else transitions
    every = values(unaries, pairs, start, end)
    scores = torch.stack(list(every.values()))

    best = map_inference(structure, unaries, extra_scores)
    assert tuple(best.codes.tolist()) == max(every, key=lambda tags: every[tags].item())
    torch.testing.assert_close(best.value, scores.max())
    pieces = (best.indicator, *best.extra)
    inputs = (unaries, transitions, start, end)
    for grad, piece in zip(gradients(best.value, inputs), pieces, strict=True):
        torch.testing.assert_close(piece, grad)

    ground_truth = scores.logsumexp(0)
    expected = gradients(ground_truth, inputs, create_graph=True)
    torch.testing.assert_close(log_partition(structure, unaries, extra_scores), ground_truth)
    u, v = marginals(structure, unaries, extra_scores)
    for found, right in zip((u, *v), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-10)
    weights = [torch.randn_like(piece) for piece in inputs]
    seconds = [
        gradients(
            torch.stack([(piece * w).sum() for piece, w in zip(results, weights, strict=True)]),
            inputs,
        )
        for results in ((u, *v), expected)
    ]
    for found, right in zip(*seconds, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_derivatives(shared: bool) -> None:
    unaries = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    shape = (2, 2) if shared else (2, 2, 2, 2)
    transitions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for function in (log_partition, marginals):

        def solve(x: Tensor, t: Tensor, f: object = function) -> object:
            return f(Sequence(3, 2), x, t)  # type: ignore[operator]

        assert torch.autograd.gradcheck(solve, (unaries, transitions))
        assert torch.autograd.gradgradcheck(solve, (unaries, transitions))


def test_transitions_of_one_or_of_each_instance() -> None:
    n, m = 4, 3
    unaries = torch.randn(2, 5, n, m, dtype=torch.float64)
    structure = Sequence(n, m)
    for shape in (
        (m, m),
        (5, m, m),
        (2, 1, m, m),
        (2, 5, m, m),
        (n - 1, m, m),
        (2, 5, n - 1, m, m),
        (1, m, m),
        (5, 1, m, m),
        (2, 5, 1, m, m),
    ):
        transitions = torch.randn(shape, dtype=torch.float64)
        u, v = marginals(structure, unaries, transitions)
        per_pair = shape[-3] in (1, n - 1) and shape != (2, 1, m, m) if len(shape) > 2 else False
        full = transitions.expand(2, 5, *shape[-3 if per_pair else -2 :])
        assert v.shape == full.shape
        best = map_inference(structure, unaries, transitions)
        for i, j in itertools.product(range(2), range(5)):
            one, pairs = marginals(structure, unaries[i, j], full[i, j])
            torch.testing.assert_close(u[i, j], one)
            torch.testing.assert_close(v[i, j], pairs)
            single = map_inference(structure, unaries[i, j], full[i, j])
            assert best.codes[i, j].equal(single.codes)
            torch.testing.assert_close(best.extra[i, j], single.extra)


def test_the_last_tag_of_a_shorter_sequence() -> None:
    unaries = torch.randn(3, 4, 2, dtype=torch.float64)
    end = torch.tensor([0.0, 5.0], dtype=torch.float64)
    lengths = torch.tensor([1, 3, 4])
    u, (_, start, last) = marginals(
        Sequence(4, 2), unaries, (torch.eye(2).double(), end, end), lengths=lengths
    )
    for k, n in enumerate(lengths.tolist()):
        one, pieces = marginals(Sequence(n, 2), unaries[k, :n], (torch.eye(2).double(), end, end))
        torch.testing.assert_close(u[k, :n], one)
        torch.testing.assert_close(start[k], pieces[1])
        torch.testing.assert_close(last[k], pieces[2])


def test_what_was_not_given_is_not_returned() -> None:
    unaries, end = torch.zeros(3, 2), torch.tensor([0.0, 1.0])
    u, (transitions, start, last) = marginals(Sequence(3, 2), unaries, (None, None, end))
    assert transitions is None
    assert start is None
    torch.testing.assert_close(last, end.softmax(0))
    torch.testing.assert_close(u[-1], last)
    assert map_inference(Sequence(3, 2), unaries).extra is None


def test_forbidden_transitions() -> None:
    transitions = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]], requires_grad=True)
    unaries = torch.zeros(3, 2, requires_grad=True)
    value = log_partition(Sequence(3, 2), unaries, transitions)
    torch.testing.assert_close(value, torch.tensor(4.0).log())
    (u, v) = torch.autograd.grad(value, (unaries, transitions))
    assert v[0, 1] == 0
    torch.testing.assert_close(u[0], torch.tensor([0.25, 0.75]))
    start = torch.tensor([0.0, -torch.inf])
    blocked = torch.tensor([[-torch.inf, -torch.inf], [0.0, 0.0]])
    assert log_partition(Sequence(3, 2), unaries, (blocked, start, None)) == -torch.inf
    best = map_inference(Sequence(3, 2), unaries, (blocked, start, None))
    assert best.value == -torch.inf
    assert (best.codes == -1).all()


def test_as_many_instances_as_pairs() -> None:
    unaries, transitions = torch.randn(3, 4, 2).double(), torch.randn(3, 2, 2).double()
    structure = Sequence(4, 2)
    either = (
        r"`transitions` of shape \(3, 2, 2\) can be one for each instance, or one for each "
        r"position; say which by all dimensions, \(3, 1, 2, 2\) or \(1, 3, 2, 2\)"
    )
    for function in (map_inference, log_partition, marginals, sparsemap):
        with pytest.raises(ValueError, match=either):
            function(structure, unaries, transitions)
    u, v = marginals(structure, unaries, transitions.unsqueeze(1))
    assert v.shape == (3, 1, 2, 2)
    per_pair, pairs = marginals(structure, unaries, transitions.unsqueeze(0))
    assert pairs.shape == (3, 3, 2, 2)
    for k in range(3):
        torch.testing.assert_close(u[k], marginals(structure, unaries[k], transitions[k])[0])
        torch.testing.assert_close(per_pair[k], marginals(structure, unaries[k], transitions)[0])
    with pytest.raises(ValueError, match=r"dimensions, \(2, 1, 1, 2, 2\) or \(1, 2, 1, 2, 2"):
        marginals(structure, torch.zeros(2, 2, 4, 2), torch.zeros(2, 1, 2, 2))


def test_a_single_matrix_of_transitions_in_every_form() -> None:
    matrix = torch.randn(2, 2, dtype=torch.float64)
    for n in (1, 2, 4):
        structure, unaries = Sequence(n, 2), torch.randn(3, n, 2, dtype=torch.float64)
        for count in (0, 1, 3):
            expected = marginals(structure, unaries[:count], matrix)
            for shape, own in (
                ((2, 2), (2, 2)),
                ((1, 2, 2), (2, 2)),
                ((1, 1, 2, 2), (1, 2, 2)),
            ):
                given = matrix.reshape(shape)
                u, v = marginals(structure, unaries[:count], given)
                assert v.shape == (count, *own)
                torch.testing.assert_close(u, expected[0])
                torch.testing.assert_close(v.reshape(expected[1].shape), expected[1])
                posterior = sparsemap(structure, unaries[:count], given)
                assert posterior.extra.shape == v.shape
        assert marginals(structure, unaries[0], matrix.unsqueeze(0))[1].shape == (1, 2, 2)


def test_a_target_for_transitions_has_their_form() -> None:
    unaries, transitions = torch.randn(3, 4, 2).double(), torch.randn(3, 1, 2, 2).double()
    structure, codes = Sequence(4, 2), torch.randint(2, (3, 4))
    y = structure.indicator(codes)
    z = structure.extra_indicator(codes, transitions[:, 0])
    assert z is not None
    loss = structured_loss(structure, unaries, (y, z.unsqueeze(1)), transitions, kind="crf")
    torch.testing.assert_close(
        loss, structured_loss(structure, unaries, codes, transitions, kind="crf")
    )
    with pytest.raises(ValueError, match=r"have shape \(3, 1, 2, 2\) for the extra scores"):
        structured_loss(structure, unaries, (y, z), transitions, kind="crf")


def test_shapes_that_do_not_fit() -> None:
    unaries = torch.zeros(3, 4, 2)
    with pytest.raises(
        ValueError,
        match=r"must have shape \(..., 2, 2\) or \(..., 3, 2, 2\) or \(..., 1, 2, 2\)",
    ):
        marginals(Sequence(4, 2), unaries, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"`end` must have shape \(..., 2\), where ... broadcasts"):
        marginals(Sequence(4, 2), unaries, (None, None, torch.zeros(3)))
    with pytest.raises(
        ValueError, match=r"a tuple \(transitions, start, end\), some of them None; got 2"
    ):
        marginals(Sequence(4, 2), unaries, (None, None))
    with pytest.raises(TypeError, match="`start` must have the type and device of `scores`"):
        marginals(Sequence(4, 2), unaries, (None, torch.zeros(2).double(), None))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_one_position_has_no_transitions(batch: tuple[int, ...]) -> None:
    structure, m = Sequence(1, 3), 3
    scores, start = torch.randn(*batch, 1, m), torch.randn(m)
    for shape in ((0, m, m), (*batch, 0, m, m), (m, m)):
        none = torch.zeros(shape)
        for ends in ((None, None), (start, None)):
            moved = scores if ends[0] is None else scores + start
            extra_scores = (none, *ends)
            u, (v, *_) = marginals(structure, scores, extra_scores)
            torch.testing.assert_close(u, moved.softmax(-1))
            assert v.shape == (*batch, *shape[-2 if shape == (m, m) else -3 :])
            assert (v == 0).all()
            best = map_inference(structure, scores, extra_scores)
            assert best.codes.equal(moved.argmax(-1))
            for regularize in (False, True):
                posterior = sparsemap(structure, scores, extra_scores, regularize_extra=regularize)
                torch.testing.assert_close(posterior.marginals, fenchel.sparsemax(moved))
                assert posterior.extra[0].numel() in (0, v.numel())
            for kind in ("perceptron", "svm", "crf", "margin_crf", "sparsemap", "margin_sparsemap"):
                for target in (best.codes, best, (best.indicator, v)):
                    loss = structured_loss(structure, scores, target, extra_scores, kind=kind)
                    assert loss >= -1e-6


@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [None, (3, 3), (3, 3, 3), (2, 3, 3, 3)])
def test_fractional_targets_with_first_and_last_tags(
    shape: tuple[int, ...] | None, ends: tuple[bool, bool]
) -> None:
    structure, lengths = Sequence(4, 3), torch.tensor([4, 2])
    draw = [None if there is None else torch.randn(there) for there in (shape, (3,), (2, 3))]
    kept = (True, *ends)
    extra_scores = tuple(x if there else None for x, there in zip(draw, kept, strict=True))
    scores = torch.randn(2, 4, 3)
    posterior = sparsemap(structure, scores, extra_scores, lengths=lengths, tol=1e-9)
    y, z = posterior.marginals, posterior.extra[0]
    target = y if z is None else (y, z)
    loss = structured_loss(structure, scores, target, extra_scores, lengths=lengths)
    torch.testing.assert_close(loss, torch.zeros(()), rtol=0, atol=1e-5)


def test_extra_scores_that_are_not_given_are_zero() -> None:
    structure, scores = Sequence(4, 3), torch.randn(2, 4, 3, dtype=torch.float64)
    expected = map_inference(structure, scores)
    torch.testing.assert_close(structure.argmax(scores), expected.indicator)
    torch.testing.assert_close(structure.log_partition(scores), log_partition(structure, scores))
    u, v = structure.marginals(scores)
    torch.testing.assert_close(u, marginals(structure, scores))
    assert v is None
