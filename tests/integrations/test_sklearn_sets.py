"""Prediction sets: what they are, and that they cover as often as promised."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fenchel

pytest.importorskip("sklearn", reason="scikit-learn is an extra")

from sklearn.exceptions import NotFittedError

from fenchel.integrations.sklearn import FenchelYoungClassifier, _conformal

SPARSE = [
    fenchel.Sparsemax(),
    fenchel.Sparsemax(gamma=0.3),
    fenchel.Entmax(1.01),
    fenchel.Entmax(1.25),
    fenchel.Entmax(1.5),
    fenchel.Entmax(3.0),
]
UNEVEN = fenchel.General(lambda y: (y**2 * torch.arange(1, 6).to(y)).sum(-1) / 2)
OTHERS = [
    fenchel.Softmax(),
    fenchel.Normmax(2.0),
    fenchel.Pnormmax(1.5),
    fenchel.Fusedmax(0.1),
    pytest.param(UNEVEN, id="uneven"),
]


def mixture(
    n: int, seed: int, classes: int = 5, discrete: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Points around the corners of a polygon that overlap."""
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=n)
    angle = 2 * np.pi * y / classes
    X = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.7 * random.standard_normal((n, 2))
    return (np.round(X) if discrete else X), y


def fitted(mapping: Any, **options: Any) -> FenchelYoungClassifier:
    return FenchelYoungClassifier(mapping).fit(*mixture(200, seed=0, **options))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4) | st.floats(0, 9), min_size=1, max_size=30),
    st.floats(0.01, 0.99),
)
def test_each_value_is_covered_by_the_others(values: list[float], coverage: float) -> None:
    """The guarantee, without probability: of any n + 1 values, at least the share `coverage` is at
    most the quantile of the others, and each is equally likely to be the new one."""
    array = np.array(values, dtype=float)
    covered = [
        value <= _conformal.conformal_quantile(np.delete(array, i), coverage)
        for i, value in enumerate(array)
    ]
    assert np.mean(covered) >= coverage - 1e-12
    if len(set(values)) == len(values):
        assert np.mean(covered) <= coverage + 1 / len(values)


@pytest.mark.parametrize(
    ("n", "coverage", "rank"),
    [(9, 0.9, 9), (8, 0.9, None), (99, 0.07, 7), (19, 0.95, 19), (18, 0.95, None), (1, 0.5, 1)],
)
def test_the_quantile_is_an_order_statistic(n: int, coverage: float, rank: int | None) -> None:
    values = np.random.default_rng(0).permutation(n) + 1.0
    expected = math.inf if rank is None else rank
    assert _conformal.conformal_quantile(values, coverage) == expected


@pytest.mark.parametrize("mapping", SPARSE, ids=str)
def test_sets_are_supports_at_another_temperature(mapping: Any) -> None:
    classifier = fitted(mapping).calibrate(*mixture(100, seed=1), coverage=0.8)
    assert classifier.set_score_ == "support"
    assert 0 < classifier.quantile_ < math.inf
    X, _ = mixture(500, seed=2)
    scores = torch.from_numpy(classifier.decision_function(X))
    scaled = fenchel.mappings.get("entmax", alpha=mapping.exponent, gamma=classifier.quantile_)
    support = (scaled(scores) > 0).numpy()
    sets = classifier.predict_set(X)
    assert sets.dtype == bool
    assert sets.shape == (500, 5)
    # α = 1.01 has probabilities that round to zero.
    assert (sets >= support).all()
    assert mapping.exponent < 1.1 or (sets == support).all()
    assert sets.any(1).all()
    assert (sets[np.arange(500), classifier.predict(X)]).all()


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_a_class_enters_the_support_at_its_temperature(alpha: float) -> None:
    scores = torch.randn(50, 6, dtype=torch.float64)
    for i in range(6):
        gamma = _conformal.entry_temperatures(fenchel.Entmax(alpha), scores, scores[:, i : i + 1])
        top = scores.argmax(1) == i
        assert torch.equal(gamma == 0, top)
        for factor, inside in ((0.999, False), (1.001, True)):
            at = (factor * gamma).where(~top, torch.tensor(1.0, dtype=torch.float64))[:, None]
            p = fenchel.entmax(scores, alpha=alpha, gamma=at)[:, i]
            assert torch.equal(p > 0, top | inside)


@pytest.mark.parametrize("mapping", [*SPARSE, *OTHERS], ids=str)
def test_sets_are_thresholds_of_the_loss(mapping: Any) -> None:
    classifier = fitted(mapping).calibrate(*mixture(100, seed=1), coverage=0.8, score="loss")
    X, _ = mixture(200, seed=2)
    scores = torch.from_numpy(classifier.decision_function(X))
    for i in range(5):
        loss = mapping.loss(scores, torch.full((200,), i), reduction="none").numpy()
        clear = np.abs(loss - classifier.quantile_) > 1e-9
        expected = loss <= classifier.quantile_
        np.testing.assert_array_equal(classifier.predict_set(X)[clear, i], expected[clear])


def test_for_softmax_the_loss_is_a_threshold_on_the_probability() -> None:
    classifier = fitted("softmax").calibrate(*mixture(100, seed=1))
    assert classifier.set_score_ == "loss"
    X, _ = mixture(500, seed=2)
    expected = classifier.predict_proba(X) >= math.exp(-classifier.quantile_)
    np.testing.assert_array_equal(classifier.predict_set(X), expected)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_the_sets_of_the_calibration_data_cover_them(coverage: float) -> None:
    """⌈(n + 1)·coverage⌉ of n, and no more, where no two values are equal."""
    X, y = mixture(60, seed=1)
    classifier = fitted("softmax").calibrate(X, y, coverage=coverage)
    covered = classifier.predict_set(X)[np.arange(60), y]
    assert covered.sum() == math.ceil(61 * coverage)
    sparse = fitted("sparsemax").calibrate(X, y, coverage=coverage)
    assert sparse.predict_set(X)[np.arange(60), y].sum() >= math.ceil(61 * coverage)


