"""What is measured: each mapping with its exact answer, its loss, and the `entmax` package's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import entmax
import torch
from torch import Tensor

import fenchel

from . import ground_truth, programs
from .correctness import Function, LossSubject, Subject

OTHER_ALPHAS = (1.1, 1.25, 1.33, 1.75, 2.5)


def _sorting(function: Callable[..., Tensor]) -> Callable[[int], dict[str, Function]]:
    """The other package's exact algorithms: a full sort, and a partial one of well-chosen size."""
    return lambda k: {"entmax": function, "entmax, best k": partial(function, k=k)}


SPARSEMAX = Subject(
    "sparsemax", fenchel.sparsemax, ground_truth.entmax(2.0), _sorting(entmax.sparsemax)
)
ENTMAX15 = Subject(
    "entmax 1.5", fenchel.entmax, ground_truth.entmax(1.5), _sorting(entmax.entmax15)
)


def entmax_subject(alpha: float) -> Subject:
    """α-entmax at any other α."""
    return Subject(
        f"entmax {alpha:g}",
        partial(fenchel.entmax, alpha=alpha),
        ground_truth.entmax(alpha),
        lambda k: {"entmax": partial(entmax.entmax_bisect, alpha=alpha)},
    )


def fusedmax_subject(lam: float) -> Subject:
    """fusedmax at one λ."""
    return Subject(f"fusedmax {lam:g}", partial(fenchel.fusedmax, lam=lam), programs.fusedmax(lam))


def oscarmax_subject(lam: float) -> Subject:
    """oscarmax at one λ."""
    return Subject(f"oscarmax {lam:g}", partial(fenchel.oscarmax, lam=lam), programs.oscarmax(lam))


PNORMMAX = Subject("pnormmax 1.5", partial(fenchel.pnormmax, p=1.5), ground_truth.pnormmax(1.5))
NORMMAX = Subject(
    "normmax 2",
    partial(fenchel.normmax, alpha=2.0),
    ground_truth.normmax(2.0),
    lambda k: {"entmax": partial(entmax.normmax_bisect, alpha=2)},
)
KSUBSET = Subject(
    "ksubset 2",
    partial(fenchel.ksubset, k=2.0),
    ground_truth.ksubset(2.0),
    lambda k: {"entmax": partial(entmax.budget_bisect, budget=2)},
)


def _loss(
    label: str, mapping: fenchel.mappings.AbstractMapping, alpha: float, baseline: torch.nn.Module
) -> LossSubject:
    function = partial(fenchel.fenchel_young_loss, mapping)
    return LossSubject(
        label, function, ground_truth.entmax(alpha), ground_truth.tsallis(alpha), baseline
    )


LOSSES = (
    _loss("sparsemax", fenchel.Sparsemax(), 2.0, entmax.SparsemaxLoss()),
    _loss("entmax 1.5", fenchel.Entmax(1.5), 1.5, entmax.Entmax15Loss()),
    _loss("entmax 1.33", fenchel.Entmax(1.33), 1.33, entmax.EntmaxBisectLoss(1.33)),
)
