"""What a mapping may have beyond its solution: each class here is one such thing to inherit."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor


class HasKernels:
    """Kernels: `solve` and `kernel_jvp` take half precision too, and round only their results."""

    def kernel_solve(self, scores: Tensor) -> Tensor:
        """The same as `solve`, in an eager call."""
        return self.solve(scores)  # type: ignore[attr-defined]

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        """The same as `jvp`, where nothing needs its derivative."""
        raise NotImplementedError


class HasParameter:
    """A field besides gamma that may be a tensor and receives a gradient."""

    parameter: ClassVar[str]
    """The name of the field."""

    def parameter_jvp(self, y: Tensor) -> Tensor:
        """∂ŷ/∂parameter at the solution y, (..., d), in differentiable torch operations."""
        raise NotImplementedError

    def parameter_vjp(self, y: Tensor, grad: Tensor) -> Tensor:
        """<grad, ∂ŷ/∂parameter> at the solution y, (..., 1)."""
        return (grad * self.parameter_jvp(y)).sum(-1, keepdim=True)

    def parameter_omega(self, y: Tensor) -> Tensor:
        """∂Ω/∂parameter at y, (...), in differentiable torch operations."""
        raise NotImplementedError


class HasThreshold:
    """A threshold τ: what is below it gets zero."""

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        """τ of rows (..., d) with solution y, shape (...)."""
        raise NotImplementedError


class HasTerms:
    """Terms: Ω(y) = Σ f(yᵢ) is a sum over the entries, one function of each."""


class HasState:
    """A state: a few numbers per row from which y can be computed again, so that a loss need not
    keep y. Ω is zero at the vertices, up to the constant that `solve_max` subtracts."""

    def solve_state(self, scores: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """max_Ω as `solve_max` gives it, and the states."""
        raise NotImplementedError

    def class_losses(
        self, scores: Tensor, target: Tensor, ignore_index: int | None
    ) -> tuple[Tensor, Tensor]:
        """The losses of rows (..., d) for classes (...), in at least float32, and the states. A row
        whose target is `ignore_index` has the loss zero, and a state that gives a zero gradient."""
        raise NotImplementedError

    def gradient(
        self, scores: Tensor, state: Tensor, target: Tensor | None, weights: Tensor, inplace: bool
    ) -> Tensor:
        """weights (..., 1) times y less one at the target (..., 1), y from the state; over the
        scores if `inplace`."""
        raise NotImplementedError

    def support_from(
        self, scores: Tensor, state: Tensor, target: Tensor, weights: Tensor, max_width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The nonzeros of y less the target's vertex, for rows (n, d): columns and values,
        (n, 1 + max_width), and their numbers, (n,); see `ops.entmax.reference.support_of`."""
        raise NotImplementedError


class HasClosure:
    """An Ω that is made of tensors which are no fields, and may need derivatives in them."""

    def is_learned(self, scores: Tensor) -> bool:
        """Whether these derivatives may be asked for."""
        raise NotImplementedError

    def learned_solution(self, scores: Tensor) -> Tensor:
        """The solution of rows (..., d) with all derivatives."""
        raise NotImplementedError

    def learned_value(self, scores: Tensor, target: Tensor | None) -> Tensor:
        """max_Ω of rows (..., d), less the score of a target (..., 1) if given, shape (...), in at
        least float32, with all derivatives."""
        raise NotImplementedError


class HasGroups:
    """Groups: the Jacobian depends on which entries are equal. Half precision would make others
    equal, so rows stay in float32 until the end. ONNX cannot hold the steps that find groups."""
