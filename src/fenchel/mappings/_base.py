"""What every mapping is: the abstract class, and all that follows from a solution and its Jacobian:
the mapping along any dimension, its value, its support and its loss."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _checks
from .._registry import Registry
from .._transforms import is_eager
from . import _autograd, _eager, _loss
from ._gamma import divided, multiplied
from ._protocols import HasGroups, HasKernels, HasParameter, HasThreshold

if TYPE_CHECKING:
    from typing_extensions import Self

REGISTRY: Registry[AbstractMapping] = Registry("mapping")
_CACHE: dict[Any, Any] = {}
_CACHE_SIZE = 256
_FLOAT = frozenset((float,))
_DIRECT = frozenset((torch.float32, torch.float64))


class Support(NamedTuple):
    """The nonzeros of a solution, largest first, padded with zeros to the widest row.

    >>> from fenchel import Sparsemax
    >>> support = Sparsemax().support(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    >>> support.indices, support.values
    (tensor([0, 1]), tensor([0.5850, 0.4150]))
    """

    indices: Tensor
    values: Tensor
    sizes: Tensor


class Rows(NamedTuple):
    """Scores as `solve` takes them: (scores − shift)/γ, with the mapped dimension last."""

    scores: Tensor
    parameter: Tensor | None
    """The mapping's own, one per row, (..., 1)."""
    gamma: float | Tensor
    """γ, a number or one per row, (..., 1)."""
    shift: Tensor | None
    """(..., 1), without a gradient; None for none."""
    dim: int
    """Where the mapped dimension was, counted from the front."""

    def scaled(self, value: Any) -> Any:
        """A value per row, (...), times γ."""
        if isinstance(self.gamma, Tensor):
            return multiplied(value, self.gamma.squeeze(-1))
        return value if self.gamma == 1.0 else value * self.gamma


def _finite(anchor: Tensor | None) -> Tensor | None:
    """An anchor of each row, zero where it is not finite."""
    return None if anchor is None else anchor.nan_to_num(0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class AbstractMapping(abc.ABC):
    """ŷ(θ) = argmax over y in C of <θ, y> − γΩ(y), from which all else is derived.

    A mapping is a frozen dataclass that states `name`, `solve`, `jvp`, `omega` and `examples`, all
    on the last dimension and for γ = 1; a subclass with a `name` is registered under it.

    Args:
        gamma: γ > 0, the strength of the regularizer; a tensor holds one per row (it broadcasts
            against the scores, with size 1 along `dim`) and receives a gradient.

    >>> from fenchel import Sparsemax
    >>> scores, mapping = torch.tensor([1.1, 0.93, 0.37]), Sparsemax()
    >>> mapping(scores)
    tensor([0.5850, 0.4150, 0.0000])
    >>> mapping.max(scores), mapping.omega(mapping(scores))
    (tensor(0.7722), tensor(0.2572))
    >>> mapping.loss(scores, torch.tensor(0))
    tensor(0.1722)
    """

    name: ClassVar[str]
    total: ClassVar[float | None] = 1.0
    """What a solution sums to, where that is one number for all."""

    _solver: ClassVar[Any] = None
    """(mapping, scores, dim) → ŷ, or None if the call is not a direct one: the binding's."""
    _class_loss: ClassVar[Any] = None
    """(mapping, scores, target, dim, reduction, ignore_index) → the loss, or None, likewise."""

    gamma: float | Tensor = field(default=1.0, kw_only=True)

    _checked_in_call: ClassVar[tuple[str, ...]] = ("gamma",)
    """The fields that a call checks if they are tensors."""

    def __init_subclass__(cls) -> None:
        REGISTRY.register(cls)
        for name in ("_solver", "_class_loss"):  # of a class whose methods may be overridden here
            if name not in vars(cls):
                setattr(cls, name, None)
        if issubclass(cls, HasParameter) and hasattr(cls, "parameter"):
            cls._checked_in_call = ("gamma", cls.parameter)

    @property
    def __name__(self) -> str:  # type: ignore[override]
        """What torch.vmap calls this function; torch.compile cannot trace a dataclass's repr."""
        return self.name

    def __post_init__(self) -> None:
        self.check_fields()

    def check_fields(self) -> None:
        """Raises if a field has a wrong type or value."""
        _checks.check_real("gamma", self.gamma, above=0)

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

    def kept_omega(self, y: Tensor, scores: Tensor) -> Tensor:
        """Ω of what is left of y (..., d) when the entries with scores −inf are deleted."""
        return self.omega(y)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        """Ω of the vertex at each target (..., 1) when entries with scores −inf are deleted."""
        return 0.0

    def mass(self, scores: Tensor) -> float | Tensor:
        """What the solutions of rows (..., d) sum to, one number or (...)."""
        if self.total is None:
            raise NotImplementedError(f"the solutions of {self.name} have no common sum.")
        return self.total

    def anchor(self, scores: Tensor) -> Tensor | None:
        """The score of each row (..., d) near which its solution is decided, (..., 1); less it the
        row has the same solution. None where solutions have no common sum."""
        return None if self.total is None else scores.amax(-1, keepdim=True)

    def check_width(self, d: int) -> None:  # noqa: B027  most mappings take rows of any length
        """Raises if a row of d entries has no solution."""

    def solve_max(self, scores: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """max_Ω of rows (..., d), less the score of a target (..., 1) if given, shape (...), in at
        least float32; and the solution."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        y = self.solve(scores)
        anchor = self.anchor(scores)
        top = scores.amax(-1) if anchor is None or self.total is None else anchor.squeeze(-1)
        shift = _finite(anchor)
        moved = scores if shift is None else scores - shift
        value = torch.where(y == 0, 0.0, moved * y).sum(-1) - self.kept_omega(y, scores)
        if target is None:
            rest = 0.0 if shift is None else shift.squeeze(-1) * self.mass(scores)
            return torch.where(top.isinf(), top, value + rest), y
        score = scores.gather(-1, target).squeeze(-1)
        rest = -score if shift is None else shift.squeeze(-1) - score
        return torch.where(top.isinf(), top - score, value + rest), y

    def shift(self, scores: Tensor) -> Tensor | None:
        """What may be subtracted from rows (..., d) before they are divided: their anchors, and
        zero where these are not finite; (..., 1), without a gradient."""
        return _finite(self.anchor(scores.detach()))

    def rounded(self, scores: Tensor) -> Tensor:
        """The solution in the scores' own type, found in at least float32."""
        if scores.dtype in _checks.HALF and not isinstance(self, HasKernels):
            return self.solve(scores.float()).to(scores.dtype)
        return self.solve(scores)

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """A mapping with these fields, all of them, for one call: kept from an earlier one if they
        are numbers, and checked in that call if one is a tensor."""
        if torch.compiler.is_compiling():
            return cls(**fields)
        values = tuple(fields.values())
        if _FLOAT.issuperset(map(type, values)):
            found = _CACHE.get((cls, values))
            if found is None:
                found = cls(**fields)
                if len(_CACHE) < _CACHE_SIZE:
                    _CACHE[cls, values] = found
            return found
        for name, value in fields.items():
            if type(value) is float or (name in cls._checked_in_call and isinstance(value, Tensor)):
                continue
            return cls(**fields)
        return cls.unchecked(**fields)

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """A mapping with these fields, all of them, whose values are checked when it is called."""
        mapping = object.__new__(cls)
        vars(mapping).update(fields)
        return mapping

    def at(self, parameter: Tensor | None) -> Self:
        """This mapping with γ = 1 and another value of its parameter, one per row (..., 1)."""
        if parameter is None or not isinstance(self, HasParameter):
            return self
        changed = {"gamma": 1.0, self.parameter: parameter}
        if torch.compiler.is_compiling():  # PyTorch 2.8 traces no `__dict__`
            kept = {field.name: getattr(self, field.name) for field in fields(self)}
            return type(self)(**{**kept, **changed})
        return self.unchecked(**{**self.__dict__, **changed})

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
        if self._solver is not None and not torch.compiler.is_compiling():
            y = self._solver(self, scores, dim)
            if y is not None:
                return y
        if self.is_direct(scores, dim):
            return _eager.eager_solution(scores, self)
        rows = self.rows(scores, dim)
        y = _autograd.solution(rows.scores, rows.parameter, self)
        if y.dtype != scores.dtype:
            y = y.to(self._result_type(scores))
        return y if rows.dim == y.ndim - 1 else y.movedim(y.ndim - 1, rows.dim).contiguous()

    def max(self, scores: Tensor, dim: int = -1) -> Tensor:
        """max_Ω(scores) = max over y in C of <scores, y> − γΩ(y) along `dim`; its gradient is ŷ."""
        rows = self.rows(scores, dim)
        value = rows.scaled(_autograd.value(rows.scores, rows.parameter, None, self))
        if rows.shift is not None:
            value = value + rows.shift.squeeze(-1) * self.at(rows.parameter).mass(rows.scores)
        return value.to(self._result_type(scores))

    def tau(self, scores: Tensor, dim: int = -1) -> Tensor:
        """The threshold τ of scores/γ along `dim`: what is below it gets zero. For entmax it is
        that of (α − 1) scores/γ, as in ŷ = [(α − 1) scores/γ − τ]₊^(1/(α−1)).

        Raises:
            NotImplementedError: for a mapping that has none.
        """
        if not isinstance(self, HasThreshold):
            raise NotImplementedError(f"{self.name} has no threshold.")
        rows = self.rows(scores, dim)
        mapping = self.at(rows.parameter)
        y = _autograd.solution(rows.scores, rows.parameter, self)
        if rows.shift is None:
            return mapping.threshold(rows.scores, y)
        x, gamma = scores.movedim(dim, -1).to(y.dtype), rows.gamma
        shifted_back = divided(x, gamma) if isinstance(gamma, Tensor) else x / gamma
        return mapping.threshold(shifted_back, y)

    def support(self, scores: Tensor, dim: int = -1) -> Support:
        """The nonzeros of ŷ(scores) along `dim`.

        Returns:
            indices and values, whose size along `dim` is that of the widest support, largest
            first; unused places hold the value zero at an index outside the support. sizes, the
            number of nonzeros of each row. Gradients flow through values. A row with NaN has NaN
            at every index.
        """
        y = self(scores, dim).movedim(dim, -1)
        sizes = (y != 0).sum(-1)
        width = int(sizes.max()) if sizes.numel() else 0
        values, indices = y.topk(width, dim=-1)
        return Support(indices.movedim(-1, dim), values.movedim(-1, dim), sizes)

    def loss(
        self,
        scores: Tensor,
        target: Tensor,
        dim: int = -1,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        inplace: bool = False,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The Fenchel-Young loss; see `fenchel.fenchel_young_loss`."""
        return _loss.loss(
            self, scores, target, dim, reduction, ignore_index, inplace, label_smoothing
        )

    def is_direct(self, scores: Tensor, dim: int) -> bool:
        """Whether scores are the rows themselves: an eager call on the last dimension in float32 or
        float64, with γ = 1 and a parameter that is a number or fits the rows."""
        gamma = self.gamma
        if not (
            type(scores) in (Tensor, Parameter)
            and is_eager(scores)
            and type(gamma) is float
            and gamma == 1.0
            and scores.dtype in _DIRECT
            and type(dim) is int
            and scores.layout is torch.strided
            and not scores.is_nested
        ):
            return False
        shape = scores.shape
        if not shape or shape[-1] == 0 or dim not in (-1, len(shape) - 1):
            return False
        self.check_width(shape[-1])
        if isinstance(self, HasParameter):
            value = self.__dict__[self.parameter]
            if isinstance(value, Tensor):
                if (value.ndim and value.shape != (*shape[:-1], 1)) or value.dtype not in _DIRECT:
                    return False
                if value.device != scores.device or not is_eager(value):
                    return False
                self.check_fields()
        return True

    @staticmethod
    def _result_type(scores: Tensor) -> torch.dtype:
        """The scores' own type; under autocast on an accelerator float32, as torch.softmax does."""
        device = scores.device.type
        if scores.dtype in _checks.HALF and device != "cpu" and torch.is_autocast_enabled(device):
            return torch.float32
        return scores.dtype

    def rows(self, scores: Tensor, dim: int, shifted: bool = False) -> Rows:
        """Checked scores with `dim` last, divided by γ, and shifted before, if γ is not one or if
        asked to."""
        self.check_fields()
        _checks.check_float_tensor("scores", scores)
        dim = _checks.check_dim("scores", scores.shape, dim)
        self.check_width(scores.shape[dim])
        unit = not isinstance(self.gamma, Tensor) and self.gamma == 1.0
        x = scores
        if scores.dtype in _checks.HALF:
            exact = isinstance(self, HasGroups) or shifted or not unit
            x = scores.to(torch.float32 if exact else self._result_type(scores))
        if dim != x.ndim - 1:
            x = x.movedim(dim, x.ndim - 1)
        parameter = None
        if isinstance(self, HasParameter):
            parameter = self._per_row(self.parameter, scores, dim)
        if unit and not shifted:
            return Rows(x, parameter, 1.0, None, dim)
        # Scores that are large beside their differences lose these to a division, but not to a
        # subtraction.
        shift = self.at(parameter).shift(x)
        x = x if shift is None else x - shift
        if unit:
            return Rows(x, parameter, 1.0, shift, dim)
        gamma = self._per_row("gamma", scores, dim)
        if gamma is None:
            if self.gamma < torch.finfo(x.dtype).tiny:  # zero in that type
                quotient = (x.to(torch.float64) / self.gamma).to(x.dtype)
            else:
                quotient = x / self.gamma
            return Rows(quotient, parameter, self.gamma, shift, dim)
        # Where its values are not looked at, in a graph or on a GPU, they still have a range.
        gamma = torch.where((gamma > 0) & (gamma < torch.inf), gamma, torch.nan)
        return Rows(divided(x, gamma), parameter, gamma, shift, dim)

    def _per_row(self, name: str, scores: Tensor, dim: int) -> Tensor | None:
        """A field of this mapping as one value per row, (..., 1), if it is a tensor."""
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            return None
        return _checks.broadcast_per_row(
            name, _checks.move_beside(name, value, scores), scores.shape, dim
        )
