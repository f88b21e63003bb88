"""The mappings of the `entmax` package, as functions and as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ... import _checks
from ...mappings import AbstractMapping, _entmax, _ksubset, _normmax, _sparsemax


def check_unused(ensure_sum_one: object = True, **counts: int | None) -> None:
    """Checks arguments that have no effect here: they must be what the other package takes."""
    for name, count in counts.items():
        if count is not None:
            _checks.check_number(name, count, minimum=1)
    if not isinstance(ensure_sum_one, int):
        raise TypeError(
            f"`ensure_sum_one` must be a bool, got {_checks.type_name(ensure_sum_one)}."
        )


def check_scores(X: Tensor, dim: int = -1) -> int:
    """Checks the scores `X` and their dimension; returns `dim` ≥ 0."""
    _checks.check_float_tensor("X", X)
    return _checks.check_dim("X", X.shape, dim)


def as_float(value: float | Tensor) -> float | Tensor:
    """A parameter as floating point; the other package takes tensors of integers, too."""
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        return value.to(torch.get_default_dtype())
    return value


# The mapping behind each pair of functions and modules, from the arguments that these share.


def sparsemax_of(**unused: int | None) -> AbstractMapping:
    check_unused(**unused)
    return _sparsemax.Sparsemax()


def entmax_of(alpha: float | Tensor = 1.5, **unused: int | None) -> AbstractMapping:
    check_unused(**unused)
    return _entmax.Entmax(as_float(alpha))


def normmax_of(alpha: float | Tensor, n_iter: int) -> AbstractMapping:
    check_unused(n_iter=n_iter)
    return _normmax.Normmax(as_float(alpha))


def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """The closest point of the simplex to X along `dim`: argmin of ‖X − p‖² with p ≥ 0, Σp = 1.

    Args:
        X: scores of any shape.
        dim: the dimension that is mapped.
        k: without effect.
    Returns:
        Probabilities like X, many of them zero. Linear time in expectation; only the result is
        saved for backward.

    >>> sparsemax(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.6000, 0.4000, 0.0000, 0.0000])
    """
    return sparsemax_of(k=k)(X, check_scores(X, dim))


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """The same as `sparsemax`; `n_iter` and `ensure_sum_one` are without effect.

    >>> sparsemax_bisect(torch.tensor([[1.0, 0.8], [0.1, 3.0]]), dim=0)
    tensor([[0.9500, 0.0000], [0.0500, 1.0000]])
    """
    return sparsemax_of(n_iter=n_iter, ensure_sum_one=ensure_sum_one)(X, check_scores(X, dim))


def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """1.5-entmax along `dim`: argmax of <X, p> + H(p) on the simplex, H the Tsallis 1.5-entropy.

    Args:
        X: scores of any shape.
        dim: the dimension that is mapped.
        k: without effect.
    Returns:
        Probabilities like X, many of them zero. Linear time in expectation; only the result is
        saved for backward.

    >>> entmax15(torch.tensor([2.0, 1.0, 0.1, -1.0]))
    tensor([0.8307, 0.1693, 0.0000, 0.0000])
    """
    return entmax_of(k=k)(X, check_scores(X, dim))


def entmax_bisect(
    X: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    n_iter: int = 50,
    ensure_sum_one: bool = True,
) -> Tensor:
    """α-entmax along `dim`: argmax of <X, p> + H_α(p) on the simplex, H_α the Tsallis entropy.

    Args:
        X: scores of any shape.
        alpha: α > 0, a number or one per row: softmax at 1, sparsemax at 2.
        dim: the dimension that is mapped.
        n_iter, ensure_sum_one: without effect.
    Returns:
        Probabilities like X. Linear time in expectation; only the result is saved for backward.
    Raises:
        ValueError: for α of 0 or less, or α that does not broadcast.

    >>> entmax_bisect(torch.tensor([2.0, 1.0, 0.1, -1.0]), alpha=1.25)
    tensor([0.7442, 0.2123, 0.0424, 0.0010])
    """
    return entmax_of(alpha, n_iter=n_iter, ensure_sum_one=ensure_sum_one)(X, check_scores(X, dim))


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """α-normmax along `dim`: argmax of <X, p> − ‖p‖_α on the simplex.

    Args:
        X: scores of any shape.
        alpha: α > 1, a number or one per row.
        dim: the dimension that is mapped.
        n_iter: without effect.
    Returns:
        Probabilities like X. Linear time in expectation; only the result is saved for backward.
    Raises:
        ValueError: for α of 1 or less, or α that does not broadcast.

    >>> normmax_bisect(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.5714, 0.4286, 0.0000, 0.0000])
    """
    return normmax_of(alpha, n_iter)(X, check_scores(X, dim))


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """A soft choice along `dim`: argmax of <X, p> − ½‖p‖² with 0 ≤ p ≤ 1 and Σp = `budget`.

    Args:
        X: scores of any shape.
        budget: between 0 and the number of entries, a number or one per row.
        dim: the dimension that is mapped.
        n_iter: without effect.
    Returns:
        Memberships like X. Linear time in expectation; only the result is saved for backward.
    Raises:
        ValueError: for a budget that no row can meet, or that does not broadcast.

    >>> budget_bisect(torch.tensor([2.0, 1.0, 0.6, -1.0]))
    tensor([1.0000, 0.7000, 0.3000, 0.0000])
    """
    check_unused(n_iter=n_iter)
    dim, budget = check_scores(X, dim), as_float(budget)
    _checks.check_real("budget", budget, minimum=0, maximum=X.shape[dim])
    if isinstance(budget, Tensor):
        _checks.broadcast_per_row("budget", budget, X.shape, dim)
    return _ksubset.Ksubset(budget)(X, dim)


class Module(nn.Module):
    """A function with its settings, which are the module's attributes."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        for name, value in settings.items():
            setattr(self, name, value)
        self._names = tuple(settings)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


