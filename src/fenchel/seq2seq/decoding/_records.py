"""What was found for an input as JSON, for the command and the service."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..models._model import Seq2Seq
from ._hypotheses import Hypothesis, Result


def input_record(model: Seq2Seq, text: str) -> dict[str, Any]:
    """The input, and its parts that the model does not know, if any."""
    unknown = model.source.unknown(text)
    return {"input": text, **({"unknown": unknown} if unknown else {})}


def output_records(
    model: Seq2Seq,
    hypotheses: Sequence[Hypothesis],
    *,
    attention: bool = False,
    length_power: float = 0.0,
) -> list[dict[str, Any]]:
    """Texts, their probabilities, and whether they have ended; and what else was asked for.

    Args:
        model: its target vocabulary spells the texts.
        hypotheses: the outputs.
        attention: whether tokens and attention weights are added, if there are any.
        length_power: as for `search`; if it is not zero, the scores are added.
    """
    records = []
    for each in hypotheses:
        record: dict[str, Any] = {
            "text": model.target.decode(each.tokens),
            "probability": each.probability,
            "finished": each.finished,
        }
        if length_power:
            record["score"] = each.score(length_power)
        if attention and each.attention is not None:
            record["tokens"] = model.target.tokens(each.tokens)
            record["attention"] = each.attention.tolist()
        if each.others:
            record["tokenizations"] = [
                {
                    "tokens": model.target.tokens(other.tokens),
                    "probability": prod(other.probabilities),
                }
                for other in (each, *each.others)
            ]
        records.append(record)
    return records


def certificate_record(result: Result) -> dict[str, Any]:
    """What the search proved."""
    return {
        "exact": result.exact,
        "complete": result.complete,
        "hypotheses": len(result.hypotheses),
        "mass": result.mass,
        "bound": result.bound,
        "limited": result.limited,
    }
