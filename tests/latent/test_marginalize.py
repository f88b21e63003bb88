"""Exact expectations: values, gradients, and which pairs the loss function sees."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from enumerable import Categories, Configurations, gradients
from torch import Tensor

import exact
import fenchel
from conftest import identify
from fenchel import mappings, structures
from fenchel.latent import embed, estimators, marginalize

ON_SIMPLEX = {identify(m): m for m in mappings.examples() if m.total == 1.0}
STRUCTURES = {identify(s): s for s in structures.examples()}


@pytest.mark.parametrize("mapping", ON_SIMPLEX.values(), ids=ON_SIMPLEX.keys())
def test_expectation_of_any_mapping(mapping: mappings.AbstractMapping) -> None:
    model = Categories.random(scale=0.7)
    outcome = marginalize(model.scores, model.loss, mapping)
    p = mapping(model.scores)
    ground_truth = (p * model.table()).sum(-1)
    torch.testing.assert_close(outcome.value, ground_truth)
    torch.testing.assert_close(
        gradients(outcome.value, model.parameters), gradients(ground_truth, model.parameters)
    )
    assert outcome.calls.equal((p > 0).sum(-1))
    assert outcome.exact.all()
    torch.testing.assert_close(outcome.marginals, p)


def test_only_live_pairs_reach_the_loss_function_in_one_call() -> None:
    scores = torch.tensor([[5.0, 0.0, 0.0], [0.5, 0.4, -3.0], [0.0, 0.1, 3.0]])
    seen: list[list[tuple[int, int]]] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        assert item.dtype == z.dtype == torch.int64
        seen.append(list(zip(item.tolist(), z.tolist(), strict=True)))
        return z.float()

    marginalize(scores, loss)
    assert seen == [[(0, 0), (1, 0), (1, 1), (2, 2)]]


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_chunks_are_bounded_and_change_nothing(chunk: int) -> None:
    model = Categories.random()
    sizes: list[int] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        sizes.append(len(item))
        return model.loss(item, z)

    whole = marginalize(model.scores, model.loss, fenchel.Softmax())
    parts = marginalize(model.scores, loss, fenchel.Softmax(), chunk=chunk)
    torch.testing.assert_close(parts.value, whole.value)
    assert max(sizes) <= chunk
    assert sum(sizes) == 15


def test_second_derivatives() -> None:
    model = Categories.random()

    def value(scores: Tensor, weight: Tensor) -> Tensor:
        def loss(item: Tensor, z: Tensor) -> Tensor:
            return (weight[z] - model.x[item]).square().sum(-1)

        return marginalize(scores, loss, fenchel.Entmax(1.5)).value

    assert torch.autograd.gradcheck(value, model.parameters)
    assert torch.autograd.gradgradcheck(value, model.parameters)


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (1, 4)])
def test_batch_dimensions(shape: tuple[int, ...]) -> None:
    scores = torch.randn(shape)
    outcome = marginalize(scores, lambda item, z: item + z.float())
    assert outcome.value.shape == outcome.calls.shape == outcome.exact.shape == shape[:-1]
    assert outcome.entropy.shape == outcome.kl().shape == shape[:-1]
    assert outcome.marginals.shape == shape
    p = fenchel.sparsemax(scores)
    items = torch.arange(math.prod(shape[:-1])).reshape(shape[:-1])
    torch.testing.assert_close(outcome.value, items + (p * torch.arange(4.0)).sum(-1))


def test_masked_categories_are_never_seen() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 0.0], [-torch.inf] * 3], requires_grad=True)
    outcome = marginalize(scores, lambda item, z: 1.0 / (z - 1.0), fenchel.Softmax())
    assert outcome.value.tolist() == [0.0, 0.0]
    assert outcome.calls.tolist() == [2, 0]
    (outcome.value + outcome.entropy).sum().backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad[0], torch.tensor([-0.5, 0.0, 0.5]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    outcome = marginalize(scores, lambda item, z: z.float())
    assert outcome.value.dtype == torch.float32
    assert outcome.marginals.dtype == outcome.entropy.dtype == dtype
    outcome.value.sum().backward()


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_expectation_of_any_structure(structure: structures.AbstractStructure) -> None:
    scores = torch.randn(3, *structure.shape).double().requires_grad_()
    weight = torch.randn(structure.shape).double()

    def indicator(z: Tensor) -> Tensor:
        if not isinstance(structure, fenchel.Choice):
            return z
        return torch.nn.functional.one_hot(z, structure.d).double()

    def linear(item: Tensor, z: Tensor) -> Tensor:
        z = indicator(z)
        return (z * weight).flatten(1).sum(1) * (item + 1)

    outcome = marginalize(scores, linear, structure)
    posterior = fenchel.sparsemap(structure, scores)
    ground_truth = (posterior.marginals * weight).flatten(1).sum(1) * torch.arange(1, 4)
    torch.testing.assert_close(outcome.value, ground_truth)
    torch.testing.assert_close(
        *(torch.autograd.grad(v.sum(), scores) for v in (outcome.value, ground_truth))
    )
    assert outcome.calls.equal(posterior.support_size)
    torch.testing.assert_close(outcome.marginals, posterior.marginals)

    members = exact.members(structure).flatten(1)

    def member(item: Tensor, z: Tensor) -> Tensor:
        return (indicator(z).flatten(1).unsqueeze(1) == members).all(-1).any(-1).double()

    assert (marginalize(scores, member, structure).value - 1).abs().max() < 1e-9


def test_structured_gradients_by_differences() -> None:
    model = Configurations.random(bits=4)

    def value(scores: Tensor, weight: Tensor) -> Tensor:
        def loss(item: Tensor, z: Tensor) -> Tensor:
            return (z @ weight - model.x[item]).square().sum(-1)

        outcome = marginalize(scores, loss, fenchel.Budget(4, 2))
        return outcome.value + outcome.entropy

    assert torch.autograd.gradcheck(value, model.parameters)


def test_a_posterior_with_extra_scores_and_lengths() -> None:
    structure = fenchel.Sequence(3, 2)
    scores, transitions = torch.randn(2, 3, 2), torch.randn(2, 2)
    posterior = fenchel.sparsemap(structure, scores, transitions, lengths=[3, 2])

    def last_tag(item: Tensor, z: Tensor) -> Tensor:
        return z[torch.arange(len(z)), torch.tensor([2, 1])[item], 1]

    outcome = marginalize(posterior, last_tag)
    wanted = torch.stack([posterior.marginals[0, 2, 1], posterior.marginals[1, 1, 1]])
    torch.testing.assert_close(outcome.value, wanted)
    assert torch.isfinite(outcome.kl()).all()
    with pytest.raises(TypeError, match="`estimator` must be None where a `Posterior` is given"):
        marginalize(posterior, last_tag, fenchel.Sparsemax())


def test_entropy_and_kl_of_categories() -> None:
    scores, prior = torch.randn(3, 5).double(), torch.randn(5).double()
    outcome = marginalize(scores, lambda item, z: z.double(), fenchel.Entmax(1.5))
    p = fenchel.entmax(scores, alpha=1.5)
    torch.testing.assert_close(outcome.entropy, torch.special.entr(p).sum(-1))
    log_prior = prior.log_softmax(-1)
    torch.testing.assert_close(
        outcome.kl(prior), -torch.special.entr(p).sum(-1) - (p * log_prior).sum(-1)
    )


def test_kl_of_bits_and_of_a_budget_in_them() -> None:
    model = Configurations.random(items=3, bits=4)
    posterior = fenchel.sparsemap(fenchel.Budget(4, 2), model.scores)
    w = posterior.weights
    entropy = -(w * torch.where(w > 0, w, 1.0).log()).sum(-1)
    outcome = marginalize(posterior, model.loss)
    torch.testing.assert_close(outcome.entropy, entropy)
    torch.testing.assert_close(outcome.kl(), math.log(1 + 4 + 6) - entropy)
    torch.testing.assert_close(outcome.kl(structure=fenchel.Bits(4)), 4 * math.log(2) - entropy)
    prior = torch.randn(4).double()
    log_p = torch.where(posterior.codes > 0, prior.sigmoid(), (-prior).sigmoid()).log().sum(-1)
    torch.testing.assert_close(outcome.kl(prior, fenchel.Bits(4)), -entropy - (w * log_p).sum(-1))
    pairs = marginalize(torch.zeros(2, 2), lambda i, z: z.sum((1, 2)), fenchel.Matching(2, 2))
    with pytest.raises(NotImplementedError):
        pairs.kl(torch.zeros(2, 2))


def test_entropy_has_a_gradient_where_the_support_ends() -> None:
    scores = torch.tensor([3.0, 0.0, -1.0], requires_grad=True)
    marginalize(scores, lambda item, z: z.float()).entropy.backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0.0, 0.0, 0.0]


def test_embed_of_one_hot_rows_is_that_of_indices() -> None:
    weight, z = torch.randn(5, 3), torch.tensor([[4, 0], [2, 2]])
    one_hot = torch.nn.functional.one_hot(z, 5).float()
    torch.testing.assert_close(embed(z, weight), embed(one_hot, weight))
    torch.testing.assert_close(embed(z, weight), embed(one_hot.bool(), weight))
    torch.testing.assert_close(embed(z, weight), embed(one_hot.double(), weight))


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"estimator": 1.5}, TypeError, "`estimator` must be a mapping, a structure or"),
        (
            {"estimator": "hardmax"},
            ValueError,
            "the name of a mapping must be one of entmax",
        ),
        (
            {"estimator": fenchel.Ksubset(2)},
            ValueError,
            "`over` must sum to one .* Ksubset does not",
        ),
        ({"chunk": 0}, ValueError, "`chunk` must be at least 1, got 0"),
        ({"scores": [1.0]}, TypeError, "`scores` must be a torch.Tensor, got list"),
        ({"scores": torch.tensor(1.0)}, ValueError, "`scores` must have at least one dimension"),
        ({"loss_fn": lambda i, z: 1.0}, TypeError, "`loss_fn` must return a torch.Tensor, got fl"),
        ({"loss_fn": lambda i, z: z}, TypeError, "`loss_fn` must return floating-point values"),
        (
            {"loss_fn": lambda i, z: z.float().mean()},
            ValueError,
            r"`loss_fn` must return one value per pair, shape \(4,\); got \(\)",
        ),
    ],
)
def test_bad_input(kwargs: dict, error: type[Exception], text: str) -> None:
    given = {"scores": torch.zeros(2, 2), "loss_fn": lambda item, z: z.float(), **kwargs}
    with pytest.raises(error, match=text):
        marginalize(given.pop("scores"), given.pop("loss_fn"), **given)


def test_a_mapping_by_name() -> None:
    scores = torch.randn(3, 4)

    def loss(item: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return z.float()

    named = marginalize(scores, loss, "softmax").value
    torch.testing.assert_close(named, marginalize(scores, loss, fenchel.Softmax()).value)
    for kind in (estimators.Exact, estimators.TopK, estimators.SumAndSample):
        assert isinstance(kind("entmax").over, fenchel.Entmax)


def test_nan_stays_in_its_item() -> None:
    scores = torch.tensor([[1.0, torch.nan, 0.0], [1.0, 0.9, 0.0]])
    value = marginalize(scores, lambda item, z: z.float()).value
    assert value[0].isnan()
    torch.testing.assert_close(value[1], torch.tensor(0.45))


def test_what_a_mapping_learns_belongs_to_its_estimator() -> None:
    alpha = torch.nn.Parameter(torch.tensor(1.5))
    for kind in (estimators.Exact, estimators.TopK, estimators.ScoreFunction):
        estimator = kind(fenchel.Entmax(alpha))
        assert [parameter is alpha for parameter in estimator.parameters()] == [True]
        assert estimator.double().over.alpha.dtype == torch.float64
        assert not list(kind().parameters())
        estimator.float()


def test_options_are_checked_at_construction() -> None:
    with pytest.raises(ValueError, match="`temperature` must be greater than 0, got 0"):
        estimators.GumbelSoftmax(temperature=0)


def test_a_bad_prior() -> None:
    outcome = marginalize(torch.zeros(2, 3), lambda item, z: z.float())
    with pytest.raises(ValueError, match=r"`prior` must broadcast to the scores' shape \(2, 3\)"):
        outcome.kl(torch.zeros(4))


def test_the_default_is_sparsemax() -> None:
    assert isinstance(estimators.Exact().over, fenchel.Sparsemax)


def test_bits_of_different_lengths() -> None:
    scores = torch.tensor([[0.5, 0.5, 0.5], [0.5, 2.0, 2.0]])
    posterior = fenchel.sparsemap(fenchel.Bits(3), scores, lengths=[3, 1])
    outcome = marginalize(posterior, lambda item, z: z.sum(-1))
    torch.testing.assert_close(outcome.value, torch.tensor([1.5, 0.5]))


@pytest.mark.parametrize(
    "structure",
    [fenchel.Bits(4), fenchel.Budget(4, 2), fenchel.Sequence(2, 2), fenchel.DependencyTree(2)],
)
@pytest.mark.parametrize(
    "kind", [estimators.ScoreFunction, estimators.SumAndSample, estimators.Spigot]
)
def test_an_entropy_may_be_read_after_a_step(structure: Any, kind: Any) -> None:
    scores = torch.nn.Parameter(torch.linspace(-1, 1.5, 4).reshape(structure.shape))
    view = scores[None]

    def call(x: Tensor) -> Any:
        return marginalize(x, lambda item, z: z.flatten(1).sum(1) ** 2, kind(structure))

    for given in (scores, view):
        wanted = call(given.detach().clone()).entropy
        outcome = call(given)
        outcome.value.sum().backward(retain_graph=True)
        with torch.no_grad():
            scores += torch.randn_like(scores)
        torch.testing.assert_close(outcome.entropy, wanted)
        outcome.entropy.sum().backward()


def test_a_class_is_no_distribution() -> None:
    for kind in (estimators.ScoreFunction, estimators.GumbelSoftmax, estimators.Spigot):
        for given in (fenchel.Softmax, fenchel.Bits):
            with pytest.raises(TypeError, match=rf"got the class {given.__name__}\."):
                kind(given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`network` must be a torch.nn.Module, got int"):
        estimators.Learned(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("estimator", "shape"),
    [
        (fenchel.Sparsemax(), (3,)),
        (fenchel.Matching(2, 2), (2, 2)),
        (fenchel.Bits(3), (3,)),
        (estimators.TopK(k=2), (3,)),
        (estimators.TopK(fenchel.Bits(3)), (3,)),
    ],
    ids=str,
)
def test_an_expectation_is_pickled(estimator: Any, shape: tuple[int, ...]) -> None:
    scores = torch.randn(4, *shape, requires_grad=True)
    outcome = marginalize(scores, lambda item, z: z.float().reshape(len(z), -1).sum(1), estimator)
    copy = pickle.loads(pickle.dumps(outcome))
    for name in ("value", "marginals", "entropy", "calls", "exact"):
        assert getattr(copy, name).equal(getattr(outcome, name))
