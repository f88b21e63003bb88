"""The classifier for scikit-learn: its checks, its linear model, and what it accepts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import fenchel

pytest.importorskip("sklearn", reason="scikit-learn is an extra")

from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from fenchel.integrations.sklearn import FenchelYoungClassifier, _linear

MAPPINGS = [
    "softmax",
    "sparsemax",
    fenchel.Entmax(1.25),
    fenchel.Entmax(3.0),
    fenchel.Entmax(1.5, gamma=0.5),
    fenchel.Normmax(2.0),
    fenchel.Pnormmax(1.5),
    fenchel.Fusedmax(0.1),
    fenchel.Oscarmax(0.01),
]


def scaled(load: Any) -> tuple[np.ndarray, np.ndarray]:
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def gradient(classifier: Any, X: np.ndarray, y: np.ndarray, C: float) -> np.ndarray:
    """That of Σ L/n + ‖W‖²/2Cn in W and b, from the probabilities alone."""
    p = classifier.predict_proba(X)
    excess = (p - (y[:, None] == classifier.classes_))[:, -len(classifier.coef_) :]
    by_coef = excess.T @ X / len(X) + classifier.coef_ / (C * len(X))
    return np.concatenate([by_coef.ravel(), excess.mean(0)])


@pytest.mark.parametrize(
    "mapping",
    [
        "entmax",
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ("softmax", "sparsemax", "normmax", "pnormmax")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # the checks are not all quiet
def test_it_passes_the_checks_of_scikit_learn(mapping: str) -> None:
    results = check_estimator(FenchelYoungClassifier(mapping), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_softmax_is_logistic_regression(load: Any, C: float) -> None:
    X, y = scaled(load)
    options = {"C": C, "tol": 1e-8, "max_iter": 10_000}
    theirs = LogisticRegression(**options).fit(X, y)
    ours = FenchelYoungClassifier("softmax", **options).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)


@pytest.mark.parametrize("intercept", [True, False])
def test_weights_and_intercepts_are_those_of_logistic_regression(intercept: bool) -> None:
    X, y = scaled(load_wine)
    weights = np.random.default_rng(0).uniform(0.1, 2, len(X))
    options = {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "tol": 1e-8, "fit_intercept": intercept}
    theirs = LogisticRegression(**options).fit(X, y, weights)
    ours = FenchelYoungClassifier("softmax", **options).fit(X, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)


def test_balanced_classes_count_the_same() -> None:
    X, y = scaled(load_wine)
    weights = np.random.default_rng(0).uniform(0.1, 2, len(X))
    balanced = FenchelYoungClassifier(class_weight="balanced", tol=1e-8).fit(X, y, weights)
    total = np.bincount(y, weights)
    by_hand = weights * total.mean() / total[y]
    same = FenchelYoungClassifier(tol=1e-8).fit(X, y, by_hand)
    np.testing.assert_allclose(balanced.coef_, same.coef_, atol=1e-6)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
def test_the_gradient_is_zero_at_the_end(mapping: Any, load: Any) -> None:
    X, y = scaled(load)
    classifier = FenchelYoungClassifier(mapping, C=2.0, tol=1e-7).fit(X, y)
    assert np.abs(gradient(classifier, X, y, 2.0)).max() <= 1.01e-7
    assert classifier.n_iter_ > 1


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", "entmax"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("intercept", [True, False])
def test_features_of_any_size_will_do(mapping: str, kind: Any, intercept: bool) -> None:
    """Their means are up to 700 and their deviations from 0.1 to 300; one is constant."""
    X, y = load_wine(return_X_y=True)
    X = np.hstack([X, np.full((len(X), 1), 5.0)])
    classifier = FenchelYoungClassifier(mapping, fit_intercept=intercept).fit(kind(X), y)
    assert classifier.n_iter_ < 500
    found = gradient(classifier, X, y, 1.0)
    size = np.tile(np.sqrt((X**2).mean(0)), 3)
    assert np.abs(found[: size.size] / size).max() < 1e-5


@pytest.mark.parametrize("mapping", ["sparsemax", "entmax", fenchel.Entmax(3.0)], ids=str)
def test_probabilities_have_exact_zeros(mapping: Any) -> None:
    X, y = scaled(load_iris)
    p = FenchelYoungClassifier(mapping).fit(X, y).predict_proba(X)
    assert (p == 0).mean() > 0.3
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)


def test_the_logarithm_of_zero_is_minus_infinity() -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier("sparsemax").fit(X, y)
    p, log_p = classifier.predict_proba(X), classifier.predict_log_proba(X)
    np.testing.assert_array_equal(np.exp(log_p) > 0, p > 0)
    np.testing.assert_allclose(np.exp(log_p), p, rtol=1e-12)


def test_probabilities_are_those_of_the_mapping() -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier(fenchel.Entmax(1.75, gamma=2.0)).fit(X, y)
    scores = torch.from_numpy(X @ classifier.coef_.T + classifier.intercept_)
    expected = fenchel.entmax(scores, alpha=1.75, gamma=2.0)
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=1e-12)


def test_without_a_penalty_a_sparse_loss_has_a_finite_optimum() -> None:
    """Beyond its margin the loss of sparsemax is zero, where that of softmax falls for ever."""
    X, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1])
    classifier = FenchelYoungClassifier("sparsemax", C=np.inf, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(classifier.predict_proba(X)[:, 1], y, atol=1e-12)
    assert np.abs(classifier.coef_).max() < 10


def test_two_classes_have_one_row() -> None:
    X, y = scaled(load_breast_cancer)
    labels = np.array(["malignant", "benign"])[y]
    classifier = FenchelYoungClassifier().fit(X, labels)
    assert classifier.classes_.tolist() == ["benign", "malignant"]
    assert classifier.coef_.shape == (1, 30)
    assert classifier.decision_function(X).shape == (569,)
    assert set(classifier.predict(X)) == {"benign", "malignant"}
    assert classifier.score(X, labels) > 0.97


def test_predictions_have_the_largest_probability() -> None:
    """Of equal ones, the class with the largest score."""
    X, y = scaled(load_wine)
    classifier = FenchelYoungClassifier(fenchel.Fusedmax(1.0)).fit(X, y)
    p, scores = classifier.predict_proba(X), classifier.decision_function(X)
    chosen = np.searchsorted(classifier.classes_, classifier.predict(X))
    rows = np.arange(len(X))
    np.testing.assert_array_equal(p[rows, chosen], p.max(1))
    tied = p == p.max(1, keepdims=True)
    assert (tied.sum(1) > 1).any()
    np.testing.assert_array_equal(scores[rows, chosen], np.where(tied, scores, -np.inf).max(1))


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
def test_sparse_features_give_the_same_model(kind: Any) -> None:
    X, y = make_classification(200, 12, n_informative=5, n_classes=3, random_state=0)
    X = np.where(np.abs(X) > 0.7, X, 0.0)
    dense = FenchelYoungClassifier(tol=1e-8).fit(X, y)
    thin = FenchelYoungClassifier(tol=1e-8).fit(kind(X), y)
    np.testing.assert_allclose(thin.coef_, dense.coef_, atol=1e-6)
    np.testing.assert_allclose(thin.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-6)


def test_single_precision_stays() -> None:
    X, y = scaled(load_wine)
    double = FenchelYoungClassifier().fit(X, y)
    single = FenchelYoungClassifier().fit(X.astype(np.float32), y)
    for found in (single.coef_, single.intercept_, single.predict_proba(X.astype(np.float32))):
        assert found.dtype == np.float32
    np.testing.assert_allclose(single.coef_, double.coef_, atol=1e-4)


def test_it_warns_if_it_did_not_converge() -> None:
    X, y = scaled(load_iris)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations, .* increase `max_iter` or"):
        FenchelYoungClassifier(max_iter=2).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="no step made it smaller, .* increase `tol`"):
        FenchelYoungClassifier(tol=1e-18).fit(X, y)


def test_only_iterations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy would stop after 15,000 values of the objective, however many iterations are left."""
    given: dict[str, Any] = {}
    minimize = _linear.minimize

    def recorded(*arguments: Any, **options: Any) -> Any:
        given.update(options["options"])
        return minimize(*arguments, **options)

    monkeypatch.setattr(_linear, "minimize", recorded)
    X, y = scaled(load_iris)
    FenchelYoungClassifier(max_iter=100_000).fit(X, y)
    assert given["maxfun"] >= given["maxiter"] * given["maxls"]


