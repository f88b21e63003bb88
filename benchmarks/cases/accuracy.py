"""The errors of the mappings in float32 against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from .. import subjects
from ..results import Row
from .options import Options

WIDTHS = (10, 1000, 100000)
SCALES = (1, 10, 100)
NUMBERS = 400_000
"""In all of one comparison: as many rows as give that many, 64 at most."""
LIMITS = {"error": 2e-7, "sum error": 3e-7}
SUBJECTS = (
    (subjects.SPARSEMAX, LIMITS),
    (subjects.ENTMAX15, LIMITS),
    *[(subjects.entmax_subject(alpha), None) for alpha in subjects.OTHER_ALPHAS],
    (subjects.PNORMMAX, None),
    (subjects.NORMMAX, None),
)


def _errors(function: Callable[[Tensor], Tensor], x: Tensor, expected: Tensor) -> dict[str, float]:
    y = function(x).double()
    return {
        "error": float((y - expected).abs().max()),
        "sum error": float((y.sum(-1) - 1).abs().max()),
    }


def rows(options: Options) -> Iterator[Row]:
    """One row per mapping, width and scale of the scores."""
    torch.set_num_threads(options.threads[0])
    generator = torch.Generator().manual_seed(0)
    for subject, limits in SUBJECTS:
        baseline = subject.baselines(1).get("entmax")
        for d, scale in product(WIDTHS[:2] if options.quick else WIDTHS, SCALES):
            x = torch.randn(min(64, NUMBERS // d), d, generator=generator).mul_(scale)
            expected = subject.ground_truth(x.double())
            errors = _errors(subject.function, x, expected)
            row: Row = {"mapping": subject.label, "d": d, "scale": scale, **errors}
            row["met"] = limits and all(errors[name] <= limits[name] for name in limits)
            if baseline is not None:
                theirs = _errors(baseline, x, expected)
                row |= {f"entmax {name}": value for name, value in theirs.items()}
            yield row
