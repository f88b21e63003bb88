"""What a mapping may have beyond its solution: each class here is one such thing to inherit."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor


class HasKernels:
    """Kernels: `solve` and `kernel_jvp` take half precision too, and round only their results.

    >>> from fenchel import Sparsemax
    >>> mapping, scores = Sparsemax(), torch.tensor([1.1, 0.93, 0.37], dtype=torch.float16)
    >>> isinstance(mapping, HasKernels)
    True
    >>> y = mapping.kernel_solve(scores)
    >>> mapping.kernel_jvp(y, torch.tensor([1.0, 0.0, 0.0]).half())
    tensor([ 0.5000, -0.5000,  0.0000], dtype=torch.float16)
    """

    def kernel_solve(self, scores: Tensor) -> Tensor:
        """The same as `solve`, in an eager call."""
        return self.solve(scores)  # type: ignore[attr-defined]

    def kernel_jvp(self, y: Tensor, v: Tensor) -> Tensor:
        """The same as `jvp`, where nothing needs its derivative."""
        raise NotImplementedError


class HasParameter:
    """A field besides gamma that may be a tensor and receives a gradient.

    >>> from fenchel import Entmax
    >>> mapping = Entmax(1.5)
    >>> isinstance(mapping, HasParameter), mapping.parameter
    (True, 'alpha')
    >>> mapping.parameter_jvp(mapping(torch.tensor([1.1, 0.93, 0.37])))
    tensor([ 0.1776,  0.0694, -0.2470])
    """

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
    """A threshold τ: what is below it gets zero.

    >>> from fenchel import Sparsemax
    >>> mapping, scores = Sparsemax(), torch.tensor([1.1, 0.93, 0.37])
    >>> isinstance(mapping, HasThreshold)
    True
    >>> mapping.threshold(scores, mapping(scores))
    tensor(0.5150)
    """

    def threshold(self, scores: Tensor, y: Tensor) -> Tensor:
        """τ of rows (..., d) with solution y, shape (...)."""
        raise NotImplementedError


class HasTerms:
    """Terms: Ω(y) = Σ f(yᵢ) is a sum over the entries, one function of each.

    >>> from fenchel import Entmax, Normmax
    >>> isinstance(Entmax(1.5), HasTerms), isinstance(Normmax(), HasTerms)
    (True, False)
    """


class HasState:
    """A state: a few numbers per row from which y can be computed again, so that a loss need not
    keep y. Ω is zero at the vertices, up to the constant that `solve_max` subtracts.

    >>> from fenchel import Sparsemax
    >>> mapping, scores = Sparsemax(), torch.tensor([[1.1, 0.93, 0.37]])
    >>> isinstance(mapping, HasState)
    True
    >>> value, state = mapping.solve_state(scores)
    >>> mapping.gradient(scores, state, None, torch.ones(1, 1), inplace=False)  # y itself
    tensor([[0.5850, 0.4150, 0.0000]])
    """

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
    """An Ω that is made of tensors which are no fields, and may need derivatives in them.

    >>> from fenchel import General
    >>> weight = torch.tensor(0.5, requires_grad=True)
    >>> mapping = General(lambda y: weight.to(y.dtype) * (y**2).sum(-1))
    >>> isinstance(mapping, HasClosure), mapping.is_learned(torch.zeros(3))
    (True, True)
    """

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
    equal, so rows stay in float32 until the end. ONNX cannot hold the steps that find groups.

    >>> from fenchel import Fusedmax
    >>> mapping = Fusedmax(0.1)
    >>> isinstance(mapping, HasGroups)
    True
    >>> mapping(torch.tensor([1.1, 0.93, 0.37]))
    tensor([0.5333, 0.4633, 0.0033])
    """
