"""The losses of the `entmax` package, as functions and as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from ... import _checks
from ...losses._fenchel_young import fenchel_young_loss
from ...mappings import AbstractMapping
from ._mappings import Module, check_scores, entmax_of, normmax_of, sparsemax_of

_REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


def _losses(mapping: AbstractMapping, X: Tensor, target: Tensor) -> Tensor:
    check_scores(X)
    return fenchel_young_loss(mapping, X, target, reduction="none")


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The Fenchel-Young loss of `sparsemax`, whose gradient is `sparsemax(X)` less the target.

    Args:
        X: scores (n_samples, n_classes).
        target: class indices (n_samples,); samples with target −100 have loss and gradient zero.
        k: without effect.
    Returns:
        The losses (n_samples,), +inf where the target's score is −inf. One pass over X; only the
        probabilities are saved for backward.
    Raises:
        ValueError: for targets of another shape, or that are no class.

    >>> import torch
    >>> sparsemax_loss(torch.tensor([[1.0, 0.8, 0.1], [0.0, 2.0, 0.5]]), torch.tensor([0, -100]))
    tensor([0.1600, 0.0000])
    """
    return _losses(sparsemax_of(k=k), X, target)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """The same as `sparsemax_loss`; `n_iter` is without effect.

    >>> import torch
    >>> sparsemax_bisect_loss(torch.tensor([[1.0, 0.8, 0.1]]), torch.tensor([0]))
    tensor([0.1600])
    """
    return _losses(sparsemax_of(n_iter=n_iter), X, target)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The loss of `entmax15`; arguments and result as for `sparsemax_loss`.

    >>> import torch
    >>> entmax15_loss(torch.tensor([[2.0, 1.0, 0.1, -1.0]]), torch.tensor([0]))
    tensor([0.0617])
    """
    return _losses(entmax_of(k=k), X, target)


def entmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50
) -> Tensor:
    """The loss of `entmax_bisect`: the cross-entropy at α = 1; the rest as for `sparsemax_loss`.

    >>> import torch
    >>> X, target = torch.tensor([[2.0, 1.0, 0.1, -1.0]] * 2), torch.tensor([0, 0])
    >>> entmax_bisect_loss(X, target, alpha=torch.tensor([[1.0], [1.5]]))
    tensor([0.4493, 0.0617])
    """
    return _losses(entmax_of(alpha, n_iter=n_iter), X, target)


def normmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50
) -> Tensor:
    """The loss of `normmax_bisect`; the rest as for `sparsemax_loss`.

    >>> import torch
    >>> normmax_bisect_loss(torch.tensor([[1.0, 0.8, 0.1, -1.0]]), torch.tensor([0]))
    tensor([0.2000])
    """
    return _losses(normmax_of(alpha, n_iter), X, target)


class LossModule(Module):
    """A loss as a module; the arguments are those of its function, and two more.

    Args:
        ignore_index: samples with this target are left out of the loss, the mean and the
            gradient. If all are ignored the mean is NaN, as in torch.
        reduction: "elementwise_mean" (over the samples that count), "sum" or "none".
    Raises:
        ValueError: for another reduction.
    """

    mapping: ClassVar[Callable[..., AbstractMapping]]

    def __init__(self, ignore_index: int, reduction: str, **settings: object) -> None:
        _checks.check_choice("reduction", reduction, tuple(_REDUCTIONS))
        super().__init__(**settings)
        self.ignore_index = int(ignore_index)  # that package takes an element of a tensor, too
        self.reduction = reduction

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """The losses (n_samples,), of ignored samples zero."""
        return self._reduced(X, target, "none")

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        return self._reduced(X, target, self.reduction)

    def _reduced(self, X: Tensor, target: Tensor, reduction: str) -> Tensor:
        check_scores(X)
        mapping = type(self).mapping(**self.settings())
        return fenchel_young_loss(
            mapping, X, target, reduction=_REDUCTIONS[reduction], ignore_index=self.ignore_index
        )

    def extra_repr(self) -> str:
        own = f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
        return f"{super().extra_repr()}, {own}"


class SparsemaxLoss(LossModule):
    """`sparsemax_loss` as a module.

    >>> import torch
    >>> X = torch.tensor([[1.0, 0.8, 0.1], [0.0, 2.0, 0.5]])
    >>> SparsemaxLoss()(X, torch.tensor([0, -100]))
    tensor(0.1600)
    """

    mapping = staticmethod(sparsemax_of)

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, k=k)


class SparsemaxBisectLoss(LossModule):
    """`sparsemax_bisect_loss` as a module.

    >>> import torch
    >>> SparsemaxBisectLoss(reduction="none")(torch.tensor([[1.0, 0.8, 0.1]]), torch.tensor([0]))
    tensor([0.1600])
    """

    mapping = staticmethod(sparsemax_of)

    def __init__(
        self, n_iter: int = 50, ignore_index: int = -100, reduction: str = "elementwise_mean"
    ) -> None:
        super().__init__(ignore_index, reduction, n_iter=n_iter)


class Entmax15Loss(LossModule):
    """`entmax15_loss` as a module.

    >>> import torch
    >>> X = torch.tensor([[2.0, 1.0, 0.1, -1.0]] * 2)
    >>> Entmax15Loss(reduction="sum")(X, torch.tensor([0, 1]))
    tensor(1.1233)
    """

    mapping = staticmethod(entmax_of)

    def __init__(
        self,
        k: int | None = 100,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, k=k)


class EntmaxBisectLoss(LossModule):
    """`entmax_bisect_loss` as a module; `alpha` may be an `nn.Parameter`.

    >>> import torch
    >>> EntmaxBisectLoss(alpha=1.25)(torch.tensor([[2.0, 1.0, 0.1, -1.0]]), torch.tensor([0]))
    tensor(0.1686)
    """

    mapping = staticmethod(entmax_of)

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)


class NormmaxBisectLoss(LossModule):
    """`normmax_bisect_loss` as a module; `alpha` may be an `nn.Parameter`.

    >>> import torch
    >>> NormmaxBisectLoss()(torch.tensor([[1.0, 0.8, 0.1, -1.0]]), torch.tensor([0]))
    tensor(0.2000)
    """

    mapping = staticmethod(normmax_of)

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)
