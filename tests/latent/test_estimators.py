"""Estimators by samples: unbiased where they say so, detached where they must be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from enumerable import Categories, Configurations
from torch import Tensor, nn

import fenchel
from fenchel.latent import estimators, gradient_variance, marginalize
from fenchel.latent.estimators import (
    GumbelSoftmax,
    Learned,
    MovingAverage,
    ScoreFunction,
    SelfCritic,
    StraightThrough,
    SumAndSample,
)

MANY = 20_000
SIGMAS = 5.0


def network(features: int) -> nn.Module:
    return nn.Linear(features, 1).double()


CATEGORICAL: dict[str, Callable[[], estimators.AbstractEstimator]] = {
    "none": lambda: ScoreFunction(),
    "moving average": lambda: ScoreFunction(baseline=MovingAverage(0.5)),
    "self-critic": lambda: ScoreFunction(baseline=SelfCritic()),
    "learned": lambda: ScoreFunction(baseline=Learned(network(5))),
    "three samples": lambda: ScoreFunction(baseline=SelfCritic(), samples=3),
    "entmax": lambda: ScoreFunction(fenchel.Entmax(1.5)),
    "sum and sample": lambda: SumAndSample(),
    "sum three": lambda: SumAndSample(k=3),
    "sum all": lambda: SumAndSample(k=9),
    "sum of entmax": lambda: SumAndSample(fenchel.Entmax(1.5), k=2),
}
BITS: dict[str, Callable[[], estimators.AbstractEstimator]] = {
    "none": lambda: ScoreFunction(fenchel.Bits(3)),
    "moving average": lambda: ScoreFunction(fenchel.Bits(3), MovingAverage()),
    "self-critic": lambda: ScoreFunction(fenchel.Bits(3), SelfCritic()),
    "learned": lambda: ScoreFunction(fenchel.Bits(3), Learned(network(3))),
}
RELAXED = {"gumbel": GumbelSoftmax, "straight-through": StraightThrough}


def assert_mean(samples: Tensor, ground_truth: Tensor) -> None:
    """The mean of samples (n, …) is the ground truth, within a few standard errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - ground_truth).abs() <= SIGMAS * error + 1e-12).all()


@pytest.mark.parametrize("make", CATEGORICAL.values(), ids=CATEGORICAL.keys())
def test_unbiased_over_categories(make: Callable[[], estimators.AbstractEstimator]) -> None:
    model = Categories.random(items=1)
    estimator = make()
    over = estimator.over  # type: ignore[union-attr]
    ground_truth = (over(model.scores) * model.table()).sum()
    gradients = torch.autograd.grad(ground_truth, model.parameters)

    scores = model.scores.detach().expand(MANY, -1).clone().requires_grad_()
    weight = model.weight.detach().expand(MANY, -1, -1).clone().requires_grad_()

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return (weight[item, z] - model.x).square().sum(-1)

    marginalize(scores, loss, estimator)  # so that averages are not zero
    value = marginalize(scores, loss, estimator).value
    found = torch.autograd.grad(value.sum(), [scores, weight])
    assert_mean(value.detach(), ground_truth.detach())
    assert_mean(found[0], gradients[0][0])
    assert_mean(found[1], gradients[1])


@pytest.mark.parametrize("make", BITS.values(), ids=BITS.keys())
def test_unbiased_over_bits(make: Callable[[], estimators.AbstractEstimator]) -> None:
    model = Configurations.random(items=1)
    estimator = make()
    ground_truth = (model.probabilities() * model.table()).sum()
    gradients = torch.autograd.grad(ground_truth, model.parameters)
    scores = model.scores.detach().expand(MANY, -1).clone().requires_grad_()
    weight = model.weight.detach().expand(MANY, -1, -1).clone().requires_grad_()

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return (torch.einsum("nd,ndh->nh", z, weight[item]) - model.x).square().sum(-1)

    marginalize(scores, loss, estimator)
    outcome = marginalize(scores, loss, estimator)
    found = torch.autograd.grad(outcome.value.sum(), [scores, weight])
    assert_mean(outcome.value.detach(), ground_truth.detach())
    assert_mean(found[0], gradients[0][0])
    assert_mean(found[1], gradients[1])
    entropy = torch.special.entr(model.probabilities()).sum(-1)
    torch.testing.assert_close(outcome.entropy, entropy.expand(MANY))
    torch.testing.assert_close(outcome.kl(), (8 * torch.ones(())).log() - outcome.entropy)


def test_summing_lowers_the_variance_and_summing_all_ends_it() -> None:
    model = Categories.random(items=2)

    def variance(estimator: estimators.AbstractEstimator) -> float:
        def loss() -> Tensor:
            return marginalize(model.scores, model.loss, estimator).value.sum()

        return gradient_variance(loss, [model.scores], samples=300).variance

    single, one, all_configurations = map(
        variance, (ScoreFunction(), SumAndSample(), SumAndSample(k=5))
    )
    assert one < single
    assert all_configurations < 1e-20


