"""Expectations over a support, exact where it is the whole one."""

from __future__ import annotations

from torch import Tensor

from ... import _checks
from ...mappings import AbstractMapping
from ...mappings._sparsemax import Sparsemax
from ...mappings._tsallis import AbstractTsallis
from ...structures._base import AbstractStructure
from ...structures._bits import Bits
from .. import _supports
from .._distributions import Table
from .._expectation import Expectation, LossFn, evaluate
from ._base import AbstractOver

CONFIGURATIONS = 1024
"""Where top-k of configurations stops to double, unless it is told."""


def summed(table: Table, loss_fn: LossFn, chunk: int | None) -> Expectation:
    """Σ p(z) ℓ(z) over the outcomes of a table."""
    item, slot = table.live()
    live = table.weights != 0
    if len(item):
        values = evaluate(loss_fn, item, table.outcome(item, slot), chunk)
    else:
        values = table.weights.new_zeros(0)
    losses = values.new_zeros(live.shape).index_put((item, slot), values)
    weights = table.weights.to(losses.dtype)
    return Expectation(table, (weights * losses).sum(-1), live.sum(-1), table.exact)


class AbstractExact(AbstractOver):
    """An estimator that sums over a table of outcomes."""

    def estimate(
        self, distribution: Table, loss_fn: LossFn, context: Tensor | None, chunk: int | None
    ) -> Expectation:
        return summed(distribution, loss_fn, chunk)


class Exact(AbstractExact):
    """The expectation itself, over the support that a mapping or SparseMAP gives.

    With `Softmax()` every category counts, which is the dense marginalization.

    Args:
        over: a mapping onto the simplex, or its name, for a categorical latent, `Sparsemax()` by
            default; or a structure.

    >>> from fenchel import Bits
    >>> outcome = Exact(Bits(2))(torch.tensor([0.25, 2.0]), lambda item, z: z.sum(-1))
    >>> outcome.value, outcome.calls, outcome.marginals
    (tensor(1.2500), tensor(2), tensor([0.2500, 1.0000]))

    References: correia2020efficient.
    """

    def __init__(self, over: AbstractMapping | AbstractStructure | str | None = None) -> None:
        over = Sparsemax() if over is None else self.named(over)
        _checks.distribution(over, AbstractStructure, "a structure, such as `fenchel.Bits(8)`")
        super().__init__(over)

    def distribution(self, scores: Tensor) -> Table:
        if isinstance(self.over, AbstractStructure):
            return _supports.by_structure(self.over, scores)
        _checks.dense_floats("scores", scores)
        _checks.dimension("scores", scores.shape, -1)
        return _supports.by_mapping(self.over, scores)

    def extra_repr(self) -> str:
        return f"over={self.over}"


class TopK(AbstractExact):
    """The expectation over the support of a mapping on the k largest scores.

    Where the last of these gets no probability, no smaller score has any, and the result is exact;
    until then k doubles. `Expectation.exact` says whether it did before `most`, item by item.

    Args:
        over: sparsemax, entmax or softmax for a categorical latent, `Sparsemax()` by default; or
            `Bits(d)`, for sparsemax of the scores ⟨θ, z⟩ of all 2^d configurations z.
        k: how many are looked at first.
        most: where k stops to double; None for all K categories, and for 1024 configurations.

    >>> from fenchel import Bits
    >>> estimator = TopK(Bits(50), k=4)
    >>> outcome = estimator(torch.linspace(-8, 8.5, 50), lambda item, z: z.sum(-1))
    >>> outcome.calls, outcome.exact
    (tensor(4), tensor(True))

    References: correia2020efficient.
    """

    def __init__(
        self, over: AbstractMapping | Bits | str | None = None, k: int = 32, most: int | None = None
    ) -> None:
        over = Sparsemax() if over is None else self.named(over)
        _checks.top_k_of(over, (AbstractTsallis, Bits))
        _checks.size("k", k)
        if most is not None:
            _checks.size("most", most, least=k)
        super().__init__(over)
        self.k = k
        self.most = most

    def distribution(self, scores: Tensor) -> Table:
        if isinstance(self.over, Bits):
            most = max(self.k, CONFIGURATIONS) if self.most is None else self.most
            return _supports.by_top_k_bits(self.over, scores, self.k, most)
        _checks.dense_floats("scores", scores)
        _checks.dimension("scores", scores.shape, -1)
        return _supports.by_top_k(self.over, scores, self.k, self.most)

    def extra_repr(self) -> str:
        return f"over={self.over}, k={self.k}, most={self.most}"
