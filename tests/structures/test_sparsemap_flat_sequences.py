"""SparseMAP of sequences with flat scores, found at once as a flow of few paths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Posterior, Sequence, map_inference, sparsemap
from fenchel.ops import _native

pytestmark = pytest.mark.skipif(_native.LIBRARY is None, reason="there is no native library")
STRUCTURE = Sequence(14, 7)
KINDS = ("shared", "pairs", "ends")
kinds = pytest.mark.parametrize("kind", KINDS)


def normal(*shape: int, scale: float = 0.01) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def problem(kind: str, structure: Sequence = STRUCTURE) -> tuple[Tensor, ...]:
    """Scores, and extra scores as one or three tensors."""
    n, m = structure.shape
    transitions = normal(n - 1, m, m) if kind == "pairs" else normal(m, m)
    ends = (normal(m), normal(m)) if kind == "ends" else ()
    return normal(n, m), transitions, *ends


def solve(scores: Tensor, *extra: Tensor, tol: float = 1e-6, **options: Any) -> Posterior:
    structure = Sequence(*scores.shape[-2:])
    extra_scores = extra[0] if len(extra) == 1 else extra
    return sparsemap(structure, scores, extra_scores, tol=tol, **options)


def extra_of(posterior: Posterior) -> tuple[Tensor, ...]:
    v = posterior.extra
    return v if isinstance(v, tuple) else (v,)


def is_at_once(posterior: Posterior) -> bool:
    return posterior._solution.extras is not None


def check(scores: Tensor, *extra: Tensor, tol: float = 1e-6) -> Posterior:
    """It is a distribution over sequences with these marginals, and its gap is right."""
    posterior = solve(scores, *extra, tol=tol)
    structure = Sequence(*scores.shape)
    weights, u, codes = posterior.weights, posterior.marginals, posterior.codes
    assert posterior.converged
    assert (weights > 0).all()
    assert abs(float(weights.sum()) - 1) <= 1e-12
    assert len(codes.unique(dim=0)) == len(codes)
    mean = torch.einsum("k,knm->nm", weights, structure.indicator(codes).double())
    torch.testing.assert_close(u, mean, atol=1e-12, rtol=0)
    v = extra_of(posterior)
    edges = torch.zeros(len(scores) - 1, scores.shape[1], scores.shape[1]).double()
    for code, weight in zip(codes, weights, strict=True):
        edges[torch.arange(len(edges)), code[:-1], code[1:]] += weight
    expected = edges if extra[0].ndim == 3 else edges.sum(0)
    torch.testing.assert_close(v[0], expected, atol=1e-12, rtol=0)
    left = torch.where(scores > -torch.inf, scores - u, -torch.inf)
    best = map_inference(structure, left, extra[0] if len(extra) == 1 else extra).value
    level = torch.where(u > 0, left * u, 0.0).sum()
    for given, marginal in zip(extra, v, strict=True):
        level = level + torch.where(marginal > 0, given * marginal, 0.0).sum()
    torch.testing.assert_close(posterior.gap, (best - level).clamp(min=0), atol=1e-10, rtol=0)
    return posterior


@kinds
@pytest.mark.parametrize("tol", [1e-6, 1e-9])
def test_is_optimal(kind: str, tol: float) -> None:
    for _ in range(4):
        assert is_at_once(check(*problem(kind), tol=tol))


def test_long_sequences_end() -> None:
    structure = Sequence(80, 20)
    posterior = check(*problem("shared", structure))
    assert is_at_once(posterior)
    assert posterior.iterations < 1000


@kinds
def test_ties(kind: str) -> None:
    scores, *extra = problem(kind)
    zeros = [torch.zeros_like(x) for x in extra]
    check(scores, *zeros)
    check(torch.zeros_like(scores), *extra)
    check(torch.zeros_like(scores), *zeros)
    check((100 * scores).round() / 100, *((100 * x).round() / 100 for x in extra))


@kinds
def test_forbidden_parts(kind: str) -> None:
    for share in (0.2, 0.6):
        scores, transitions, *ends = problem(kind)
        code: Any = map_inference(STRUCTURE, torch.randn_like(scores)).codes
        forbidden = torch.rand_like(scores) < share
        forbidden[torch.arange(len(scores)), code] = False
        blocked = torch.rand_like(transitions) < share
        pairs = torch.arange(len(code) - 1)
        blocked[(pairs, code[:-1], code[1:]) if kind == "pairs" else (code[:-1], code[1:])] = False
        posterior = check(
            scores.masked_fill(forbidden, -torch.inf),
            transitions.masked_fill(blocked, -torch.inf),
            *ends,
        )
        assert (posterior.marginals[forbidden] == 0).all()
        assert (extra_of(posterior)[0][blocked] == 0).all()


@kinds
def test_gradients(kind: str) -> None:
    """Of marginals of both kinds in scores of both kinds, against differences."""
    inputs = problem(kind)
    assert is_at_once(solve(*inputs))
    directions = [torch.randn_like(x) for x in inputs]
    step = 1e-7
    above, below = (
        solve(*(x + sign * step * d for x, d in zip(inputs, directions, strict=True)), tol=1e-9)
        for sign in (1, -1)
    )
    after, before = ((p.marginals, *extra_of(p)) for p in (above, below))
    slopes = [(a - b) / (2 * step) for a, b in zip(after, before, strict=True)]

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        posterior = solve(*inputs)
        return posterior.marginals, *extra_of(posterior)

    along: Any = torch.func.jvp(outputs, inputs, tuple(directions))[1]
    for slope, value in zip(slopes, along, strict=True):
        torch.testing.assert_close(value, slope, atol=1e-5, rtol=1e-5)
    leaves = tuple(x.clone().requires_grad_() for x in inputs)
    found = outputs(*leaves)
    vectors = [torch.randn_like(y) for y in found]
    gradients = torch.autograd.grad(found, leaves, vectors)
    left = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    right = sum(float((v * a).sum()) for v, a in zip(vectors, along, strict=True))
    assert abs(left - right) <= 1e-8 * (1 + abs(left))


def test_gradient_of_weights() -> None:
    """They are the best weights of these structures: D of the paper times their scores."""
    scores, transitions = (x.requires_grad_() for x in problem("shared"))
    posterior = solve(scores, transitions)
    assert is_at_once(posterior)
    rows = STRUCTURE.indicator(posterior.codes).flatten(1).double()
    edges: Any = STRUCTURE.extra_indicator(posterior.codes, transitions[None])
    edges = edges.flatten(1).double()
    inverse = torch.linalg.pinv(rows @ rows.T + 1, hermitian=True)
    ones = inverse.sum(1, keepdim=True)
    d = inverse - ones @ ones.T / ones.sum()
    values = torch.randn_like(posterior.weights)
    gradients = torch.autograd.grad(posterior.weights, (scores, transitions), values)
    torch.testing.assert_close(gradients[0].flatten(), rows.T @ d @ values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(gradients[1].flatten(), edges.T @ d @ values, atol=1e-6, rtol=1e-5)


def test_a_batch_of_all_kinds() -> None:
    scores, (transitions, start, end) = normal(4, 14, 7), problem("ends")[1:]
    scores[1] *= 100
    lengths = torch.tensor([14, 14, 10, 1])
    inputs = [x.requires_grad_() for x in (scores, transitions, start, end)]
    posterior = sparsemap(STRUCTURE, scores, (transitions, start, end), lengths=lengths)
    assert posterior.converged.all()
    value = (posterior.marginals**3).sum() + sum((v**3).sum() for v in posterior.extra)
    gradients = torch.autograd.grad(value, inputs)
    expected = [torch.zeros_like(x) for x in inputs]
    for b, length in enumerate(lengths.tolist()):
        leaves = [x.detach().requires_grad_() for x in (scores[b, :length], *inputs[1:])]
        structure = Sequence(length, 7)
        one = sparsemap(structure, leaves[0], tuple(leaves[1:]))
        torch.testing.assert_close(one.marginals, posterior.marginals[b, :length])
        part = (one.marginals**3).sum() + sum((v**3).sum() for v in one.extra)
        found = torch.autograd.grad(part, leaves, allow_unused=True)
        expected[0][b, :length] += found[0]
        for total, gradient in zip(expected[1:], found[1:], strict=True):
            total += 0 if gradient is None else gradient
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_float32_and_start() -> None:
    inputs = [x.float() for x in problem("shared")]
    posterior = solve(*inputs)
    assert posterior.marginals.dtype == torch.float32
    exact = solve(*(x.double() for x in inputs))
    assert posterior.marginals.equal(exact.marginals.float())
    again = solve(inputs[0] + normal(14, 7, scale=1e-4).float(), inputs[1], start=posterior)
    assert again.converged
