"""Prediction sets of a classifier, as methods to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted, validate_data

from ... import _checks
from ...mappings import AbstractMapping
from . import _conformal

if TYPE_CHECKING:
    from typing_extensions import Self


class PredictionSets:
    """Split conformal prediction for a classifier that has a mapping and scores."""

    classes_: np.ndarray
    mapping_: AbstractMapping
    quantile_: float
    set_score_: str

    _input_kinds: Any
    _scores: Any
    _scores_of: Any

    def calibrate(self, X: Any, y: Any, coverage: float = 0.9, score: str | None = None) -> Self:
        """Prepares `predict_set` with data that `fit` has not seen.

        If these data and a new pair (x, y) are exchangeable, as independent draws from the same
        distribution are, then y is in the set of x with a probability of at least `coverage`. If no
        two values of the score are ever equal, it is also at most coverage + 1/(n + 1).

        Args:
            X, y: n samples and their labels. With fewer than coverage/(1 − coverage) of them, every
                set has all classes.
            coverage: between 0 and 1.
            score: what ranks the classes; by default "support" where there is one. "support" is for
                sparsemax, and entmax above α = 1: the set is the support of the mapping with
                `gamma` just above `quantile_`, and never empty. "loss" is for every mapping: the
                set has the classes with a loss of at most `quantile_`, and may be empty. For
                softmax this is a threshold on the probability.
        Raises:
            ValueError: for labels that `fit` has not seen, or a score that the mapping lacks.

        References: vovk2005algorithmic, campos2025sparse.
        """
        check_is_fitted(self)
        _checks.check_number("coverage", coverage, above=0)
        if coverage >= 1:
            raise ValueError(f"`coverage` must be less than 1, got {coverage:g}.")
        score = _conformal.choose_score(self.mapping_, score)
        X, y = validate_data(self, X, y, reset=False, **self._input_kinds())
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"`y` must have labels of the training data only, got {unknown.tolist()[0]!r}."
            )
        target = torch.from_numpy(np.searchsorted(self.classes_, y))
        scores = torch.from_numpy(self._scores_of(X)).double()
        values = _conformal.nonconformity(self.mapping_, scores, target, score)
        self.quantile_ = _conformal.conformal_quantile(values, coverage)
        self.set_score_ = score
        return self

    def predict_set(self, X: Any) -> np.ndarray:
        """Which classes are in the prediction set of each sample, booleans (n, classes)."""
        check_is_fitted(self)
        if not hasattr(self, "quantile_"):
            raise NotFittedError(
                "`predict_set` needs a calibration; call `calibrate` with data that `fit` has not "
                "seen."
            )
        scores = torch.from_numpy(self._scores(X)).double()
        return _conformal.prediction_sets(self.mapping_, scores, self.quantile_, self.set_score_)