def test_sum_and_sample_samples_nothing_from_nothing() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.1, 0.2]])
    outcome = marginalize(scores, lambda i, z: z.float(), SumAndSample(fenchel.Sparsemax()))
    assert outcome.calls.tolist() == [1, 2]
    assert outcome.exact.tolist() == [True, False]


@pytest.mark.parametrize("baseline", [MovingAverage(), SelfCritic(), Learned(network(5))])
def test_baselines_are_detached(baseline: estimators.AbstractBaseline) -> None:
    """Beside the samples' own loss, nothing reaches the parameters of the loss function."""
    model = Categories.random()
    watched: list[bool] = []
    drawn: list[tuple[Tensor, Tensor]] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        watched.append(torch.is_grad_enabled())
        drawn.append((item, z))
        return model.loss(item, z)

    value = marginalize(model.scores, loss, ScoreFunction(baseline=baseline)).value
    found = torch.autograd.grad(value.sum(), model.weight)
    torch.testing.assert_close(
        found, torch.autograd.grad(model.loss(*drawn[0]).sum(), model.weight)
    )
    assert watched == [True] + [False] * baseline.extra_calls
    torch.testing.assert_close(value, model.loss(*drawn[0]))


def test_a_learned_baseline_minimizes_its_squared_error_and_nothing_else_does() -> None:
    model = Categories.random()
    linear = network(2)
    context = model.x.clone().requires_grad_()
    drawn: list[tuple[Tensor, Tensor]] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        drawn.append((item, z))
        return model.loss(item, z)

    estimator = ScoreFunction(baseline=Learned(linear))
    assert list(estimator.parameters()) == list(linear.parameters())
    marginalize(model.scores, loss, estimator, context=context).value.sum().backward()
    assert context.grad is None
    found = [p.grad for p in linear.parameters()]
    error = (linear(model.x).squeeze(-1) - model.loss(*drawn[0]).detach()).square().sum()
    torch.testing.assert_close(found, list(torch.autograd.grad(error, list(linear.parameters()))))


def test_a_moving_average_forgets() -> None:
    baseline = MovingAverage(0.5)
    estimator = ScoreFunction(baseline=baseline)
    for level, wanted in ((4.0, 4.0), (1.0, 2.0), (1.0, 10 / 7)):
        marginalize(torch.zeros(2, 3), lambda i, z, level=level: z * 0 + level, estimator)
        torch.testing.assert_close(baseline.average, torch.tensor(wanted))
    assert "baseline.average" in estimator.state_dict()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_moving_average_in_half_precision_reaches_the_losses(dtype: torch.dtype) -> None:
    baseline = MovingAverage(0.99)
    estimator = ScoreFunction(baseline=baseline).to(dtype)
    scores = torch.zeros(2, 3, dtype=dtype)
    for level in [0.0] * 100 + [1.0] * 1000:
        outcome = marginalize(scores, lambda i, z, level=level: z.to(dtype) * 0 + level, estimator)
    assert outcome.value.dtype == torch.float32
    assert baseline.average.dtype == torch.float32
    assert baseline.average > 0.99


@pytest.mark.parametrize("make", CATEGORICAL.values(), ids=CATEGORICAL.keys())
def test_evaluation_takes_the_most_probable(
    make: Callable[[], estimators.AbstractEstimator],
) -> None:
    model = Categories.random()
    estimator = make().eval()
    before = {name: value.clone() for name, value in estimator.state_dict().items()}
    outcome = marginalize(model.scores, model.loss, estimator)
    mode = model.scores.argmax(-1)
    torch.testing.assert_close(outcome.value, model.loss(torch.arange(3), mode))
    assert outcome.calls.tolist() == [1, 1, 1]
    assert all(value.equal(before[name]) for name, value in estimator.state_dict().items())


@pytest.mark.parametrize("kind", RELAXED.values(), ids=RELAXED.keys())
def test_evaluation_of_relaxed_samples(kind: type[GumbelSoftmax]) -> None:
    model, bits = Categories.random(), Configurations.random()
    outcome = marginalize(model.scores, model.loss, kind().eval())
    torch.testing.assert_close(outcome.value, model.loss(torch.arange(3), model.scores.argmax(-1)))
    outcome = marginalize(bits.scores, bits.loss, kind(fenchel.Bits(3)).eval())
    mode = (bits.scores > 0).double()
    torch.testing.assert_close(outcome.value, bits.loss(torch.arange(2), mode))


