"""Decoding of texts, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..models._ensemble import check_decoders
from ..models._model import Seq2Seq
from ._batched import in_batches
from ._constraints import Constraint
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
    constraints: Constraint | Sequence[Constraint | None] | None = None,
    length_power: float = 0.0,
    before_step: Callable[[], None] | None = None,
) -> list[Result]:
    """Decodes texts, in batches of similar lengths.

    Args:
        models: a model, or a list of models that form an ensemble. They must have the same
            vocabularies and be on the same device.
        texts: in the format of the source vocabulary; a text without tokens has no hypothesis.
        batch_size: the largest number of texts decoded at once; long texts are decoded in smaller
            batches.
        method, beam, nbest, max_length, attention, constraints, length_power, before_step: as for
            `search`.
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
    models = check_decoders(models)

    def run(source: Tensor, lengths: Tensor, allowed: list[Constraint | None]) -> list[Result]:
        return search(
            models,
            source,
            lengths,
            method=method,
            beam=beam,
            nbest=nbest,
            max_length=max_length,
            attention=attention,
            constraints=allowed,
            length_power=length_power,
            before_step=before_step,
        )

    return in_batches(models[0], texts, batch_size, constraints, run, NO_RESULT)


def best_texts(model: Seq2Seq, results: Sequence[Result]) -> list[str]:
    """The most probable text of each result; empty if there is none."""
    return [
        model.target.decode(result.hypotheses[0].tokens) if result.hypotheses else ""
        for result in results
    ]