def test_too_few_data_give_all_classes() -> None:
    for mapping in ("sparsemax", "softmax"):
        classifier = fitted(mapping).calibrate(*mixture(18, seed=1), coverage=0.95)
        assert classifier.quantile_ == math.inf
        assert classifier.predict_set(mixture(50, seed=2)[0]).all()


def test_larger_coverage_gives_larger_sets() -> None:
    classifier, X = fitted("sparsemax"), mixture(200, seed=2)[0]
    sets = [
        classifier.calibrate(*mixture(100, seed=1), coverage=coverage).predict_set(X)
        for coverage in (0.5, 0.8, 0.9, 0.99)
    ]
    for smaller, larger in itertools.pairwise(sets):
        assert (smaller <= larger).all()
    assert sets[0].sum() < sets[-1].sum()


def coverages(
    mapping: Any, coverage: float, n: int, seeds: int, **options: Any
) -> tuple[float, float]:
    """The mean coverage over many draws of calibration data, and its standard error."""
    discrete = options.pop("discrete", False)
    classifier = fitted(mapping, discrete=discrete)
    found = []
    for seed in range(seeds):
        classifier.calibrate(
            *mixture(n, seed=2 * seed + 1, discrete=discrete), coverage=coverage, **options
        )
        X, y = mixture(100, seed=2 * seed + 2, discrete=discrete)
        found.append(classifier.predict_set(X)[np.arange(100), y].mean())
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(seeds))


@pytest.mark.parametrize(
    ("mapping", "score"),
    [
        ("sparsemax", "support"),
        ("sparsemax", "loss"),
        (fenchel.Entmax(1.5), "support"),
        (fenchel.Entmax(1.25), "support"),
        ("softmax", "loss"),
        (fenchel.Pnormmax(1.5), "loss"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("coverage", "n"), [(0.9, 29), (0.9, 25), (0.8, 60)])
def test_new_data_are_covered_as_often_as_promised(
    mapping: Any, score: str, coverage: float, n: int
) -> None:
    """The mean is ⌈(n + 1)·coverage⌉/(n + 1) exactly where values do not tie. Those of right
    predictions do, as their temperature is zero; but here only six in ten are right."""
    mean, error = coverages(mapping, coverage, n, seeds=300, score=score)
    assert error < 0.01
    exact = math.ceil((n + 1) * coverage) / (n + 1)
    assert exact >= coverage
    assert abs(mean - exact) <= 4 * error


@pytest.mark.parametrize("mapping", ["sparsemax", "softmax"])
def test_ties_cover_more_and_not_less(mapping: str) -> None:
    mean, error = coverages(mapping, 0.9, 29, seeds=300, discrete=True)
    assert mean >= 0.9 - 3 * error


def test_labels_may_be_strings_and_of_two_classes() -> None:
    X, y = mixture(300, seed=0, classes=2)
    labels = np.array(["no", "yes"])[y]
    classifier = FenchelYoungClassifier("sparsemax").fit(X[:100], labels[:100])
    classifier.calibrate(X[100:200], labels[100:200], coverage=0.95)
    sets = classifier.predict_set(X[200:])
    assert sets.shape == (100, 2)
    assert sets[np.arange(100), y[200:]].mean() > 0.85


def test_fitting_again_forgets_the_calibration() -> None:
    classifier = fitted("sparsemax")
    with pytest.raises(NotFittedError, match="`predict_set` needs a calibration; call `calibrate`"):
        classifier.predict_set([[0.0, 0.0]])
    classifier.calibrate(*mixture(100, seed=1)).fit(*mixture(100, seed=2))
    assert not hasattr(classifier, "quantile_")
    with pytest.raises(NotFittedError):
        FenchelYoungClassifier().calibrate(*mixture(100, seed=1))


@pytest.mark.parametrize(
    ("mapping", "options", "error", "match"),
    [
        ("softmax", {"score": "support"}, ValueError, '`score` must be "loss" .* with softmax'),
        (fenchel.Entmax(1.0), {"score": "support"}, ValueError, "with alpha greater than 1"),
        ("sparsemax", {"score": "aps"}, ValueError, "one of support, loss, got 'aps'"),
        ("sparsemax", {"coverage": 1.0}, ValueError, "`coverage` must be less than 1, got 1"),
        ("sparsemax", {"coverage": 0}, ValueError, "`coverage` must be greater than 0, got 0"),
        ("sparsemax", {"coverage": "most"}, TypeError, "`coverage` must be a number, got str"),
    ],
    ids=str,
)
def test_bad_arguments_raise(
    mapping: Any, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        fitted(mapping).calibrate(*mixture(50, seed=1), **options)


def test_unseen_labels_raise() -> None:
    X, y = mixture(50, seed=1)
    with pytest.raises(ValueError, match="labels of the training data only, got 7"):
        fitted("sparsemax").calibrate(X, np.where(y == 4, 7, y))


def test_deleted_classes_are_never_in_a_set() -> None:
    scores = torch.tensor([[1.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]], dtype=torch.float64)
    for mapping, score in ((fenchel.Sparsemax(), "support"), (fenchel.Softmax(), "loss")):
        sets = _conformal.prediction_sets(mapping, scores, 5.0, score)
        assert sets.tolist() == [[True, True, False], [True, True, True]]
        last = torch.tensor([2, 2])
        assert _conformal.nonconformity(mapping, scores, last, score)[0] == math.inf
