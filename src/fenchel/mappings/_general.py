"""General: any differentiable, strongly convex regularizer, given as a function."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from .. import _checks
from ..ops.entmax import entmax as project
from ._base import AbstractMapping

ON_FAILURE = ("raise", "warn")
_handles = itertools.count()
_by_handle: weakref.WeakValueDictionary[int, General] = weakref.WeakValueDictionary()


class Status(NamedTuple):
    """How a solve ended: per row, whether it converged, after how many steps, and how close.

    residual is the largest entry of |y − P(y − ∇f(y))|, which is zero at the solution.
    """

    converged: Tensor
    iterations: Tensor
    residual: Tensor


class ConvergenceError(RuntimeError):
    """The solver met its iteration limit."""


class ConvergenceWarning(UserWarning):
    """The solver met its iteration limit."""


def _negative_gini(y: Tensor) -> Tensor:
    return (y * y).sum(-1) / 2


def _quartic(y: Tensor) -> Tensor:
    place = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return (y * y).sum(-1) / 2 + (y**4).sum(-1) + (y * place.cos()).sum(-1) ** 2


@final
@dataclass(frozen=True, eq=False)
class General(AbstractMapping):
    """argmax over the simplex of <θ, y> − γΩ(y) for an Ω of yours.

    Solved by accelerated projected gradient with backtracking and restarts; the Jacobian follows
    by implicit differentiation on the support, with the Hessian of Ω.

    Args:
        omega: maps rows (..., d) to (...), written in torch operations that torch.func can
            transform; differentiable on the whole simplex, boundary included, and strongly convex.
        tol: what the residual must reach; the solver works in float64.
        max_iter: the limit on steps.
        on_failure: "raise" a ConvergenceError or "warn" with a ConvergenceWarning when a row has
            not converged within the limit.
        gamma: the strength of the regularizer.
    """

    name: ClassVar[str] = "general"

    omega: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    tol: float = 1e-10
    max_iter: int = 10_000
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.omega):
            raise TypeError(f"`omega` must be a function, got {_checks.kind(self.omega)}.")
        _checks.number("tol", self.tol, above=0)
        _checks.number("max_iter", self.max_iter, least=1)
        _checks.choice("on_failure", self.on_failure, ON_FAILURE)
        object.__setattr__(self, "_handle", next(_handles))
        _by_handle[self._handle] = self  # type: ignore[attr-defined]

    def solve(self, scores: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # one opaque operator instead of a loop to trace
            return torch.ops.fenchel.general(scores, self._handle)  # type: ignore[attr-defined]
        return self.solve_with_status(scores)[0]

    def solve_with_status(self, scores: Tensor) -> tuple[Tensor, Status]:
        """The solution of rows (..., d) for γ = 1, without autograd, and how the solver ended."""
        # A new thread starts afresh: ∇Ω needs autograd, which the caller's state may forbid (inside
        # an operator, under a torch.func transform or saved-tensor hooks).
        arguments = (self.omega, scores.detach().double(), self.tol, self.max_iter)
        with ThreadPoolExecutor(1) as thread:
            y, status = thread.submit(_accelerated, *arguments).result()
        missed = int((~status.converged).sum())
        if missed:
            message = (
                f"{missed} of {status.converged.numel()} rows did not converge in `max_iter` = "
                f"{self.max_iter} steps: residual {status.residual.max():.1e}; raise `max_iter`, "
                "raise `tol`, or check that `omega` is smooth and strongly convex."
            )
            if self.on_failure == "raise":
                raise ConvergenceError(message)
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        return y.to(scores.dtype), status

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        # Of an unknown Ω no more is known than its values at the vertices themselves.
        vertices = torch.zeros(scores.shape, dtype=torch.float64, device=scores.device)
        return self.omega(vertices.scatter(-1, target, 1.0))

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        # On the support H dy + dτ 1 = v and Σ dy = 0; elsewhere dy = 0.
        d = y.shape[-1]
        rows = y.reshape(-1, d)
        support = rows > 0
        inside = support.unsqueeze(-1) & support.unsqueeze(-2)
        hessian = torch.func.vmap(torch.func.jacrev(torch.func.grad(self.omega)))(rows)
        block = torch.where(inside, hessian, torch.eye(d, dtype=y.dtype, device=y.device))
        right = torch.where(support, v.reshape(-1, d), 0.0)
        ones = support.to(y.dtype)
        solved = torch.cholesky_solve(torch.stack([right, ones], -1), torch.linalg.cholesky(block))
        along, flat = solved.unbind(-1)
        mass = flat.sum(-1, keepdim=True)
        shift = along.sum(-1, keepdim=True) / torch.where(mass > 0, mass, 1.0)
        return (along - shift * flat).reshape(v.shape)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        yield cls(_negative_gini)
        yield cls(_quartic, gamma=0.5)


def _accelerated(
    omega: Callable[[Tensor], Tensor], scores: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Status]:
    """Minimizes f(y) = Ω(y) − <scores, y> over the simplex, each row with its own step size."""
    d = scores.shape[-1]
    x = scores.reshape(-1, d)
    slope_of = torch.func.grad(lambda y: omega(y).sum())
    # NaN, nothing but −inf, or +inf: the projection knows the answer.
    top = x.amax(-1, keepdim=True)
    done = ~top.squeeze(-1).isfinite()
    x = torch.where(top.isfinite(), x - top, x)
    deleted = x == -torch.inf
    y = torch.where(done.unsqueeze(-1), project(x, 2.0), project(torch.where(deleted, x, 0.0), 2.0))
    z, momentum, step = y, x.new_ones(len(x)), x.new_ones(len(x))
    iterations = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    residual = torch.where(done, 0.0, torch.inf)
    for _ in range(max_iter):
        if bool(done.all()):
            break
        slope = slope_of(z)
        while True:
            new = project(z - step.unsqueeze(-1) * (slope - x), 2.0)
            new_slope, move = slope_of(new), new - z
            # Convexity bounds the error of the linear model by <∇Ω(new) − ∇Ω(z), new − z>.
            bend, length = ((new_slope - slope) * move).sum(-1), (move * move).sum(-1)
            long = (2 * step * bend > length) & (step > 1e-20) & ~done
            if not bool(long.any()):
                break
            step = torch.where(long, step / 2, step)
        restart = ((z - new) * (new - y)).sum(-1) > 0
        grown = (1 + torch.sqrt(1 + 4 * momentum**2)) / 2
        weight = torch.where(restart, 0.0, (momentum - 1) / grown).unsqueeze(-1)
        momentum = torch.where(restart, 1.0, grown)
        kept = done.unsqueeze(-1)
        y, z = torch.where(kept, y, new), torch.where(kept, z, new + weight * (new - y))
        gap = (new - project(new - (new_slope - x), 2.0)).abs().amax(-1)
        residual = torch.where(done, residual, gap)
        iterations += ~done
        done = done | (residual <= tol)
        step = step * 1.05
    shape = scores.shape[:-1]
    status = Status(done.view(shape), iterations.view(shape), residual.view(shape))
    return y.view(scores.shape), status


_library = torch.library.Library("fenchel", "FRAGMENT")
_library.define("general(Tensor scores, int handle) -> Tensor")


def _solve_by_handle(scores: Tensor, handle: int) -> Tensor:
    return _by_handle[handle].solve_with_status(scores)[0]


def _fake(scores: Tensor, handle: int) -> Any:
    return torch.empty_like(scores)


_library.impl("general", _solve_by_handle, "CompositeExplicitAutograd")
torch.library.register_fake("fenchel::general", _fake, lib=_library)
