"""Structures that span the faces of solutions, in plain PyTorch, for any oracle.

`face_span.hpp` has the same for the library's own oracles, and says how it works.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from .combination import SINGULAR
from .reference import Oracle
from .solution import Support, inner

TRIES = 2
"""How many directions in a row may find nothing new before the face counts as spanned."""
MAX_SIZE = 1000
"""How many structures there may be."""


class _Hull:
    """The affine hull of structures of one instance."""

    def __init__(
        self, scores: Tensor, extra_scores: Tensor, regularize: bool, gap: float, seed: int
    ) -> None:
        self.scores = torch.where(scores.isfinite(), scores, 0.0)
        self.extra_scores = torch.where(extra_scores.isfinite(), extra_scores, 0.0)
        self.regularize = regularize
        self.parts: list[Tensor] = []
        self.extras: list[Tensor] = []
        width = len(scores) + (len(extra_scores) if regularize else 0)
        self._basis = scores.new_zeros(0, width)  # orthonormal
        self._extras_of = scores.new_zeros(0, len(extra_scores))  # what each direction has of these
        self._step = 1e-7 + 8 * (2 * gap) ** 0.5
        self._random = Random(seed)  # torch's own is refused under vmap
        self.failed = 0

    def features(self, parts: Tensor, extras: Tensor) -> Tensor:
        """What of structures counts in the norm."""
        return torch.cat([parts, extras], -1) if self.regularize else parts

    def add(self, parts: Tensor, extras: Tensor) -> bool:
        """Adds a structure, unless it lies in the hull."""
        if self.parts:
            x = self.features(parts - self.parts[0], extras - self.extras[0])
            along, size = extras - self.extras[0], x.norm()
            for _ in range(2):
                weights = self._basis @ x
                x, along = x - weights @ self._basis, along - weights @ self._extras_of
            norm = x.norm()
            if not norm > SINGULAR * (1 + size):
                return False
            self._basis = torch.cat([self._basis, (x / norm).unsqueeze(0)])
            self._extras_of = torch.cat([self._extras_of, (along / norm).unsqueeze(0)])
        self.parts.append(parts)
        self.extras.append(extras)
        return True

    def query(self) -> Tensor | None:
        """Two rows of scores, (2, parts + extras): those less the best point of the hull, plus and
        minus a direction; None if there is no other."""
        origin = self.features(self.parts[0], self.extras[0])
        given = self.features(self.scores, self.extra_scores)
        steps = self._basis @ (given - origin)
        if not self.regularize:
            steps = steps + self._extras_of @ self.extra_scores
        self._point = origin + steps @ self._basis
        direction = origin.new_tensor([self._random.uniform(-1, 1) for _ in range(len(origin))])
        for _ in range(2):
            direction = direction - (self._basis @ direction) @ self._basis
        largest = direction.abs().max()
        if not largest > SINGULAR:
            return None
        shift = self._step / largest * torch.stack([direction, -direction])
        rows = given - self._point + shift
        return rows if self.regularize else torch.cat([rows, self.extra_scores.expand(2, -1)], 1)

    def answer(self, parts: Tensor, extras: Tensor) -> None:
        """Takes the best structures for these scores, (2, …)."""
        self.failed += 1
        level = self._value(self.parts[0], self.extras[0])
        for pair in zip(parts, extras, strict=True):
            far = self.features(*pair) - self.features(self.parts[0], self.extras[0])
            near = abs(float(self._value(*pair) - level)) <= 2 * self._step * float(far.abs().sum())
            if near and self.add(*pair):
                self.failed = 0

    def _value(self, parts: Tensor, extras: Tensor) -> Tensor:
        score = inner(parts, self.scores) + inner(extras, self.extra_scores)
        return score - self.features(parts, extras) @ self._point


def span(
    oracle: Oracle,
    scores: Tensor,
    extra_scores: Tensor,
    support: Support,
    gap: Tensor,
    regularize: bool,
    max_calls: int,
) -> Support:
    """Structures that span the face of each solution.

    Args:
        oracle, scores, extra_scores, regularize: as for `solve`.
        support, gap: of solutions that are as exact as rounding allows; (B,) the latter.
        max_calls: of the oracle, for one instance.
    Returns:
        The structures, with the factor of their Gram matrix. Their codes mean nothing.
    """
    hulls = []
    for b, size in enumerate(support.sizes.tolist()):
        hull = _Hull(scores[b], extra_scores[b], regularize, float(gap[b]), b)
        for k in range(size):
            hull.add(support.parts[b, k], support.extras[b, k])
        hulls.append(hull)
    active = [b for b, hull in enumerate(hulls) if hull.parts]
    for _ in range(max_calls // 2):
        asked = {b: hulls[b].query() for b in active}
        active = [b for b, rows in asked.items() if rows is not None]
        if not active:
            break
        rows = torch.cat([asked[b] for b in active])  # type: ignore[misc]
        places = torch.tensor(active).repeat_interleave(2)
        forbidden = torch.cat([scores, extra_scores], 1)[places] == -torch.inf
        parts, extras = torch.where(forbidden, -torch.inf, rows).split(
            [scores.shape[1], extra_scores.shape[1]], 1
        )
        found = oracle(parts, extras, places)
        for i, b in enumerate(active):
            hulls[b].answer(*(x[2 * i : 2 * i + 2] for x in (found.parts, found.extras)))
        active = [b for b in active if hulls[b].failed < TRIES and len(hulls[b].parts) < MAX_SIZE]
    return _gather(hulls, scores, extra_scores)


def _gather(hulls: list[_Hull], scores: Tensor, extra_scores: Tensor) -> Support:
    """The structures, padded to the widest hull."""
    sizes = torch.tensor([len(hull.parts) for hull in hulls], dtype=torch.int64)
    width = int(sizes.max()) if len(sizes) else 0
    parts = scores.new_zeros(len(hulls), width, scores.shape[1])
    extras = scores.new_zeros(len(hulls), width, extra_scores.shape[1])
    factor = torch.eye(width, dtype=torch.float64).repeat(len(hulls), 1, 1)
    for b, hull in enumerate(hulls):
        if hull.parts:
            size = len(hull.parts)
            parts[b, :size], extras[b, :size] = torch.stack(hull.parts), torch.stack(hull.extras)
            matrix = hull.features(parts[b, :size], extras[b, :size])
            factor[b, :size, :size] = torch.linalg.cholesky(matrix @ matrix.T + 1).T
    return Support(parts, parts, extras, factor, sizes, torch.ones_like(sizes, dtype=torch.bool))
