"""The public names of the `entmax` package, version 1.3, on fenchel's mappings and losses.

Code changes only its import line: `from fenchel.compat.entmax import entmax15, EntmaxBisectLoss`.
The modules `activations`, `root_finding` and `losses` have the names of that package's.
Signatures, defaults and results are that package's. The options of its algorithms (`k`, `n_iter`,
`ensure_sum_one`) are accepted and checked, and have no effect: answers here are exact, and sum to
one. Throughout, −inf deletes an entry, a row that is all −inf gives zeros, and `alpha` and
`budget` may be tensors with one value per row (size 1 along `dim`), which receive a gradient.
What has no meaning (α ≤ 0, more budget than entries, an unknown reduction) is a ValueError.
"""

from . import activations as activations
from . import losses as losses
from . import root_finding as root_finding
from ._losses import (
    Entmax15Loss,
    EntmaxBisectLoss,
    NormmaxBisectLoss,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect_loss,
    normmax_bisect_loss,
    sparsemax_bisect_loss,
    sparsemax_loss,
)
from ._mappings import (
    BudgetBisect,
    Entmax15,
    EntmaxBisect,
    NormmaxBisect,
    Sparsemax,
    SparsemaxBisect,
    budget_bisect,
    entmax15,
    entmax_bisect,
    normmax_bisect,
    sparsemax,
    sparsemax_bisect,
)

__version__ = "1.3"

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
