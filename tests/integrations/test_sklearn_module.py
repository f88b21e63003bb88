"""The classifier for scikit-learn with a torch module, in pipelines and in searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fenchel

pytest.importorskip("sklearn", reason="scikit-learn is an extra")

import joblib
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_circles
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from fenchel.integrations.sklearn import FenchelYoungClassifier


def perceptron(num_features: int, num_classes: int) -> nn.Module:
    layers = nn.Linear(num_features, 16), nn.Tanh(), nn.Linear(16, num_classes)
    return nn.Sequential(*layers)


def double_perceptron(num_features: int, num_classes: int) -> nn.Module:
    return perceptron(num_features, num_classes).double()


def circles() -> tuple[np.ndarray, np.ndarray]:
    return make_circles(300, noise=0.05, factor=0.5, random_state=0)


@pytest.mark.filterwarnings("ignore")  # the checks are not all quiet
def test_it_passes_the_checks_of_scikit_learn() -> None:
    """With one batch: batches of a few rows divide repeated and weighted data differently."""
    classifier = FenchelYoungClassifier(
        module=double_perceptron, epochs=30, batch_size=10_000, lr=0.03
    )
    results = check_estimator(classifier, on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", fenchel.Entmax(1.25)], ids=str)
def test_a_module_learns_what_no_linear_model_can(mapping: Any) -> None:
    X, y = circles()
    classifier = FenchelYoungClassifier(
        mapping, module=perceptron, epochs=60, batch_size=32, lr=0.02, random_state=0
    ).fit(X, y)
    assert classifier.score(X, y) > 0.97
    assert FenchelYoungClassifier(mapping).fit(X, y).score(X, y) < 0.7
    assert classifier.n_iter_ == len(classifier.loss_curve_) == 60
    assert classifier.loss_curve_[-1] < classifier.loss_curve_[0] / 4
    p = classifier.predict_proba(X)
    assert p.shape == (300, 2)
    assert (p == 0).any() == (mapping != "softmax")


def test_a_seed_says_everything_and_torch_notices_nothing() -> None:
    X, y = circles()
    options = {"module": perceptron, "epochs": 2, "batch_size": 32}
    before = torch.get_rng_state()
    first = FenchelYoungClassifier(**options, random_state=1).fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    same = FenchelYoungClassifier(**options, random_state=1).fit(X, y)
    other = FenchelYoungClassifier(**options, random_state=2).fit(X, y)
    np.testing.assert_array_equal(first.decision_function(X), same.decision_function(X))
    assert (first.decision_function(X) != other.decision_function(X)).any()


def test_dropout_is_seeded_and_off_in_prediction() -> None:
    X, y = circles()
    module = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    first, same = (
        FenchelYoungClassifier(module=module, epochs=2, random_state=0).fit(X, y) for _ in range(2)
    )
    np.testing.assert_array_equal(first.decision_function(X), same.decision_function(X))
    np.testing.assert_array_equal(first.decision_function(X), first.decision_function(X))


def test_the_module_given_is_left_alone() -> None:
    X, y = circles()
    module = perceptron(2, 2)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    classifier = FenchelYoungClassifier(module=module, epochs=2).fit(X, y)
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None
    assert classifier.module is module
    assert classifier.module_ is not module
    assert not classifier.module_.training


def test_a_linear_module_without_decay_tends_to_the_linear_model() -> None:
    X, y = load_iris(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    exact = FenchelYoungClassifier("softmax", C=np.inf, tol=1e-3).fit(X, y)
    module = nn.Linear(4, 3).double()
    options = {"epochs": 800, "batch_size": 150, "lr": 0.1, "weight_decay": 0.0}
    trained = FenchelYoungClassifier("softmax", module=module, **options).fit(X, y)
    np.testing.assert_allclose(trained.predict_proba(X), exact.predict_proba(X), atol=0.05)


def test_weights_count_as_repetitions() -> None:
    X, y = circles()
    weights = np.random.default_rng(0).integers(1, 4, len(X))
    options = {"module": double_perceptron, "epochs": 5, "batch_size": 1000, "random_state": 0}
    weighted = FenchelYoungClassifier(**options).fit(X, y, weights)
    repeated = FenchelYoungClassifier(**options).fit(X.repeat(weights, 0), y.repeat(weights))
    found, expected = weighted.decision_function(X), repeated.decision_function(X)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_no_batch_has_a_single_row() -> None:
    X, y = circles()
    module = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    FenchelYoungClassifier(module=module, epochs=1, batch_size=23).fit(X[:93], y[:93])


def test_a_warm_start_goes_on() -> None:
    X, y = circles()
    classifier = FenchelYoungClassifier(
        module=perceptron, epochs=10, batch_size=32, lr=0.02, warm_start=True, random_state=0
    )
    first = classifier.fit(X, y).loss_curve_[-1]
    assert classifier.fit(X, y).loss_curve_[0] < 1.1 * first


def test_prediction_sets_of_a_module() -> None:
    X, y = circles()
    classifier = FenchelYoungClassifier(
        "sparsemax", module=perceptron, epochs=20, batch_size=32, lr=0.02, random_state=0
    ).fit(X[:100], y[:100])
    classifier.calibrate(X[100:], y[100:], coverage=0.95)
    covered = classifier.predict_set(X[100:])[np.arange(200), y[100:]]
    assert covered.mean() >= 0.95


@pytest.mark.parametrize(
    ("module", "error", "match"),
    [
        ("linear", TypeError, "`module` must be a torch.nn.Module, or a function"),
        (lambda features, classes: None, TypeError, "must return a torch.nn.Module, got NoneType"),
        (nn.Linear(2, 3), ValueError, r"one score for each class, of shape \(100, 2\)"),
        (nn.Linear(2, 1), ValueError, r"got \(100, 1\)"),
    ],
)
def test_bad_modules_raise(module: Any, error: type[Exception], match: str) -> None:
    X, y = circles()
    with pytest.raises(error, match=match):
        FenchelYoungClassifier(module=module, batch_size=100).fit(X, y)


def test_bad_training_raises() -> None:
    X, y = circles()
    with pytest.raises(ValueError, match="training diverged; try a smaller `lr`"):
        FenchelYoungClassifier(module=nn.Linear(2, 2), lr=1e30, epochs=50).fit(1e30 * X, y)
    with pytest.raises(TypeError, match=r"[Ss]parse data"):
        FenchelYoungClassifier(module=nn.Linear(2, 2)).fit(sparse.csr_array(X), y)


def test_a_grid_search_over_alpha() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    pipeline = make_pipeline(StandardScaler(), FenchelYoungClassifier("entmax", tol=1e-2))
    grid = {
        "fenchelyoungclassifier__mapping__alpha": [1.0, 1.5, 2.0],
        "fenchelyoungclassifier__C": [0.1, 1.0],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert len(search.cv_results_["params"]) == 6
    assert search.best_score_ > 0.9
    best = search.best_estimator_[-1]
    assert best.mapping.alpha == search.best_params_["fenchelyoungclassifier__mapping__alpha"]
    sets = best.calibrate(search.best_estimator_[:-1].transform(X), y)
    assert sets.predict_set(search.best_estimator_[:-1].transform(X)).shape == (300, 10)


@pytest.mark.slow
def test_a_grid_search_over_mappings_in_two_processes() -> None:
    X, y = load_iris(return_X_y=True)
    grid = {"mapping": ["softmax", fenchel.Sparsemax(), fenchel.Pnormmax(1.5)]}
    search = GridSearchCV(FenchelYoungClassifier(tol=1e-2), grid, cv=3, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.9


def test_clones_and_files_keep_a_module(tmp_path: Path) -> None:
    X, y = circles()
    classifier = FenchelYoungClassifier(module=perceptron(2, 2), epochs=3, random_state=0)
    copy = clone(classifier)
    found = classifier.fit(X, y).decision_function(X)
    np.testing.assert_array_equal(copy.fit(X, y).decision_function(X), found)
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    loaded = joblib.load(tmp_path / "classifier.joblib")
    np.testing.assert_array_equal(loaded.decision_function(X), found)
    assert len(cross_val_score(classifier, X, y, cv=3)) == 3