def test_a_warm_start_goes_on() -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier(warm_start=True, tol=1e-7).fit(X, y)
    cold = classifier.n_iter_
    assert classifier.fit(X, y).n_iter_ < cold / 4
    assert classifier.fit(X[:, :2], y).coef_.shape == (3, 2)
    assert classifier.fit(X, y > 0).coef_.shape == (1, 4)


@pytest.mark.parametrize("module", [None, torch.nn.Linear(4, 3)], ids=["linear", "module"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_fit_needs_no_mode_of_torch(module: Any, mode: Any) -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier(module=module, epochs=1, random_state=0)
    expected = classifier.fit(X, y).predict_proba(X)
    with mode():
        found = clone(classifier).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(found, expected)


def test_a_parameter_counts_from_the_next_fit_on() -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier("sparsemax").fit(X, y).calibrate(X, y)
    p, sets = classifier.predict_proba(X), classifier.predict_set(X)
    classifier.set_params(mapping="softmax")
    np.testing.assert_array_equal(classifier.predict_proba(X), p)
    np.testing.assert_array_equal(classifier.predict_set(X), sets)
    assert (classifier.fit(X, y).predict_proba(X) > 0).all()
    classifier.set_params(module=torch.nn.Linear(4, 3), epochs=1).fit(X, y)
    assert not hasattr(classifier, "coef_")
    assert not hasattr(classifier.set_params(module=None).fit(X, y), "module_")


def test_fits_are_deterministic_and_leave_random_numbers_alone() -> None:
    X, y = scaled(load_iris)
    before = torch.get_rng_state()
    first, second = (FenchelYoungClassifier().fit(X, y).coef_ for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tensor_parameter_gets_no_gradient() -> None:
    X, y = scaled(load_iris)
    alpha = torch.tensor(1.5, requires_grad=True)
    classifier = FenchelYoungClassifier(fenchel.Entmax(alpha)).fit(X, y)
    expected = FenchelYoungClassifier(fenchel.Entmax(1.5)).fit(X, y)
    assert alpha.grad is None
    np.testing.assert_allclose(classifier.predict_proba(X), expected.predict_proba(X), atol=1e-6)


def test_options_of_the_mapping_are_parameters() -> None:
    classifier = FenchelYoungClassifier(fenchel.Entmax(1.5))
    assert classifier.get_params()["mapping__alpha"] == 1.5
    assert "mapping__alpha" not in classifier.get_params(deep=False)
    original = classifier.mapping
    classifier.set_params(mapping__alpha=1.25, mapping__gamma=2.0, C=3.0)
    assert (classifier.mapping.alpha, classifier.mapping.gamma, classifier.C) == (1.25, 2.0, 3.0)
    assert original.alpha == 1.5
    by_name = FenchelYoungClassifier("entmax").set_params(mapping__alpha=2.0)
    assert by_name.mapping.alpha == 2.0
    changed = by_name.set_params(mapping="pnormmax", mapping__p=1.25)
    assert changed.mapping.p == 1.25
    assert clone(changed).mapping.p == 1.25
    with pytest.raises(ValueError, match="'mapping__q': pnormmax takes gamma, p"):
        changed.set_params(mapping__q=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'alpha'"):
        changed.set_params(alpha=1.0)


def test_it_survives_pickling_and_printing() -> None:
    X, y = scaled(load_iris)
    classifier = FenchelYoungClassifier(fenchel.Entmax(1.25)).fit(X, y).calibrate(X, y)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    np.testing.assert_array_equal(again.predict_set(X), classifier.predict_set(X))
    assert (
        repr(FenchelYoungClassifier("sparsemax")) == "FenchelYoungClassifier(mapping='sparsemax')"
    )
    assert "FenchelYoungClassifier" in classifier._repr_html_()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"mapping": "entmx"}, ValueError, "did you mean 'entmax'"),
        ({"mapping": 1.5}, TypeError, "mapping"),
        ({"mapping": "ksubset"}, ValueError, "solutions that sum to one, got ksubset"),
        ({"C": 0.0}, ValueError, "`C` must be greater than 0, got 0"),
        ({"C": "1"}, TypeError, "`C` must be a number, got str"),
        ({"tol": -1.0}, ValueError, "`tol` must be greater than 0"),
        ({"max_iter": 0}, ValueError, "`max_iter` must be at least 1, got 0"),
        ({"epochs": 2.5}, TypeError, "`epochs` must be an int, got float"),
        ({"class_weight": "even"}, ValueError, "balanced"),
        ({"class_weight": {0: -1.0}}, ValueError, "`class_weight` must be finite and not neg"),
        ({"class_weight": {0: np.inf}}, ValueError, "`class_weight` must be finite and not neg"),
        ({"class_weight": {0: np.nan}}, ValueError, "`class_weight` must be finite and not neg"),
        ({"fit_intercept": "no"}, TypeError, "`fit_intercept` must be a bool, got str"),
        ({"warm_start": 1}, TypeError, "`warm_start` must be a bool, got int"),
    ],
)
def test_bad_parameters_raise(options: Any, error: type[Exception], match: str) -> None:
    X, y = scaled(load_iris)
    with pytest.raises(error, match=match):
        FenchelYoungClassifier(**options).fit(X, y)


