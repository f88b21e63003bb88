"""General: any differentiable, strongly convex regularizer, given as a function."""

from __future__ import annotations

import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from threading import Event
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _checks
from .._transforms import is_transformed
from ..ops._operator import widest
from . import _autograd, _implicit
from ._base import AbstractMapping
from ._closure import holds_tensors
from ._descent import Status, minimize, unwrap
from ._protocols import HasClosure

ON_FAILURE = ("raise", "warn")
_INSIDE = ("fenchel.", "torch.")
NO_EXPORT = (
    "`General` cannot be exported, since its `omega` is a Python function: export a model with "
    "another mapping, or save its weights and build it again where they are loaded."
)


class ConvergenceError(RuntimeError):
    """The solver met its iteration limit.

    >>> from fenchel import General
    >>> General(lambda y: (y**4).sum(-1), max_iter=2)(torch.tensor([1.0, 0.0]))
    Traceback (most recent call last):
        ...
    fenchel.mappings._general.ConvergenceError: 1 of 1 rows did not converge in `max_iter` = 2 ...
    """


class ConvergenceWarning(UserWarning):
    """The solver met its iteration limit.

    >>> import warnings
    >>> from fenchel import General
    >>> mapping = General(lambda y: (y**4).sum(-1), max_iter=2, on_failure="warn")
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     y = mapping(torch.tensor([1.0, 0.0]))
    >>> found[0].category is ConvergenceWarning
    True
    """


def _negative_gini(y: Tensor) -> Tensor:
    return (y * y).sum(-1) / 2


def _quartic(y: Tensor) -> Tensor:
    place = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
    return (y * y).sum(-1) / 2 + (y**4).sum(-1) + (y * place.cos()).sum(-1) ** 2


