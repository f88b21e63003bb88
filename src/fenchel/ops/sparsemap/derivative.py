"""The Jacobian of SparseMAP times vectors: Proposition 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from .._native import NativeFunction
from .._operator import declare
from .solution import Face, Outcome, Support

_JACOBIAN = NativeFunction(
    "sparsemap_jacobian",
    "part_indices: i32*, positions: i64, parts: i64, extra_indices: i32*, extras_each: i64, "
    "extras: i64, factor: f64*, factor_width: i64, at_once: bool*, groups: i32*, links: i32*, "
    "num_links: i64, sizes: i64*, count: i64, width: i64, in_parts: f64*, in_extras: f64*, "
    "in_weights: f64*, out_parts: f64*, out_extras: f64*, out_weights: f64*, threads: i32",
)


def jacobian(
    support: Support,
    parts: Tensor | None,
    extras: Tensor | None,
    weights: Tensor | None,
    widths: tuple[int, int],
    with_weights: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The Jacobian of marginals, extra marginals and weights in their scores, times a vector.

    With B the indicators of parts, of extra parts and of the structures themselves, it is
    B D Bᵀ, symmetric, where D = A⁻¹ − A⁻¹11ᵀA⁻¹ / 1ᵀA⁻¹1 and A = MᵀM + 11ᵀ; D is the same with MᵀM
    for A where that is regular. Where the face is known, the projection onto it takes the place of
    M D Mᵀ, and what follows from it that of the products with N.

    Args:
        support: what `solve` returned.
        parts, extras, weights: the vector, (B, parts), (B, extras) and (B, K) in float64,
            contiguous; None is zero.
        widths: how many parts and extras there are.
        with_weights: whether the third piece of the product is wanted; else it is zero.
    Returns:
        The product, in the same three pieces.
    """
    if any(x is not None and is_legacy_batchedtensor(x) for x in (parts, extras, weights)):
        # Tensors of torch.autograd's own vmap have no memory; the operator is called for each.
        codes, part_rows, extra_rows, factor, *rest, face = support
        given = factor, codes, part_rows, extra_rows, *rest, *(face or (None, None, None))
        return _operator(*given, parts, extras, weights, *widths, with_weights)
    if support.parts.is_floating_point():
        from . import reference  # few programs need it

        return reference.jacobian(support, parts, extras, weights)
    count, width = support.codes.shape[:2]
    out = [support.factor.new_empty(count, n) for n in widths]
    out_weights = support.factor.new_zeros(count, width)
    _JACOBIAN(
        *(support.parts, support.parts.shape[2], widths[0]),
        *(support.extras, support.extras.shape[2], widths[1]),
        *(support.factor, support.factor.shape[1], *(support.face or (None, None, None))),
        *(0 if support.face is None else support.face.links.shape[1], support.sizes, count, width),
        *(parts, extras, weights, *out, out_weights if with_weights else None),
    )
    return out[0], out[1], out_weights


def _jacobian(
    factor: Tensor,
    codes: Tensor,
    part_rows: Tensor,
    extra_rows: Tensor,
    sizes: Tensor,
    has_face: Tensor,
    at_once: Tensor | None,
    groups: Tensor,
    links: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    parts, extras, weights, n, m, with_weights = rest
    face = None if at_once is None else Face(at_once, groups, links)
    support = Support(codes, part_rows, extra_rows, factor, sizes, has_face, face)
    return jacobian(support, parts, extras, weights, (n, m), with_weights)


def _fake_jacobian(factor: Tensor, codes: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, n, m, _ = rest
    count, width = codes.shape[:2]
    return factor.new_empty(count, n), factor.new_empty(count, m), factor.new_empty(count, width)


_operator = declare(
    "sparsemap_jacobian(Tensor factor, Tensor codes, Tensor part_rows, Tensor extra_rows, "
    "Tensor sizes, Tensor has_face, Tensor? at_once, Tensor? groups, Tensor? links, "
    "Tensor? parts, Tensor? extras, Tensor? weights, int n, int m, bool with_weights)"
    " -> (Tensor, Tensor, Tensor)",
    fake=_fake_jacobian,
    reference=_jacobian,
    native=_jacobian,
    triton=None,
    rowwise=False,
)
"""`jacobian` of tensors alone."""


class Given(NamedTuple):
    """What a batch is solved for."""

    scores: Tensor
    """(B, n) in float64"""
    extra_scores: Tensor | None
    """(B or 1, m) in float64"""
    lengths: Tensor | None
    """(B, k) in int64"""

    def select(self, rows: Tensor) -> Given:
        """Some of the instances, (b,)."""
        scores, extra, lengths = self
        if extra is not None and len(extra) == len(scores):
            extra = extra[rows]
        return Given(scores[rows], extra, None if lengths is None else lengths[rows])


class Solver(NamedTuple):
    """SparseMAP of one batch, and what its Jacobian needs."""

    solve: Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Support, Outcome]]
    """What is given, to marginals, weights, structures, and how it ended."""
    span: Callable[[Given, Tensor, Tensor, Support, Outcome], Support]
    """What was given, the numbers (b,) of some instances, and the weights, the structures and the
    outcome of all, to structures that span the faces of the solutions of these instances."""


class Found:
    """What a solver finds besides marginals and weights; `Argmax` fills it.

    Where the solver stopped at its tolerance, the structures may not span the face of the exact
    solution. The Jacobian of the marginals then takes others, which are found when it is asked for.
    """

    support: Support
    outcome: Outcome

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._spans: Callable[[], Support] | None = None
        self._rows: Tensor | None = None

    def solve(self, given: Given) -> tuple[Tensor, Tensor]:
        marginals, weights, self.support, self.outcome = self._solver.solve(*given)
        rows = (~self.support.has_face).nonzero().flatten()
        if len(rows):
            self._rows = rows
            arguments = given, rows, weights.detach(), self.support, self.outcome
            self._spans = cache(partial(self._solver.span, *arguments))
        return marginals, weights

    @property
    def is_exact(self) -> bool:
        """Whether all structures found span their faces."""
        return self._rows is None

    def product(
        self,
        parts: Tensor | None,
        extras: Tensor | None,
        weights: Tensor | None,
        widths: tuple[int, int],
        with_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The Jacobian times a vector, as `ops.sparsemap.jacobian`."""
        along = jacobian(self.support, parts, extras, weights, widths, with_weights)
        rows, vectors = self._rows, (parts, extras)
        if self._spans is None or rows is None or (parts is None and extras is None):
            return along
        u, v = (None if x is None else x.index_select(0, rows) for x in vectors)
        own = jacobian(self._spans(), u, v, None, widths, False)[:2]
        if weights is not None:
            others = jacobian(self.support, None, None, weights, widths, False)
            own = [x + y.index_select(0, rows) for x, y in zip(own, others, strict=False)]
        better = [x.index_copy(0, rows, y) for x, y in zip(along, own, strict=False)]
        return better[0], better[1], along[2]
