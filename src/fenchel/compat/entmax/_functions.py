"""The autograd functions of the `entmax` package, for code that calls their `apply`."""

from __future__ import annotations

from torch import Tensor

from . import _losses, _mappings


class SparsemaxFunction:
    """`sparsemax` by its `apply(X, dim=-1, k=None)`."""

    apply = staticmethod(_mappings.sparsemax)


class Entmax15Function:
    """`entmax15` by its `apply(X, dim=0, k=None)`."""

    @staticmethod
    def apply(X: Tensor, dim: int = 0, k: int | None = None) -> Tensor:
        return _mappings.entmax15(X, dim, k)


class EntmaxBisectFunction:
    """`entmax_bisect` by its `apply(X, alpha=1.5, dim=-1, n_iter=50, ensure_sum_one=True)`."""

    apply = staticmethod(_mappings.entmax_bisect)


class SparsemaxBisectFunction:
    """`sparsemax_bisect` by its `apply(X, dim=-1, n_iter=50, ensure_sum_one=True)`."""

    apply = staticmethod(_mappings.sparsemax_bisect)


class NormmaxBisectFunction:
    """`normmax_bisect` by its `apply(X, alpha=2, dim=-1, n_iter=50)`."""

    apply = staticmethod(_mappings.normmax_bisect)


class BudgetBisectFunction:
    """`budget_bisect` by its `apply(X, budget=2, dim=-1, n_iter=50)`."""

    apply = staticmethod(_mappings.budget_bisect)


class SparsemaxLossFunction:
    """`sparsemax_loss` by its `apply(X, target, k=None)`."""

    apply = staticmethod(_losses.sparsemax_loss)


class SparsemaxBisectLossFunction:
    """`sparsemax_bisect_loss` by its `apply(X, target, n_iter=50)`."""

    apply = staticmethod(_losses.sparsemax_bisect_loss)


class Entmax15LossFunction:
    """`entmax15_loss` by its `apply(X, target, k=None)`."""

    apply = staticmethod(_losses.entmax15_loss)


class EntmaxBisectLossFunction:
    """`entmax_bisect_loss` by its `apply(X, target, alpha=1.5, n_iter=50)`."""

    apply = staticmethod(_losses.entmax_bisect_loss)


class NormmaxBisectLossFunction:
    """`normmax_bisect_loss` by its `apply(X, target, alpha=2, n_iter=50)`."""

    apply = staticmethod(_losses.normmax_bisect_loss)
