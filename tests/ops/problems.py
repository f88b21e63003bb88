"""Small structures with all their members, for the solvers of SparseMAP."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.ops.sparsemap.reference import Columns


@dataclass(frozen=True)
class Problem:
    """An oracle of the library, what it is built from, and every structure: its code, parts (k, n)
    and extra parts (k, m)."""

    oracle: str
    sizes: tuple[int, int, int]
    codes: Tensor
    parts: Tensor
    extras: Tensor
    regularize: bool = False

    @property
    def name(self) -> str:
        return f"{self.oracle}{self.sizes}" + "r" * self.regularize

    def scores(self, batch: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Normal scores and extra scores."""
        shape = (batch, self.parts.shape[1]), (batch, self.extras.shape[1])
        return scale * torch.randn(shape[0]).double(), scale * torch.randn(shape[1]).double()

    def best(self, scores: Tensor, extra_scores: Tensor, places: Tensor) -> Columns:
        """The oracle that looks at all structures."""
        first = (scores @ self.parts.T + extra_scores @ self.extras.T).argmax(1)
        found = torch.ones(len(scores), dtype=torch.bool)
        return Columns(self.codes[first], self.parts[first], self.extras[first], found)

    def gap(self, scores: Tensor, extra_scores: Tensor, weights: Tensor, codes: Tensor) -> Tensor:
        """The duality gap of weights (B, K) on codes (B, K, n), over all structures: (B,)."""
        same = (codes.unsqueeze(-2) == self.codes).all(-1)
        assert (same.sum(-1) == (weights > 0)).all()
        y = (weights.unsqueeze(-1) * same).sum(1)
        rows = torch.cat([self.parts, self.extras], 1) if self.regularize else self.parts
        slope = scores @ self.parts.T + extra_scores @ self.extras.T - y @ rows @ rows.T
        return slope.amax(1) - (y * slope).sum(1)


def _indicators(indices: Tensor, n: int) -> Tensor:
    """Rows of counts of the indices that are not negative."""
    rows = torch.zeros(len(indices), n + 1, dtype=torch.float64)
    ones = torch.ones_like(indices, dtype=torch.float64)
    return rows.scatter_add(1, torch.where(indices < 0, n, indices), ones)[:, :n]


def _nothing(codes: Tensor) -> Tensor:
    return torch.zeros(len(codes), 0, dtype=torch.float64)


def sequences(n: int, m: int, shared: bool, regularize: bool = False) -> Problem:
    codes = torch.tensor(list(itertools.product(range(m), repeat=n)))
    pairs = codes[:, :-1] * m + codes[:, 1:] + (0 if shared else m * m * torch.arange(n - 1))
    return Problem(
        "sequence",
        (n, m, int(shared)),
        codes.int(),
        _indicators(codes + m * torch.arange(n), n * m),
        _indicators(pairs, m * m * (1 if shared else n - 1)),
        regularize,
    )


def matchings(n: int, m: int) -> Problem:
    few, many = min(n, m), max(n, m)
    codes = torch.full((len(list(itertools.permutations(range(many), few))), n), -1)
    for row, chosen in zip(codes, itertools.permutations(range(many), few), strict=True):
        for i, j in enumerate(chosen):
            row[i if n <= m else j] = j if n <= m else i
    parts = torch.where(codes < 0, -1, codes + m * torch.arange(n))
    return Problem("matching", (n, m, 0), codes.int(), _indicators(parts, n * m), _nothing(codes))


def _is_tree(heads: tuple[int, ...], projective: bool) -> bool:
    for i in range(len(heads)):
        above, j = [], i
        while heads[j] != j:
            above.append(j)
            j = heads[j]
            if j in above:
                return False
    if not projective:
        return True
    spans = [tuple(sorted((i, h))) if i != h else (-1, i) for i, h in enumerate(heads)]
    return not any(a < c < b < d for a, b in spans for c, d in spans)


def trees(n: int, projective: bool, single: bool) -> Problem:
    every = itertools.product(range(n), repeat=n)
    heads = [h for h in every if _is_tree(h, projective)]
    codes = torch.tensor(
        [h for h in heads if sum(a == i for i, a in enumerate(h)) == 1 or not single]
    )
    name = "projective_tree" if projective else "tree"
    parts = _indicators(codes * n + torch.arange(n), n * n)
    return Problem(name, (n, n, int(single)), codes.int(), parts, _nothing(codes))


def budgets(d: int, k: int, exact: bool) -> Problem:
    codes = torch.tensor(list(itertools.product(range(2), repeat=d)))
    sums = codes.sum(1)
    codes = codes[sums == k if exact else sums <= k]
    return Problem("budget", (d, 1, 2 * k + exact), codes.int(), codes.double(), _nothing(codes))


PROBLEMS = [
    sequences(4, 3, shared=True),
    sequences(3, 2, shared=False),
    sequences(4, 2, shared=False, regularize=True),
    matchings(4, 4),
    matchings(3, 5),
    matchings(5, 3),
    trees(4, projective=False, single=True),
    trees(4, projective=False, single=False),
    trees(4, projective=True, single=True),
    trees(4, projective=True, single=False),
    budgets(5, 2, exact=False),
    budgets(5, 2, exact=True),
    budgets(4, 4, exact=False),
    budgets(6, 1, exact=True),
]
