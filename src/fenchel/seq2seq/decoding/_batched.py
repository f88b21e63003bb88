"""Texts in batches of similar lengths, for whatever decodes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .._checks import check_search_size, check_texts
from ..data._batches import padded, split_batches
from ..data._codes import CODES
from ..models._model import Seq2Seq
from ._constraints import Constraint, constraint_of_each

Found = TypeVar("Found")


@CODES.in_use()
def in_batches(
    model: Seq2Seq,
    texts: Sequence[str],
    batch_size: int,
    constraints: Constraint | Sequence[Constraint | None] | None,
    run: Callable[[Tensor, Tensor, list[Constraint | None]], Sequence[Found]],
    missing: Found,
) -> list[Found]:
    """What `run` finds for each text, in their order.

    Args:
        model: its source vocabulary encodes the texts; batches are on its device.
        texts: in the format of the source vocabulary.
        batch_size: the largest number of texts at once; long texts come in smaller batches.
        constraints: as for `search`.
        run: takes tokens (B, S), lengths (B,), and the constraint or None of each.
        missing: the result of a text without tokens.
    """
    check_texts(texts)
    check_search_size("batch_size", batch_size)
    device = next(model.parameters()).device
    allowed = constraint_of_each(constraints, len(texts))
    ids = [model.source.encode(text) for text in texts]
    order = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: len(ids[i]))
    found = [missing] * len(ids)
    for rows in split_batches([len(ids[i]) for i in order], batch_size):
        chosen = order[rows]
        source = padded([ids[i] for i in chosen]).to(device)
        lengths = torch.tensor([len(ids[i]) for i in chosen], device=device)
        results = run(source, lengths, [allowed[i] for i in chosen])
        for index, result in zip(chosen, results, strict=True):
            found[index] = result
    return found
