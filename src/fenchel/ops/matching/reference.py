"""Jonker-Volgenant in plain Python: shortest augmenting paths, row by row."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .._structure import map_each


def map_inference(
    scores: Tensor, extra_scores: None, lengths: Tensor | None, option: int
) -> tuple[Tensor, Tensor]:
    """The columns of the best matchings' rows, (B, n), and their scores; see `declare_map`."""
    return map_each(_match, scores, lengths)


def _match(scores: np.ndarray) -> tuple[list[int], float] | None:
    wide = scores if scores.shape[0] <= scores.shape[1] else scores.T
    row_of = _augment_all(wide)
    if row_of is None:
        return None
    pairs = [(int(row), column) for column, row in enumerate(row_of) if row >= 0]
    value = float(sum(wide[pair] for pair in pairs))
    if wide is not scores:
        pairs = [(column, row) for row, column in pairs]
    code = [-1] * scores.shape[0]
    for row, column in pairs:
        code[row] = column
    return code, value


def _augment_all(scores: np.ndarray) -> np.ndarray | None:
    """The row of each column, −1 for none, where there are at least as many columns as rows."""
    n, m = scores.shape
    cost = -scores
    price_row, price = np.zeros(n), np.zeros(m)
    row_of = np.full(m, -1)
    for start in range(n):
        length, before = np.full(m, np.inf), np.full(m, -1)
        closed = np.zeros(m, dtype=bool)
        row, column, reached = start, -1, 0.0
        while True:
            offer = reached + cost[row] - price_row[row] - price
            better = ~closed & (offer < length)
            length[better], before[better] = offer[better], column
            nearest = np.where(closed, np.inf, length)
            column = int(nearest.argmin())
            reached = float(nearest[column])
            if reached == np.inf:
                return None
            if row_of[column] < 0:
                break
            closed[column] = True
            row = int(row_of[column])
        price_row[start] += reached
        for other in np.flatnonzero(closed):
            price_row[row_of[other]] += reached - length[other]
            price[other] += length[other] - reached
        while column >= 0:
            last = int(before[column])
            row_of[column] = start if last < 0 else row_of[last]
            column = last
    return row_of
