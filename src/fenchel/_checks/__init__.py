"""Checks of a user's input, with its message: the argument, what it must be, and what came."""

from ._losses import ignored, linear, mapping, subset_size, target
from ._search_sizes import too_large
from ._values import (
    DTYPES,
    HALF,
    REDUCTIONS,
    beside,
    broadcasts,
    choice,
    dense_floats,
    dimension,
    fraction,
    integer,
    kind,
    number,
    overwritable,
    per_row,
    real,
    same_device,
    size,
)

__all__ = [
    "DTYPES",
    "HALF",
    "REDUCTIONS",
    "beside",
    "broadcasts",
    "choice",
    "dense_floats",
    "dimension",
    "fraction",
    "ignored",
    "integer",
    "kind",
    "linear",
    "mapping",
    "number",
    "overwritable",
    "per_row",
    "real",
    "same_device",
    "size",
    "subset_size",
    "target",
    "too_large",
]
