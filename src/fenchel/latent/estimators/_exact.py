"""Expectations summed over a support."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ... import _checks
from ...mappings import AbstractMapping
from ...mappings._sparsemax import Sparsemax
from ...mappings._tsallis import AbstractTsallis
from ...structures._base import AbstractStructure
from ...structures._bits import Bits
from ...structures._factor_graph import FactorGraph
from ...structures._problem import ExtraScores
from ...structures._sparsemap import sparsemap
from .. import _supports
from .._checks import check_distribution, check_no_structure, check_not_graph, check_top_k
from .._distributions import Table
from .._expectation import Expectation, Loss
from ._base import AbstractOver

MAX_CONFIGURATIONS = 1024
"""The default of `max_k` for configurations of bits."""


def sum_over_support(table: Table, loss: Loss) -> Expectation:
    """Σ p(z) ℓ(z) over the outcomes of a table."""
    item, slot = table.support()
    in_support = table.weights != 0
    values = loss(item, table.outcome(item, slot)) if len(item) else table.weights.new_zeros(0)
    losses = values.new_zeros(in_support.shape).index_put((item, slot), values)
    weights = table.weights.nan_to_num().to(losses.dtype)  # the value of such an item is NaN
    return Expectation(table, (weights * losses).sum(-1), in_support.sum(-1), table.exact)


class AbstractExact(AbstractOver):
    """An estimator that sums over a table of outcomes."""

    def estimate(self, distribution: Table, loss: Loss) -> Expectation:
        return sum_over_support(distribution, loss)


class Exact(AbstractExact):
    """The expectation itself, over the support that a mapping or SparseMAP gives.

    With `Softmax()` this is dense marginalization: the sum over all categories.

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
        over = Sparsemax() if over is None else self.resolve(over)
        check_distribution(over, AbstractStructure)
        check_not_graph(over, FactorGraph)
        super().__init__(over)

    def distribution(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Table:
        if isinstance(self.over, AbstractStructure):
            posterior = sparsemap(self.over, scores, extra_scores, lengths=lengths, mask=mask)
            return _supports.from_posterior(posterior)
        check_no_structure(extra_scores, lengths, mask, self.over)
        _checks.check_float_tensor("scores", scores)
        _checks.check_dim("scores", scores.shape, -1)
        return _supports.from_mapping(self.over, scores)

    def extra_repr(self) -> str:
        return f"over={self.over}"


class TopK(AbstractExact):
    """The expectation over the support of a mapping on the k largest scores.

    If the last of these has probability zero, so have all smaller scores, and the result is exact;
    else k doubles, up to `max_k`. `Expectation.exact` says for which items the result is exact.

    Args:
        over: sparsemax, entmax or softmax for a categorical latent, `Sparsemax()` by default; or
            `Bits(d)`, for sparsemax of the scores ⟨θ, z⟩ of all 2^d configurations z.
        k: how many to try first.
        max_k: where k stops to double; None for all K categories, and for 1024 configurations.

    >>> from fenchel import Bits
    >>> estimator = TopK(Bits(50), k=4)
    >>> outcome = estimator(torch.linspace(-8, 8.5, 50), lambda item, z: z.sum(-1))
    >>> outcome.calls, outcome.exact
    (tensor(4), tensor(True))

    References: correia2020efficient.
    """

    def __init__(
        self,
        over: AbstractMapping | Bits | str | None = None,
        k: int = 32,
        max_k: int | None = None,
    ) -> None:
        over = Sparsemax() if over is None else self.resolve(over)
        check_top_k(over, (AbstractTsallis, Bits))
        _checks.check_size("k", k)
        if max_k is not None:
            _checks.check_size("max_k", max_k, minimum=k)
        super().__init__(over)
        self.k = k
        self.max_k = max_k

    def distribution(
        self,
        scores: Tensor,
        extra_scores: ExtraScores | None = None,
        lengths: Any = None,
        mask: Tensor | None = None,
    ) -> Table:
        check_no_structure(extra_scores, lengths, mask, self)
        if isinstance(self.over, Bits):
            max_k = max(self.k, MAX_CONFIGURATIONS) if self.max_k is None else self.max_k
            return _supports.from_top_k_bits(self.over, scores, self.k, max_k)
        _checks.check_float_tensor("scores", scores)
        _checks.check_dim("scores", scores.shape, -1)
        return _supports.from_top_k(self.over, scores, self.k, self.max_k)

    def extra_repr(self) -> str:
        return f"over={self.over}, k={self.k}, max_k={self.max_k}"
