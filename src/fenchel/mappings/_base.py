"""What every mapping is: the abstract class, the registry, and all that follows from a solution
and its Jacobian: the mapping along any dimension, its value, its support and its loss."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .. import _checks
from . import _autograd

_REGISTRY: dict[str, type[AbstractMapping]] = {}


class Support(NamedTuple):
    """The nonzeros of a solution, largest first, padded with zeros to the widest row."""

    indices: Tensor
    values: Tensor
    sizes: Tensor


@dataclass(frozen=True, eq=False)
class AbstractMapping(abc.ABC):
    """ŷ(θ) = argmax over y in C of <θ, y> − γΩ(y), from which all else is derived.

    A mapping is a frozen dataclass that states `name`, `solve`, `jvp`, `omega` and `examples`, all
    on the last dimension and for γ = 1; a subclass with a `name` is registered under it.

    Args:
        gamma: γ > 0, the strength of the regularizer; a tensor holds one per row (it broadcasts
            against the scores, with size 1 along `dim`) and receives a gradient.
    """

    name: ClassVar[str]
    parameter: ClassVar[str | None] = None
    """The field that may be a tensor and receive a gradient, besides gamma."""
    reads_ties: ClassVar[bool] = False
    """Whether the Jacobian depends on which entries are equal, which half precision would blur."""
    takes_half: ClassVar[bool] = False
    """Whether `solve` and `fast_jvp` take half precision too, and round only their results."""
    has_state: ClassVar[bool] = False
    """Whether `solve_state` and `gradient` are there, so that a loss need not keep y."""
    fixed_steps: ClassVar[bool] = True
    """Whether `solve` can be written in a fixed number of operations, as ONNX needs."""
    total: ClassVar[float | None] = 1.0
    """What a solution sums to, where that is one number for all."""

    gamma: float | Tensor = field(default=1.0, kw_only=True)

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            return
        other = _REGISTRY.get(cls.name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise ValueError(f"a mapping named {cls.name!r} is already registered: {other!r}.")
        _REGISTRY[cls.name] = cls

    @property
    def __name__(self) -> str:  # type: ignore[override]
        """What torch.vmap calls this function; torch.compile cannot trace a dataclass's repr."""
        return self.name

    def __post_init__(self) -> None:
        _checks.real("gamma", self.gamma, above=0)

    @abc.abstractmethod
    def solve(self, scores: Tensor) -> Tensor:
        """The solution of rows (..., d) of float32 or float64, without autograd."""

    @abc.abstractmethod
    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        """The Jacobian at the solution y times v, in differentiable torch operations.

        The Jacobian of a gradient is symmetric, so this serves forward and backward alike.
        """

    @abc.abstractmethod
    def omega(self, y: Tensor) -> Tensor:
        """Ω(y) of rows (..., d), shape (...), in differentiable torch operations."""

    @classmethod
    @abc.abstractmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        """A few instances that exercise every branch; tests and benchmarks run over them."""

    def fast_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        """The same as `jvp` by a kernel, where nothing needs its derivative."""
        return self.jvp(y, v)

    def parameter_jvp(self, y: Tensor) -> Tensor:
        """∂ŷ/∂parameter at the solution y, (..., d)."""
        raise NotImplementedError(f"{self.name} has no tensor parameter.")

    def parameter_omega(self, y: Tensor) -> Tensor:
        """∂Ω/∂parameter at y, (...)."""
        raise NotImplementedError(f"{self.name} has no tensor parameter.")

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        """τ of rows (..., d) with solution y, shape (...)."""
        raise NotImplementedError(f"{self.name} has no threshold.")

    def kept_omega(self, y: Tensor, scores: Tensor) -> Tensor:
        """Ω of what is left of y (..., d) when the entries with scores −inf are deleted."""
        return self.omega(y)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        """Ω of the vertex at each target (..., 1) when entries with scores −inf are deleted."""
        return 0.0

    def check_width(self, d: int) -> None:  # noqa: B027  most mappings take rows of any length
        """Raises if a row of d entries has no solution."""

    def solve_state(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max_Ω of rows (..., d), shape (...), and a few numbers per row that stand for y."""
        raise NotImplementedError(f"{self.name} keeps its solutions.")

    def gradient(
        self, scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, inplace: bool
    ) -> Tensor:
        """weights (..., 1) times y less one at the target (..., 1), y from the state; over the
        scores if `inplace`."""
        raise NotImplementedError(f"{self.name} keeps its solutions.")

    def support_from(
        self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, most: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The nonzeros of y less the target's vertex, for rows (n, d): columns and values,
        (n, 1 + most), and their numbers, (n,); see `ops.entmax.reference.support_of`."""
        raise NotImplementedError(f"{self.name} keeps its solutions.")

    def solve_max(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """max_Ω of rows (..., d), shape (...), and the solution."""
        y = self.solve(scores)
        score = torch.where(y == 0, 0.0, scores * y).sum(-1)
        value = score - self.kept_omega(y, scores)
        top = scores.amax(-1)
        return torch.where(top.isinf(), top, value), y

    def rounded(self, scores: Tensor) -> Tensor:
        """The solution in the scores' own type, found in at least float32."""
        if scores.dtype in _checks.HALF and not self.takes_half:
            return self.solve(scores.float()).to(scores.dtype)
        return self.solve(scores)

    def at(self, parameter: Tensor | None) -> AbstractMapping:
        """This mapping with another value of its parameter, one per row (..., 1)."""
        if parameter is None or self.parameter is None:
            return self
        return replace(self, gamma=1.0, **{self.parameter: parameter})

    def __call__(self, scores: Tensor, dim: int = -1) -> Tensor:
        """ŷ(scores) along `dim`.

        Args:
            scores: floating point, any shape; −inf deletes an entry.
            dim: the dimension that is mapped.
        Returns:
            A tensor like `scores`. A row that is all −inf gives zeros; NaN stays in its row; +inf
            entries share the mass.
        Raises:
            TypeError, ValueError: for input of the wrong kind, dimension or size.
        """
        rows, parameter, dim = self._rows(scores, dim)
        y = _autograd.solution(rows, parameter, self)
        if y.dtype != scores.dtype:
            y = y.to(self._result_type(scores))
        return y if dim == y.ndim - 1 else y.movedim(y.ndim - 1, dim).contiguous()

    def max(self, scores: Tensor, dim: int = -1) -> Tensor:
        """max_Ω(scores) = max over y in C of <scores, y> − γΩ(y) along `dim`; its gradient is ŷ."""
        return self._max(scores, None, dim)

    def tau(self, scores: Tensor, dim: int = -1) -> Tensor:
        """The threshold of scores/γ along `dim`: what is below it gets zero.

        Raises:
            NotImplementedError: for a mapping that has none.
        """
        rows, parameter, dim = self._rows(scores, dim)
        plain = self.at(parameter)
        return plain.threshold(rows, replace(plain, gamma=1.0)(rows))

    def support(self, scores: Tensor, dim: int = -1) -> Support:
        """The nonzeros of ŷ(scores) along `dim`.

        Returns:
            indices and values, whose size along `dim` is that of the widest support, largest
            first; unused places hold the value zero at an index outside the support. sizes, the
            number of nonzeros of each row. Gradients flow through values.
        """
        y = self(scores, dim).movedim(dim, -1)
        sizes = (y > 0).sum(-1)
        width = int(sizes.max()) if sizes.numel() else 0
        values, indices = y.topk(width, dim=-1)
        return Support(indices.movedim(-1, dim), values.movedim(-1, dim), sizes)

    def loss(
        self,
        scores: Tensor,
        target: Tensor,
        dim: int = -1,
        reduction: str = "mean",
        ignore_index: int = -100,
        inplace: bool = False,
    ) -> Tensor:
        """The Fenchel-Young loss; see `fenchel.fenchel_young_loss`."""
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        _checks.dense_floats("scores", scores)
        if inplace:
            _checks.overwritable("scores", scores)
        dim = _checks.dimension("scores", scores.shape, dim)
        if not _checks.target(target, scores, dim, ignore_index):
            losses = self._distribution_loss(scores, target, dim)
            return losses if reduction == "none" else getattr(losses, reduction)()
        if self.total != 1.0:
            raise ValueError(
                f"`target` must be floating point for {self.name}, whose solutions do not sum to "
                "one; got class indices."
            )
        kept = target != ignore_index
        classes = torch.where(kept, target, 0).to(torch.int64)
        losses = self._max(scores, classes, dim, inplace) + self._vertex(scores, classes, dim)
        losses = torch.where(kept, losses, 0.0)
        if reduction == "none":
            return losses
        return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()

    def _vertex(self, scores: Tensor, target: Tensor, dim: int) -> float | Tensor:
        """γΩ of each target's vertex, among the classes that are not deleted."""
        omega = self.vertex_omega(target.unsqueeze(-1), scores.movedim(dim, -1))
        if isinstance(omega, Tensor):
            omega = omega.to(scores.dtype)
        return self._gamma(omega, scores, dim)

    def _distribution_loss(self, scores: Tensor, target: Tensor, dim: int) -> Tensor:
        rows, parameter, _ = self._rows(target, dim, scaled=False)
        omega = self.at(parameter).kept_omega(rows, scores.movedim(dim, -1))
        omega = self._gamma(omega, target, dim)
        score = torch.where(target == 0, 0.0, target * scores).sum(dim)
        return self.max(scores, dim) + omega - score

    def _max(
        self, scores: Tensor, target: Tensor | None, dim: int, inplace: bool = False
    ) -> Tensor:
        rows, parameter, dim = self._rows(scores, dim)
        if target is not None:
            target = target.unsqueeze(-1)
        value = _autograd.value(rows, parameter, target, self, inplace)
        value = self._gamma(value, scores, dim)
        return value.to(self._result_type(scores))

    def _gamma(self, value: Any, scores: Tensor, dim: int) -> Any:
        """A value, one per row (...) of the scores, times γ."""
        if isinstance(self.gamma, Tensor):
            return value * _checks.per_row("gamma", self.gamma, scores.shape, dim).squeeze(-1)
        return value if self.gamma == 1.0 else value * self.gamma

    @staticmethod
    def _result_type(scores: Tensor) -> torch.dtype:
        """The scores' own type; under autocast on an accelerator float32, as torch.softmax does."""
        device = scores.device.type
        if scores.dtype in _checks.HALF and device != "cpu" and torch.is_autocast_enabled(device):
            return torch.float32
        return scores.dtype

    def _rows(
        self, scores: Tensor, dim: int, scaled: bool = True
    ) -> tuple[Tensor, Tensor | None, int]:
        """Checked scores/γ with `dim` last, the parameter as one value per row, and `dim` ≥ 0."""
        _checks.dense_floats("scores", scores)
        dim = _checks.dimension("scores", scores.shape, dim)
        self.check_width(scores.shape[dim])
        unit = not isinstance(self.gamma, Tensor) and self.gamma == 1.0
        rows = scores
        if scores.dtype in _checks.HALF:
            exact = self.reads_ties or not unit
            rows = scores.to(torch.float32 if exact else self._result_type(scores))
        if scaled and not unit:
            if isinstance(self.gamma, Tensor):
                _checks.per_row("gamma", self.gamma, scores.shape, dim)
            rows = rows / self.gamma
        if dim != rows.ndim - 1:
            rows = rows.movedim(dim, rows.ndim - 1)
        value = getattr(self, self.parameter) if self.parameter else None
        if isinstance(value, Tensor):
            return rows, _checks.per_row(str(self.parameter), value, scores.shape, dim), dim
        return rows, None, dim


def get(name: str, **options: Any) -> AbstractMapping:
    """The registered mapping of that name, with its options.

    >>> get("entmax", alpha=1.25).name
    'entmax'
    """
    if name not in _REGISTRY:
        raise ValueError(f"`name` must be one of {', '.join(names())}, got {name!r}.")
    mapping = _REGISTRY[name]
    known = list(inspect.signature(mapping).parameters)
    for option in options:
        if option not in known:
            raise TypeError(f"{name} has no option `{option}`; it takes {', '.join(known)}.")
    return mapping(**options)


def names() -> list[str]:
    """The names of all registered mappings.

    >>> "sparsemax" in names()
    True
    """
    return sorted(_REGISTRY)


def examples() -> list[AbstractMapping]:
    """The examples of all registered mappings, over which tests and benchmarks run.

    >>> {example.name for example in examples()} == set(names())
    True
    """
    return [example for name in names() for example in _REGISTRY[name].examples()]
