"""Declares the operators of a structure: its MAP inference, log-partition and marginals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._native import NativeFunction
from ._operator import declare

Inference = tuple[Tensor, Tensor, Tensor]
"""Values (B) and marginals u and v."""


def step(extra_scores: Tensor | None, batch: int) -> int:
    """How many entries lie between the extra scores of two instances; 0 if all share them."""
    if extra_scores is None or extra_scores.shape[0] < batch:
        return 0
    return extra_scores[0].numel() if batch else 0


def sizes(scores: Tensor) -> tuple[int, int]:
    """The shape (n, m) of the scores of an instance, (d, 1) if they are a vector."""
    return scores.shape[1], scores.shape[2] if scores.ndim == 3 else 1


def declare_map(name: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The operator `name_map(scores, extra_scores, lengths, option) -> (codes, values)`.

    Args:
        name: the structure's, and that of its kernel folder.
        reference: with the operator's arguments, in plain PyTorch.
    Returns:
        A function of scores (B, n, m) or (B, d), extra scores (B or 1, …) or None, lengths
        (B, k) in int64 or None, and the structure's option. The codes are (B, n) in int32, −1 for
        none, and the values (B) in float64: −inf where there is no structure, and NaN, with codes
        −1, where a score is NaN or +inf.
    """
    function = NativeFunction(
        f"{name}_map",
        "scores: T*, extra_scores: T*, extra_step: i64, lengths: i64*, lengths_step: i64, "
        "batch: i64, n: i64, m: i64, option: i64, codes: i32*, values: f64*, threads: i32",
    )

    def fake(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        codes = scores.new_empty(scores.shape[:2], dtype=torch.int32)
        return codes, scores.new_empty(scores.shape[:1], dtype=torch.float64)

    def native(
        scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, option: int
    ) -> tuple[Tensor, Tensor]:
        batch = scores.shape[0]
        codes, values = fake(scores)
        function(
            *(scores, extra_scores, step(extra_scores, batch)),
            *(lengths, 0 if lengths is None else lengths.shape[1], batch, *sizes(scores), option),
            *(codes, values),
        )
        return codes, values

    return declare(
        f"{name}_map(Tensor scores, Tensor? extra_scores, Tensor? lengths, int option)"
        " -> (Tensor, Tensor)",
        fake=fake,
        reference=reference,
        native=native,
        triton=None,
        rowwise=False,
    )


def map_each(
    solve: Callable[[np.ndarray], tuple[list[int], float] | None],
    scores: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What `declare_map` asks of a reference, from instance to instance.

    Args:
        solve: from the scores (n, m) of one instance, none of them NaN or +inf, to its code (n)
            and value; None if it has no structure.
        scores: (B, n, m).
        lengths: (B, 2), the rows and columns of each, (B, 1) if they are as many, or None.
    """
    codes = torch.full(scores.shape[:2], -1, dtype=torch.int32)
    values = torch.full(scores.shape[:1], torch.nan, dtype=torch.float64)
    sides = None if lengths is None else lengths.expand(-1, 2).tolist()
    for k, full in enumerate(scores.detach().cpu().double().numpy()):
        rows, columns = full.shape if sides is None else sides[k]
        instance = full[:rows, :columns]
        if not (instance < np.inf).all():
            continue
        best = solve(instance)
        values[k] = -torch.inf if best is None else best[1]
        if best is not None:
            codes[k, :rows] = torch.tensor(best[0], dtype=torch.int32)
    return codes.to(scores.device), values.to(scores.device)


def logsumexp(terms: Tensor, dim: int = -1) -> Tensor:
    """log Σ exp(terms), whose gradient is zero, not NaN, where all terms are −inf."""
    top = terms.detach().amax(dim, keepdim=True)
    top = torch.where(top.isinf(), 0.0, top)
    mass = (terms - top).exp().sum(dim)
    some = mass != 0
    return torch.where(some, torch.where(some, mass, 1.0).log() + top.squeeze(dim), -torch.inf)


class Operators(NamedTuple):
    """The operators of a structure with a tractable log-partition; see `declare_inference`."""

    log_partition: Callable[..., Tensor]
    marginals: Callable[..., Inference]
    product: Callable[..., tuple[Tensor, Tensor]]
    reference: Reference


class Reference:
    """Marginals and their derivative from a log-partition, by autograd.

    Args:
        log_partition: (scores, extra_scores, lengths, option) to values (B), in differentiable
            torch operations.
        marginals: the same to the gradient (u, v), where autograd would lose precision.
    """

    def __init__(
        self, log_partition: Callable[..., Tensor], marginals: Callable[..., Any] | None
    ) -> None:
        self._log_partition, self._marginals = log_partition, marginals

    def gradient(
        self, scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, option: int
    ) -> tuple[Tensor, Tensor | None]:
        """Marginals u and v (B, …) as differentiable functions of scores that require gradients."""
        if self._marginals is not None:
            return self._marginals(scores, extra_scores, lengths, option)
        inputs = (scores,)
        if extra_scores is not None:
            extra_scores = extra_scores.expand(scores.shape[0], *extra_scores.shape[1:])
            inputs = (scores, extra_scores)
        values = self._log_partition(scores, extra_scores, lengths, option)
        values = torch.where(values == -torch.inf, 0.0, values).sum()
        u, *v = torch.autograd.grad(values, inputs, create_graph=True, materialize_grads=True)
        return u, (v[0] if v else None)

    def marginals(
        self, scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, option: int
    ) -> Inference:
        """Values, u and v; see `declare_inference`."""
        values = self._log_partition(scores, extra_scores, lengths, option)
        with torch.enable_grad():
            found = self.gradient(*_leaves(scores, extra_scores), lengths, option)
        u, v = (
            scores.new_empty(0)
            if x is None
            else torch.where(values.isnan().reshape(-1, *[1] * (x.ndim - 1)), torch.nan, x.detach())
            for x in found
        )
        return values, u, v

    def product(
        self,
        scores: Tensor,
        extra_scores: Tensor | None,
        of_u: Tensor,
        of_v: Tensor | None,
        lengths: Tensor | None,
        option: int,
    ) -> tuple[Tensor, Tensor]:
        """The derivative of the marginals in a direction; see `declare_inference`."""
        with torch.enable_grad():
            scores, extra_scores = _leaves(scores, extra_scores)
            u, v = self.vjp(scores, extra_scores, of_u, of_v, lengths, option)
        return u.detach(), scores.new_empty(0) if v is None else v.detach()

    def vjp(
        self,
        scores: Tensor,
        extra_scores: Tensor | None,
        of_u: Tensor,
        of_v: Tensor | None,
        lengths: Tensor | None,
        option: int,
    ) -> tuple[Tensor, Tensor | None]:
        """The same as a differentiable function of all, summed over instances that share their
        extra scores."""
        given = (scores,) if extra_scores is None else (scores, extra_scores)
        # Aliases, since `of_u` and `of_v` may have been computed from the same scores.
        inputs = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in given]
        wide = [tensor.double() for tensor in inputs]
        u, v = self.gradient(wide[0], None if extra_scores is None else wide[1], lengths, option)
        total = (u * of_u).sum()
        if v is not None and of_v is not None:
            total = total + (v * of_v).sum()
        u, *others = torch.autograd.grad(total, inputs, create_graph=True, materialize_grads=True)
        return u, (others[0] if others else None)


def _leaves(scores: Tensor, extra_scores: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Copies to differentiate in, with the extra scores of each instance for itself."""
    leaf = scores.detach().clone().requires_grad_()
    if extra_scores is None:
        return leaf, None
    extra_scores = extra_scores.detach().expand(scores.shape[0], *extra_scores.shape[1:])
    return leaf, extra_scores.clone().requires_grad_()


def declare_inference(
    name: str, log_partition: Callable[..., Tensor], marginals: Callable[..., Any] | None = None
) -> Operators:
    """The operators of a structure with a tractable log-partition.

    Args:
        name: the structure's, and that of its kernel folder.
        log_partition: (scores, extra_scores, lengths, option) to values (B), in differentiable
            torch operations.
        marginals: the same to the gradient (u, v), where autograd would lose precision.
    Returns:
        `log_partition(scores, extra_scores, lengths, option) -> values`; `marginals`, the same to
        (values, u, v); `product(scores, extra_scores, of_u, of_v, lengths, option) -> (u, v)`, the
        derivative of the marginals in a direction; and the reference. Values are float64; u is like
        the scores, v like the extra scores of each instance, (B, …), empty if there are none.
    """
    problem = (
        "scores: T*, extra_scores: T*, extra_step: i64, lengths: i64*, "
        "batch: i64, n: i64, m: i64, option: i64"
    )
    marginals_function = NativeFunction(
        f"{name}_marginals", f"{problem}, values: f64*, u: T*, v: T*, threads: i32"
    )
    product_function = NativeFunction(
        f"{name}_product", f"{problem}, of_u: T*, of_v: T*, u: T*, v: T*, threads: i32"
    )

    def extras(scores: Tensor, extra_scores: Tensor | None) -> Tensor:
        shape = (0,) if extra_scores is None else (scores.shape[0], *extra_scores.shape[1:])
        return scores.new_empty(shape)

    def fake_value(scores: Tensor, *_: Any) -> Tensor:
        return scores.new_empty(scores.shape[:1], dtype=torch.float64)

    def fake_marginals(scores: Tensor, extra_scores: Tensor | None, *_: Any) -> Inference:
        return fake_value(scores), torch.empty_like(scores), extras(scores, extra_scores)

    def fake_product(scores: Tensor, extra_scores: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        return torch.empty_like(scores), extras(scores, extra_scores)

    def problem_of(
        scores: Tensor, extra_scores: Tensor | None, lengths: Tensor | None, option: int
    ) -> tuple:
        batch = scores.shape[0]
        first = (scores, extra_scores, step(extra_scores, batch), lengths, batch)
        return (*first, *sizes(scores), option)

    def native_value(*arguments: Any) -> Tensor:
        out = fake_value(arguments[0])
        marginals_function(*problem_of(*arguments), out, None, None)
        return out

    def native_marginals(*arguments: Any) -> Inference:
        values, u, v = fake_marginals(*arguments)
        marginals_function(*problem_of(*arguments), values, u, v if v.numel() else None)
        return values, u, v

    def native_product(
        scores: Tensor,
        extra_scores: Tensor | None,
        of_u: Tensor,
        of_v: Tensor | None,
        lengths: Tensor | None,
        option: int,
    ) -> tuple[Tensor, Tensor]:
        u, v = fake_product(scores, extra_scores)
        arguments = problem_of(scores, extra_scores, lengths, option)
        product_function(*arguments, of_u, of_v, u, v if v.numel() else None)
        return u, v

    reference = Reference(log_partition, marginals)
    schema = "(Tensor scores, Tensor? extra_scores, Tensor? lengths, int option)"
    return Operators(
        declare(
            f"{name}_log_partition{schema} -> Tensor",
            fake=fake_value,
            reference=log_partition,
            native=native_value,
            triton=None,
            rowwise=False,
        ),
        declare(
            f"{name}_marginals{schema} -> (Tensor, Tensor, Tensor)",
            fake=fake_marginals,
            reference=reference.marginals,
            native=native_marginals,
            triton=None,
            rowwise=False,
        ),
        declare(
            f"{name}_product(Tensor scores, Tensor? extra_scores, Tensor of_u, Tensor? of_v, "
            "Tensor? lengths, int option) -> (Tensor, Tensor)",
            fake=fake_product,
            reference=reference.product,
            native=native_product,
            triton=None,
            rowwise=False,
        ),
        reference,
    )