class MappingModule(Module):
    """A mapping as a module; the arguments are those of its function."""

    function: ClassVar[Callable[..., Tensor]]

    def forward(self, X: Tensor) -> Tensor:
        return type(self).function(X, **self.settings())


class Sparsemax(MappingModule):
    """`sparsemax` as a module.

    >>> import torch
    >>> Sparsemax(dim=0)(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.6000, 0.4000, 0.0000, 0.0000])
    """

    function = staticmethod(sparsemax)

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


class SparsemaxBisect(MappingModule):
    """`sparsemax_bisect` as a module.

    >>> import torch
    >>> SparsemaxBisect(dim=0)(torch.tensor([[1.0, 0.8], [0.1, 3.0]]))
    tensor([[0.9500, 0.0000],
            [0.0500, 1.0000]])
    """

    function = staticmethod(sparsemax_bisect)

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim=dim, n_iter=n_iter)


class Entmax15(MappingModule):
    """`entmax15` as a module.

    >>> import torch
    >>> Entmax15()(torch.tensor([2.0, 1.0, 0.1, -1.0]))
    tensor([0.8307, 0.1693, 0.0000, 0.0000])
    """

    function = staticmethod(entmax15)

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


class EntmaxBisect(MappingModule):
    """`entmax_bisect` as a module; `alpha` may be an `nn.Parameter`.

    >>> import torch
    >>> layer = EntmaxBisect(torch.nn.Parameter(torch.tensor(1.25)))
    >>> layer(torch.tensor([2.0, 1.0, 0.1, -1.0])).detach()
    tensor([0.7442, 0.2123, 0.0424, 0.0010])
    >>> [name for name, _ in layer.named_parameters()]
    ['alpha']
    """

    function = staticmethod(entmax_bisect)

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


class NormmaxBisect(MappingModule):
    """`normmax_bisect` as a module; `alpha` may be an `nn.Parameter`.

    >>> import torch
    >>> NormmaxBisect(alpha=2)(torch.tensor([1.0, 0.8, 0.1, -1.0]))
    tensor([0.5714, 0.4286, 0.0000, 0.0000])
    """

    function = staticmethod(normmax_bisect)

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


class BudgetBisect(MappingModule):
    """`budget_bisect` as a module; `budget` may be an `nn.Parameter`.

    >>> import torch
    >>> BudgetBisect(budget=2)(torch.tensor([2.0, 1.0, 0.6, -1.0]))
    tensor([1.0000, 0.7000, 0.3000, 0.0000])
    """

    function = staticmethod(budget_bisect)

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__(budget=budget, dim=dim, n_iter=n_iter)
