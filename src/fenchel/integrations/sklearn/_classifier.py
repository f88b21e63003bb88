"""The classifier."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ... import _checks
from ...mappings import AbstractMapping
from ...mappings._registry import resolve
from . import _linear, _module
from ._sets import PredictionSets

if TYPE_CHECKING:
    from typing_extensions import Self

_NESTED = "mapping__"


class FenchelYoungClassifier(PredictionSets, ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities come from a mapping, trained by the mapping's loss.

    The scores θ = Wx + b of the classes, or those of a torch module, give the probabilities ŷ(θ).
    A linear model minimizes C Σᵢ sᵢ L(θᵢ, yᵢ) + ½‖W‖², with L the Fenchel-Young loss of the mapping
    and sᵢ the weights of the samples. With softmax it is `LogisticRegression`. As there, two
    classes have a single row of W, which gives the score of the second; that of the first is zero.

    Args:
        mapping: any mapping whose solutions sum to one, or the name of a registered one. Its
            options are parameters too, such as `mapping__alpha`.
        module: None for a linear model; a torch module from (n, features) to (n, classes), of which
            a copy is trained; or a function that returns one, given both numbers. Weights that
            this function draws depend on `random_state` alone.
        C: the inverse of the strength of the penalty; `np.inf` for none. The linear model alone.
        fit_intercept: whether the linear model has a b.
        class_weight: a dict of weights by label, or "balanced".
        max_iter, tol: the linear model is fitted when no entry of the gradient of its objective,
            divided by C Σ s and by the standard deviation of the feature, is larger than `tol`.
            After `max_iter` iterations it gives up, with a `ConvergenceWarning`.
        warm_start: whether `fit` starts from the last solution, if classes and features are those
            of the last data.
        random_state: for the order of the batches, dropout, and first weights of a module. Linear
            models use no random numbers.
        epochs, batch_size, lr, weight_decay: how AdamW trains a module.
        device: where a module is trained and called. Between calls it is on the CPU.

    Attributes:
        classes_: the labels, sorted.
        mapping_: the mapping that was fitted. Setting `mapping` later changes nothing until `fit`.
        coef_, intercept_: W and b of a linear model.
        module_: the trained module.
        loss_curve_: the mean training loss in each epoch of a module.
        n_iter_: the number of iterations, or of epochs.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
        quantile_, set_score_: what `calibrate` found, and the score that it used.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = FenchelYoungClassifier("sparsemax").fit(X, y)
    >>> classifier.predict_proba(X[[0, 70]]).round(2)
    array([[1.  , 0.  , 0.  ],
           [0.  , 0.46, 0.54]])

    References: blondel2020learning.
    """

    n_features_in_: int
    coef_: np.ndarray
    intercept_: np.ndarray
    module_: torch.nn.Module

    def __init__(
        self,
        mapping: AbstractMapping | str = "entmax",
        *,
        module: torch.nn.Module | Callable[[int, int], torch.nn.Module] | None = None,
        C: float = 1.0,
        fit_intercept: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        epochs: int = 20,
        batch_size: int = 128,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        device: str | torch.device = "cpu",
    ) -> None:
        self.mapping = mapping
        self.module = module
        self.C = C
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.device = device

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; if `deep`, those of the mapping too, such as `mapping__alpha`."""
        params = super().get_params(deep)
        if deep and isinstance(self.mapping, AbstractMapping):
            options = dataclasses.fields(self.mapping)
            params |= {_NESTED + f.name: getattr(self.mapping, f.name) for f in options}
        return params

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `mapping__alpha=1.25` replaces the mapping by one with this α."""
        nested = [name for name in params if name.startswith(_NESTED)]
        options = {name.removeprefix(_NESTED): params.pop(name) for name in nested}
        super().set_params(**params)
        if options:
            mapping = resolve(self.mapping)
            known = [field.name for field in dataclasses.fields(mapping)]
            for name in options:
                if name not in known:
                    raise ValueError(
                        f"Invalid parameter {_NESTED + name!r}: {mapping.name} takes "
                        f"{', '.join(known)}."
                    )
            self.mapping = dataclasses.replace(mapping, **options)
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fits the model to X (n, features) and labels y (n,); forgets an earlier calibration."""
        mapping = self._checked_mapping()
        self._check_numbers()
        goes_on = self.warm_start and hasattr(self, "n_iter_")
        before = (self.n_features_in_, self.classes_.tolist()) if goes_on else None
        X, y = validate_data(self, X, y, **self._input_kinds())
        check_classification_targets(y)
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"`y` must have at least two classes, got one class: {self.classes_.tolist()[0]!r}."
            )
        weights = self._weights(X, target, sample_weight)
        goes_on = before == (X.shape[1], self.classes_.tolist())
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode is
            if self.module is None:
                self._fit_linear(mapping, X, target, weights, goes_on)
            else:
                self._fit_module(self.module, mapping, X, target, weights, goes_on)
        self.mapping_ = mapping
        self._forget("quantile_", "set_score_")
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores (n, classes); of two classes the second's less the first's, (n,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities ŷ(θ), (n, classes); those of sparse mappings have exact zeros."""
        return self._solve(self._scores(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of `predict_proba`; −inf where a probability is exactly zero."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable labels (n,); of several, the one with the largest score."""
        scores = self._scores(X)
        p = self._solve(scores)
        best = np.where(p == p.max(1, keepdims=True), scores, -np.inf).argmax(1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.module is None
        return tags

    def _input_kinds(self) -> dict[str, Any]:
        """What `validate_data` lets pass."""
        sparse = "csr" if self.module is None else False
        return {"accept_sparse": sparse, "dtype": [np.float64, np.float32]}

    def _checked_mapping(self) -> AbstractMapping:
        mapping = resolve(self.mapping)
        if mapping.total != 1.0:
            raise ValueError(
                f"`mapping` must have solutions that sum to one, got {mapping.name}; sparsemax and "
                "entmax do."
            )
        return mapping

    def _check_numbers(self) -> None:
        if self.C != np.inf:
            _checks.check_number("C", self.C, above=0)
        _checks.check_number("tol", self.tol, above=0)
        _checks.check_number("lr", self.lr, above=0)
        _checks.check_number("weight_decay", self.weight_decay, minimum=0)
        for name in ("fit_intercept", "warm_start"):
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_):
                raise TypeError(f"`{name}` must be a bool, got {_checks.type_name(value)}.")
        for name in ("max_iter", "epochs", "batch_size"):
            _checks.check_size(name, getattr(self, name))

    def _weights(self, X: Any, target: np.ndarray, sample_weight: Any) -> np.ndarray:
        """The weights of the samples times those of their classes, (n,)."""
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True)
        if (weights < 0).any():
            raise ValueError(f"`sample_weight` must not be negative, got {weights.min():g}.")
        if self.class_weight == "balanced":
            by_class = np.bincount(target, weights)
            mean = by_class.sum() / len(by_class)
            by_class = np.divide(mean, by_class, out=np.zeros_like(by_class), where=by_class > 0)
        else:
            by_class = compute_class_weight(
                self.class_weight, classes=self.classes_, y=self.classes_[target]
            )
            if not (np.isfinite(by_class) & (by_class >= 0)).all():
                raise ValueError(
                    f"`class_weight` must be finite and not negative, got {self.class_weight}."
                )
        weights *= by_class[target]
        if not weights.sum() > 0:
            raise ValueError("`sample_weight` and `class_weight` must not leave all samples zero.")
        return weights

    def _fit_linear(
        self,
        mapping: AbstractMapping,
        X: Any,
        target: np.ndarray,
        weights: np.ndarray,
        goes_on: bool,
    ) -> None:
        rows = 1 if len(self.classes_) == 2 else len(self.classes_)
        start = np.zeros((rows, X.shape[1])), np.zeros(rows)
        if goes_on and hasattr(self, "coef_"):
            start = self.coef_, self.intercept_
        total = weights.sum()
        found = _linear.minimize_loss(
            mapping,
            X,
            target,
            weights / total,
            1 / (self.C * total),
            start,
            self.fit_intercept,
            self.tol,
            self.max_iter,
        )
        self.coef_, self.intercept_ = found.coef.astype(X.dtype), found.intercept.astype(X.dtype)
        self.n_iter_ = found.n_iter
        self._forget("module_", "loss_curve_")
        if not found.gradient <= self.tol:
            is_over = found.n_iter >= self.max_iter
            warnings.warn(
                f"the gradient is still {found.gradient:.2g} after {found.n_iter} iterations"
                f"{'' if is_over else ', and no step made it smaller'}, above `tol` = "
                f"{self.tol:g}; scale the features, for example with `StandardScaler`, or increase "
                f"{'`max_iter` or `tol`' if is_over else '`tol`'}.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _fit_module(
        self,
        module: torch.nn.Module | Callable[[int, int], torch.nn.Module],
        mapping: AbstractMapping,
        X: np.ndarray,
        target: np.ndarray,
        weights: np.ndarray,
        goes_on: bool,
    ) -> None:
        device = torch.device(self.device)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        with _module.seeded(seed, device):
            if not (goes_on and hasattr(self, "module_")):
                self.module_ = _module.build(module, X.shape[1], len(self.classes_))
            self.loss_curve_ = _module.train(
                self.module_,
                mapping,
                X,
                target,
                weights / weights.mean(),
                len(self.classes_),
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=self.weight_decay,
                device=device,
            )
        self.n_iter_ = self.epochs
        self._forget("coef_", "intercept_")

    def _forget(self, *names: str) -> None:
        """Removes what an earlier fit or calibration found."""
        for name in names:
            vars(self).pop(name, None)

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._scores_of(validate_data(self, X, reset=False, **self._input_kinds()))

    def _scores_of(self, X: Any) -> np.ndarray:
        """The scores of samples that are checked, (n, classes)."""
        if hasattr(self, "coef_"):
            return _linear.class_scores(X, self.coef_, self.intercept_)
        classes, device = len(self.classes_), torch.device(self.device)
        return _module.module_scores(self.module_, X, classes, self.batch_size, device)

    def _solve(self, scores: np.ndarray) -> np.ndarray:
        return self.mapping_(torch.from_numpy(scores)).detach().numpy()