@pytest.mark.parametrize("kind", RELAXED.values(), ids=RELAXED.keys())
@pytest.mark.parametrize("over", [None, fenchel.Bits(3)], ids=["categories", "bits"])
def test_relaxed_samples_have_the_right_frequencies(kind: type, over: fenchel.Bits | None) -> None:
    scores = torch.tensor([1.0, 0.0, -0.5]).double()
    seen: list[Tensor] = []

    def loss(item: Tensor, z: Tensor) -> Tensor:
        seen.append(z)
        return z.sum(-1)

    outcome = marginalize(scores.expand(MANY, 3), loss, kind(over, temperature=0.05))
    z = seen[0]
    assert (z >= 0).all()
    assert (z <= 1).all()
    if over is None:
        torch.testing.assert_close(z.sum(-1), torch.ones(MANY).double())
        corners = (z == z.amax(-1, keepdim=True)).double()
    else:
        corners = (z > 0.5).double()
    if kind is StraightThrough:
        assert z.equal(corners)
    assert_mean(corners, outcome.marginals[0])


def test_relaxed_gradients_by_differences() -> None:
    model = Categories.random()
    estimator = GumbelSoftmax(temperature=0.7, samples=2)

    def value(scores: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(1)
        model.weight = weight
        return marginalize(scores, model.loss, estimator).value

    assert torch.autograd.gradcheck(value, [model.scores, model.weight])


def test_straight_through_has_the_gradient_of_the_soft_sample() -> None:
    scores, direction = torch.randn(4, 5, requires_grad=True), torch.randn(5)
    found = []
    for kind in (GumbelSoftmax, StraightThrough):
        torch.manual_seed(3)
        value = marginalize(scores, lambda i, z: z @ direction, kind(temperature=0.8)).value
        found.append(torch.autograd.grad(value.sum(), scores)[0])
    torch.testing.assert_close(found[0], found[1])


def test_masked_categories_are_never_drawn() -> None:
    scores = torch.tensor([0.0, -torch.inf, 1.0]).expand(200, 3).clone().requires_grad_()
    for estimator in (ScoreFunction(), SumAndSample(), GumbelSoftmax(), StraightThrough()):

        def loss(item: Tensor, z: Tensor) -> Tensor:
            assert not (z[:, 1] > 0).any() if z.is_floating_point() else not (z == 1).any()
            return z.sum(-1) if z.is_floating_point() else z.float()

        value = marginalize(scores, loss, estimator).value
        gradient = torch.autograd.grad(value.sum(), scores, allow_unused=True)[0]
        assert gradient.isfinite().all()


def test_forbidden_bits_are_never_drawn() -> None:
    scores = torch.tensor([0.0, -torch.inf, torch.inf]).expand(200, 3).clone().requires_grad_()
    bits = fenchel.Bits(3)
    for estimator in (ScoreFunction(bits), GumbelSoftmax(bits), StraightThrough(bits)):

        def loss(item: Tensor, z: Tensor) -> Tensor:
            assert (z[:, 1] == 0).all()
            assert (z[:, 2] == 1).all()
            return z.sum(-1)

        outcome = marginalize(scores, loss, estimator)
        torch.testing.assert_close(outcome.entropy, torch.full((200,), 2.0).log())
        value = (outcome.value + outcome.entropy).sum()
        assert torch.autograd.grad(value, scores)[0].isfinite().all()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ScoreFunction(1.5), TypeError, "`over` must be a mapping, such"),  # type: ignore[arg-type]
        (lambda: ScoreFunction(fenchel.Ksubset()), ValueError, "`over` must sum to one"),
        (lambda: ScoreFunction(samples=0), ValueError, "`samples` must be at least 1, got 0"),
        (lambda: ScoreFunction(baseline=1.0), TypeError, "`baseline` must be None or a baseline"),
        (lambda: MovingAverage(1.0), ValueError, "`decay` must be less than 1, got 1"),
        (lambda: SumAndSample(k=0), ValueError, "`k` must be at least 1, got 0"),
        (lambda: SumAndSample(fenchel.Matching(2, 2)), TypeError, "of known probabilities"),
    ],
)
def test_bad_options(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_bad_input() -> None:
    scores = torch.zeros(2, 3)

    def loss(item: Tensor, z: Tensor) -> Tensor:
        return torch.zeros(len(item))

    with pytest.raises(ValueError, match="`temperature` must be greater than 0, got 0"):
        marginalize(scores, loss, GumbelSoftmax(temperature=0))
    learned = ScoreFunction(baseline=Learned(nn.Linear(4, 1)))
    with pytest.raises(ValueError, match=r"`context` must have shape \(2, F\), got \(3, 4\)"):
        marginalize(scores, loss, learned, context=torch.zeros(3, 4))
    wide = ScoreFunction(baseline=Learned(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match=r"must return shape \(2,\) or \(2, 1\)"):
        marginalize(scores, loss, wide)
