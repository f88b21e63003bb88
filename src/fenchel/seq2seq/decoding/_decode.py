"""Decoding of texts, in batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._checks import check_search_size, check_texts
from ..data._batches import padded, split_batches
from ..models._ensemble import check_decoders
from ..models._model import Seq2Seq
from ._hypotheses import Result
from ._search import search

NO_RESULT = Result([], exact=False, complete=False, bound=1.0, limited=False)
"""The result for a text without tokens."""


def decode(
    models: Seq2Seq | Sequence[Seq2Seq],
    texts: Sequence[str],
    *,
    batch_size: int = 256,
    method: str = "beam",
    beam: int = 5,
    nbest: int | None = None,
    max_length: int = 100,
    attention: bool = False,
) -> list[Result]:
    """Decodes texts, in batches of similar lengths.

    Args:
        models: a model, or a list of models that form an ensemble. They must have the same
            vocabularies and be on the same device.
        texts: in the format of the source vocabulary; a text without tokens has no hypothesis.
        batch_size: the largest number of texts decoded at once; long texts are decoded in smaller
            batches.
        method, beam, nbest, max_length, attention: as for `search`.
    Returns:
        One result for each text, in their order.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a text has another format.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> len(decode([model], ["abc", "a"], max_length=5))
    2
    """
    check_texts(texts)
    check_search_size("batch_size", batch_size)
    models = check_decoders(models)
    source = models[0].source
    device = next(models[0].parameters()).device
    ids = [source.encode(text) for text in texts]
    order = sorted((i for i in range(len(ids)) if ids[i]), key=lambda i: len(ids[i]))
    found: dict[int, Result] = {}
    for rows in split_batches([len(ids[i]) for i in order], batch_size):
        chosen = order[rows]
        results = search(
            models,
            padded([ids[i] for i in chosen]).to(device),
            torch.tensor([len(ids[i]) for i in chosen], device=device),
            method=method,
            beam=beam,
            nbest=nbest,
            max_length=max_length,
            attention=attention,
        )
        found.update(zip(chosen, results, strict=True))
    return [found.get(i, NO_RESULT) for i in range(len(ids))]


def best_texts(model: Seq2Seq, results: Sequence[Result]) -> list[str]:
    """The most probable text of each result; empty if there is none."""
    return [
        model.target.decode(result.hypotheses[0].tokens) if result.hypotheses else ""
        for result in results
    ]
