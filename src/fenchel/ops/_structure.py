"""Declares the operators of a structure: its MAP inference, log-partition and marginals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._native import Routine
from ._operator import declare


def step(additional: Tensor | None, batch: int) -> int:
    """How many entries lie between the additional scores of two instances; 0 if all share them."""
    if additional is None or additional.shape[0] < batch:
        return 0
    return additional[0].numel() if batch else 0


def sizes(scores: Tensor) -> tuple[int, int]:
    """The shape (n, m) of the scores of an instance, (d, 1) if they are a vector."""
    return scores.shape[1], scores.shape[2] if scores.ndim == 3 else 1


def declare_map(name: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The operator `name(scores, additional, lengths, option) -> (codes, values)`.

    Args:
        name: of the operator and of its function in the library.
        reference: with the operator's arguments, in plain PyTorch.
    Returns:
        A function of scores (B, n, m) or (B, d), additional scores (B or 1, …) or None, lengths
        (B, k) in int64 or None, and the structure's option. The codes are (B, n) in int32, −1 for
        none, and the values (B) in float64: −inf where there is no structure, and NaN, with codes
        −1, where a score is NaN or +inf.
    """
    routine = Routine(name, "ppipiiiiipp")

    def fake(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        codes = scores.new_empty(scores.shape[:2], dtype=torch.int32)
        return codes, scores.new_empty(scores.shape[:1], dtype=torch.float64)

    def native(
        scores: Tensor, additional: Tensor | None, lengths: Tensor | None, option: int
    ) -> tuple[Tensor, Tensor]:
        batch = scores.shape[0]
        codes, values = fake(scores)
        routine(
            scores.dtype,
            *(scores, additional, step(additional, batch)),
            *(lengths, 0 if lengths is None else lengths.shape[1], batch, *sizes(scores), option),
            *(codes, values),
        )
        return codes, values

    return declare(
        f"{name}(Tensor scores, Tensor? additional, Tensor? lengths, int option)"
        " -> (Tensor, Tensor)",
        fake=fake,
        reference=reference,
        native=native,
        triton=None,
    )


def map_each(
    solve: Callable[[np.ndarray], tuple[list[int], float] | None],
    scores: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What `declare_map` asks of a reference, from instance to instance.

    Args:
        solve: from the scores (n, m) of one instance, none of them NaN or +inf, to its code (n)
            and value; None if it has no structure.
        scores: (B, n, m).
        lengths: (B, 2), the rows and columns of each, (B, 1) if they are as many, or None.
    """
    codes = torch.full(scores.shape[:2], -1, dtype=torch.int32)
    values = torch.full(scores.shape[:1], torch.nan, dtype=torch.float64)
    sides = None if lengths is None else lengths.expand(-1, 2).tolist()
    for k, full in enumerate(scores.detach().cpu().double().numpy()):
        rows, columns = full.shape if sides is None else sides[k]
        instance = full[:rows, :columns]
        if not (instance < np.inf).all():
            continue
        best = solve(instance)
        values[k] = -torch.inf if best is None else best[1]
        if best is not None:
            codes[k, :rows] = torch.tensor(best[0], dtype=torch.int32)
    return codes.to(scores.device), values.to(scores.device)