@final
@dataclass(frozen=True, eq=False)
class General(AbstractMapping, HasClosure):
    """argmax over the simplex of <θ, y> − γΩ(y) for an Ω of yours.

    Solved by accelerated projected gradient with backtracking and restarts; derivatives follow by
    implicit differentiation on the support, with the Hessian of Ω: in the scores, and in every
    tensor that Ω is made of, as the parameters of a module or what a function closes over.

    Args:
        omega: maps rows (..., d) to (...), each row by itself, in torch operations; differentiable
            on the whole simplex, boundary included, and strongly convex. It is given float64
            (float32 where a device has no more), so cast what it is made of to `y.dtype`.
        tol: what the residual must reach, within what `omega` rounds.
        max_iter: the limit on steps.
        on_failure: "raise" a ConvergenceError or "warn" with a ConvergenceWarning when a row has
            not converged within the limit.
        gamma: the strength of the regularizer.

    It compiles, with a graph break if Ω holds tensors; it cannot be exported.

    >>> mapping = General(lambda y: (y**2).sum(-1) / 2 + (y**4).sum(-1) / 4)
    >>> mapping(torch.tensor([1.1, 0.93, 0.37, -0.4]))
    tensor([0.5485, 0.4515, 0.0000, 0.0000])
    """

    name: ClassVar[str] = "general"

    omega: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    tol: float = 1e-10
    max_iter: int = 10_000
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._register()

    def check_fields(self) -> None:
        super().check_fields()
        if not callable(self.omega):
            raise TypeError(f"`omega` must be a function, got {_checks.type_name(self.omega)}.")
        _checks.check_number("tol", self.tol, above=0)
        _checks.check_number("max_iter", self.max_iter, minimum=1)
        _checks.check_choice("on_failure", self.on_failure, ON_FAILURE)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self._register()

    def _register(self) -> None:
        """A copy, here or in another process, is another mapping: its Ω may change by itself."""
        object.__setattr__(self, "_token", secrets.token_hex(16))
        object.__setattr__(self, "_holds_tensors", holds_tensors(self.omega))
        _by_token[self._token] = self  # type: ignore[attr-defined]

    def solve(self, scores: Tensor) -> Tensor:
        # One opaque operator instead of a loop to trace.
        return torch.ops.fenchel.general(scores, self._token)  # type: ignore[attr-defined]

    def solve_with_status(self, scores: Tensor) -> tuple[Tensor, Status]:
        """The solution of rows (..., d) for γ = 1, without autograd, and how the solver ended."""
        rows = scores.detach().to(widest(scores.device))
        # A new thread starts afresh: ∇Ω needs autograd, which the caller's state may forbid (inside
        # an operator, under a torch.func transform or saved-tensor hooks).
        stream = torch.cuda.current_stream(rows.device) if rows.is_cuda else None
        stop = Event()
        with ThreadPoolExecutor(1) as thread:
            try:
                y, status = thread.submit(self._minimize, rows, stream, stop).result()
            except BaseException:  # Ctrl-C, among others
                stop.set()
                raise
        self._report(status)
        return y.to(scores.dtype), status

    def _minimize(
        self, rows: Tensor, stream: Any = None, stop: Event | None = None
    ) -> tuple[Tensor, Status]:
        def slope(y: Tensor) -> Tensor:
            if stop is not None and stop.is_set():
                raise InterruptedError
            return _implicit.slope(self.omega, y)

        with torch.cuda.stream(stream), torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
            y, status = minimize(slope, rows, self.tol, self.max_iter)
        return y.detach(), status

    def _report(self, status: Status) -> None:
        """Raises or warns if rows did not converge."""
        converged = unwrap(status.converged)
        missed = int((~converged).sum())
        if not missed:
            return
        message = (
            f"{missed} of {converged.numel()} rows did not converge in `max_iter` = "
            f"{self.max_iter} steps: residual {unwrap(status.residual).max():.1e}; raise "
            "`max_iter`, raise `tol`, or check that `omega` is smooth and strongly convex."
        )
        if self.on_failure == "raise":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=_outside())

    def kept_omega(self, y: Tensor, scores: Tensor) -> Tensor:
        return _implicit.values(self.omega, y.to(widest(y.device))).to(y.dtype)

    def vertex_omega(self, target: Tensor, scores: Tensor) -> float | Tensor:
        # Of an unknown Ω no more is known than its values at the vertices themselves.
        vertices = torch.zeros(scores.shape, dtype=widest(scores.device), device=scores.device)
        return _implicit.values(self.omega, vertices.scatter(-1, target, 1.0))

    def jvp(self, y: Tensor, v: Tensor) -> Tensor:
        # On the support H dy + dτ 1 = v and Σ dy = 0; elsewhere dy = 0.
        d, wide = y.shape[-1], widest(y.device)
        support = y > 0
        inside = support.unsqueeze(-1) & support.unsqueeze(-2)
        some = support.any(-1, keepdim=True)
        rows = torch.where(some, y.to(wide), 1 / d)
        eye = torch.eye(d, dtype=wide, device=y.device)
        block = torch.where(inside, _implicit.hessian(self.omega, rows), eye)
        right = torch.where(support, v.to(wide), 0.0)
        ones = support.to(wide)
        factor = _cholesky(block)
        along, flat = torch.cholesky_solve(torch.stack([right, ones], -1), factor).unbind(-1)
        mass = torch.where(some, flat.sum(-1, keepdim=True), 1.0)
        return (along - along.sum(-1, keepdim=True) / mass * flat).to(v.dtype)

    def is_learned(self, scores: Tensor) -> bool:
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined]
        # The flag itself: some releases take the function that returns it for true in any graph.
        if tracing or torch.compiler._is_exporting_flag:
            if torch.compiler.is_compiling():
                torch._dynamo.graph_break(str(NO_EXPORT))  # PyTorch 2.8 hides an error's text
            raise RuntimeError(NO_EXPORT)
        if torch.compiler.is_compiling() and self._holds_tensors:  # type: ignore[attr-defined]
            return True  # a graph might change them before its operator reads them
        if scores.numel() == 0 or not (torch.is_grad_enabled() or is_transformed()):
            return False
        d, wide = scores.shape[-1], widest(scores.device)
        center = torch.full(scores.shape, 1 / d, dtype=wide, device=scores.device)
        return _implicit.needs_gradient(_implicit.values(self.omega, center))

    def learned_solution(self, scores: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            _break_graph()
            solution: Any = torch.compiler.disable(_autograd.solution)
            return solution(scores, None, self)
        solved, finite = self._solved(scores)
        _, y = self._attached(scores, solved, finite, steps=2)
        return torch.where(finite, y, solved).to(scores.dtype)

    def learned_value(self, scores: Tensor, target: Tensor | None) -> Tensor:
        if torch.compiler.is_compiling():
            _break_graph()
            value: Any = torch.compiler.disable(_autograd.value)
            return value(scores, None, target, self)
        solved, finite = self._solved(scores)
        # The objective is stationary at y: its second derivatives take first ones of y.
        x, y = self._attached(scores, solved, finite, steps=1)
        y = _implicit.higher_order_only(y)
        value = (x * y).sum(-1) - _implicit.values(self.omega, y)
        wide = scores.to(value.dtype)
        value = torch.where(finite.squeeze(-1), value, wide.detach().amax(-1))
        if target is not None:
            value = value - wide.gather(-1, target).squeeze(-1)
        return value.to(torch.promote_types(scores.dtype, torch.float32))

    def _solved(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The solution in the widest type, a constant, and which rows have one that is finite in
        its scores, (..., 1)."""
        rows = rows.detach().to(widest(rows.device))
        # Under a transform Ω may be made of tensors that mean nothing outside of it.
        if is_transformed():
            y, status = self._minimize(rows)
            self._report(status)
        else:
            y, _ = self.solve_with_status(rows)
        return y, rows.amax(-1, keepdim=True).isfinite()

    def _attached(
        self, rows: Tensor, solved: Tensor, finite: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Scores and solution with derivatives; what is not finite has none, and is no NaN."""
        x = rows.to(solved.dtype)
        x = torch.where(finite & x.isfinite(), x, 0.0)
        y = torch.where(finite, solved, 1 / rows.shape[-1])
        return x, _implicit.attach_derivatives(self.omega, self.jvp, x, y, steps)

    @classmethod
    def examples(cls) -> Iterator[AbstractMapping]:
        yield cls(_negative_gini)
        yield cls(_quartic, gamma=0.5)


def _outside() -> int:
    """How many frames above its caller the first one is that runs neither this package nor
    PyTorch."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        depth, frame = depth + 1, frame.f_back
    return depth


def _break_graph() -> None:
    torch._dynamo.graph_break("`omega` of a `General` holds tensors, which no graph can follow")


def _cholesky(block: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.linalg.cholesky(block)
    try:
        return torch.linalg.cholesky(block)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise ValueError(
            "`omega` must be strongly convex, but its Hessian on a support is not positive "
            "definite; add a multiple of (y * y).sum(-1)."
        ) from error


# A graph knows a mapping by its token, which no other mapping has in any process. One that was
# traced stays, so that the graph may outlive every other reference to it.
_by_token: weakref.WeakValueDictionary[str, General] = weakref.WeakValueDictionary()
_traced: set[General] = set()
_library = torch.library.Library("fenchel", "FRAGMENT")
_library.define("general(Tensor scores, str token) -> Tensor", tags=torch.Tag.cudagraph_unsafe)


def _solve_by_token(scores: Tensor, token: str) -> Tensor:
    return _find(token).solve_with_status(scores)[0]


def _fake(scores: Tensor, token: str) -> Tensor:
    _traced.add(_find(token))
    return torch.empty_like(scores)


def _find(token: str) -> General:
    if token not in _by_token:
        raise RuntimeError(
            "this graph holds a `General` of another process, whose `omega` is not here: trace or "
            "compile it again in this one."
        )
    return _by_token[token]


_library.impl("general", _solve_by_token, "CompositeExplicitAutograd")
_library.impl("general", _fake, "Meta")