def test_bad_data_raise() -> None:
    X, y = scaled(load_iris)
    with pytest.raises(ValueError, match="at least two classes, got one class: 0"):
        FenchelYoungClassifier().fit(X, y * 0)
    with pytest.raises(ValueError, match="`sample_weight` must not be negative, got -1"):
        FenchelYoungClassifier().fit(X, y, -np.ones(len(X)))
    with pytest.raises(ValueError, match="zero"):
        FenchelYoungClassifier().fit(X, y, np.zeros(len(X)))
    for huge in (X * 1e300, sparse.csr_matrix(X * 1e300)):
        with pytest.raises(ValueError, match="features whose variance is not finite"):
            FenchelYoungClassifier().fit(huge, y)
    with pytest.raises(ValueError, match="3 features"):
        FenchelYoungClassifier().fit(X, y).predict(X[:, :3])


def test_the_package_needs_scikit_learn_for_its_class_alone() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import fenchel.integrations.sklearn as package
assert package.__all__ == ["FenchelYoungClassifier"]
try:
    package.FenchelYoungClassifier
except ImportError as error:
    assert "pip install 'fenchel[sklearn]'" in str(error)
else:
    raise AssertionError
try:
    package.missing
except AttributeError as error:
    assert "no attribute 'missing'" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
