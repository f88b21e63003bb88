"""The answers of a model: what requests ask for, computed in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import Any

import torch

from ..config._schema import SearchConfig
from ..data._codes import CODES
from ..data._copying import unknown_of_pair
from ..data._features import Featured
from ..data._inflection import Inflection
from ..decoding._constraints import Constraint
from ..decoding._decode import decode
from ..decoding._records import certificate_record, input_record, output_records
from ..decoding._restriction import Restriction
from ..decoding._sampling import sample
from ..decoding._scoring import score
from ..explanations._explain import explain
from ..explanations._page import page
from ..models._model import Seq2Seq
from ._batcher import Batcher
from ._errors import RequestError
from ._form import form
from ._limits import Limits
from ._requests import Explain, Predict, Score

MAX_POSITIONS = 1 << 17
"""How many source tokens, of all live hypotheses, a batch holds states of."""
MAX_EXHAUSTIVE = 1000
"""How many hypotheses an exhaustive search keeps, as for `fenchel predict`."""

Check = Callable[[], None]


class Answers:
    """Answers the requests of the service.

    Args:
        models: an ensemble.
        defaults: of the search.
        limits: of requests.
        batcher: computes.
    """

    def __init__(
        self, models: Sequence[Seq2Seq], defaults: SearchConfig, limits: Limits, batcher: Batcher
    ) -> None:
        self._models, self._model = list(models), models[0]
        self._defaults, self._limits, self._batcher = defaults, limits, batcher
        self.has_features = self._model.source.kind == Featured.kind

    async def predict(self, request: Predict) -> dict[str, Any]:
        """The outputs for each input, equal to those of `fenchel predict --json`."""
        request.check()
        for index, text in enumerate(request.inputs):
            self._check(f"inputs[{index}]", text)
        self._check_positions(request)
        constraint = _constraint(request.constraint, self._model)
        # Each input has a constraint of its own; all other options are those of the batch.
        of_inputs = ("inputs", *(each.name for each in fields(Constraint)))
        key = tuple(request.model_copy(update=dict.fromkeys(of_inputs)))
        items = [(text, constraint) for text in request.inputs]

        def run(items: list[Any], check: Check) -> list[dict[str, Any]]:
            return self._decode(request, items, check)

        return {"results": await self._batcher.submit(key, run, items)}

    async def score(self, request: Score) -> dict[str, Any]:
        """The probability of each target, given its source."""
        for index, pair in enumerate(request.pairs):
            self._check(f"pairs[{index}].source", pair.source)
            if not self._model.target.encode(pair.target):
                raise RequestError(422, f"`pairs[{index}].target` must hold at least one token.")
        pairs = [(pair.source, pair.target) for pair in request.pairs]
        return {"results": await self._batcher.submit("score", self._score, pairs)}

    async def explain(self, request: Explain) -> str:
        """The page of an input, with the form above it."""
        if request.features and not self.has_features:
            raise RequestError(422, "`features`: the model has none.")
        self._check("text", request.source)
        if request.reference and not self._model.target.encode(request.reference):
            raise RequestError(422, "`reference` must hold at least one token.")

        def run(items: list[Any], check: Check) -> list[str]:
            return [self._page(item, check) for item in items]

        key: Hashable = object()  # a page is a batch of its own
        (found,) = await self._batcher.submit(key, run, [request])
        return found

    def _check(self, place: str, text: str) -> None:
        """Checks that the model can read a text, and that it is one input."""
        num_tabs = {Featured.kind: 1, Inflection.kind: text.count("\t")}
        if set(text) & set("\n\r\0"):
            raise RequestError(422, f"`{place}` must be one line, without NUL.")
        if text.count("\t") > num_tabs.get(self._model.source.kind, 0):
            raise RequestError(422, f"`{place}` has other columns than an input.")
        try:
            is_empty = not self._model.source.encode(text)
        except ValueError as error:
            raise RequestError(422, f"`{place}`: {error}") from None
        if is_empty:
            raise RequestError(422, f"`{place}` must hold at least one token.")

    def _live(self, request: Predict) -> int:
        """How many hypotheses of an input are live at once."""
        width = max(request.beam or self._defaults.beam, request.nbest)
        widths = {"exhaustive": MAX_EXHAUSTIVE, "greedy": 1, "beam": width}
        return request.samples or widths[request.method]

    def _check_positions(self, request: Predict) -> None:
        """Checks that the hypotheses of one input fit into memory."""
        live = self._live(request)
        longest = max(len(self._model.source.encode(text)) for text in request.inputs)
        if live * longest > MAX_POSITIONS:
            raise RequestError(
                422,
                f"With {live} hypotheses an input may have at most {MAX_POSITIONS // live} tokens, "
                f"got {longest}; ask for fewer.",
            )

    @CODES.in_use()
    def _decode(
        self, request: Predict, items: list[tuple[str, Constraint]], check: Check
    ) -> list[dict[str, Any]]:
        model, texts = self._model, [text for text, _ in items]
        width = max(request.beam or self._defaults.beam, request.nbest)
        live = self._live(request)
        longest = max(len(model.source.encode(text)) for text in texts)
        options: dict[str, Any] = {
            "batch_size": max(1, min(MAX_POSITIONS // (live * longest), self._batcher.batch_size)),
            "max_length": request.max_length or self._limits.max_length,
            "constraints": [constraint for _, constraint in items],
            "before_step": check,
        }
        records = [input_record(model, text) for text in texts]
        if request.samples:
            options |= {
                "samples": request.samples,
                "temperature": request.temperature,
                "seed": request.seed,
            }
            drawn = sample(self._models, texts, **options)
            return [
                {**record, "outputs": output_records(model, found)}
                for record, found in zip(records, drawn, strict=True)
            ]
        results = decode(
            self._models,
            texts,
            method=request.method,
            beam=width,
            nbest=width if request.method == "beam" else None,
            attention=request.attention,
            length_power=request.length_power,
            **options,
        )
        weights = 0
        for record, result in zip(records, results, strict=True):
            found = result.hypotheses[: request.nbest]
            if request.attention:
                weights += sum(
                    each.attention.numel() for each in found if each.attention is not None
                )
                if weights > self._limits.weights:
                    most = self._limits.weights
                    raise RequestError(422, f"An answer holds at most {most} attention weights.")
                record["source"] = model.source.tokens(model.source.encode(record["input"]))
            record["outputs"] = output_records(
                model, found, attention=request.attention, length_power=request.length_power
            )
            if request.certificate:
                record |= certificate_record(result)
        return records

    @CODES.in_use()
    def _score(self, pairs: list[tuple[str, str]], check: Check) -> list[dict[str, Any]]:
        model = self._model
        longest = max(len(model.source.encode(source)) for source, _ in pairs)
        size = max(1, min(MAX_POSITIONS // longest, self._batcher.batch_size))
        records = []
        scores = score(self._models, pairs, batch_size=size, before_step=check)
        for (source, target), found in zip(pairs, scores, strict=True):
            log_p = found.log_probability
            record = input_record(model, source) | {
                "target": target,
                "probability": found.probability,
                "log_probability": log_p if log_p > -math.inf else None,
                "tokens": model.target.tokens(found.tokens),
                "probabilities": list(found.probabilities),
            }
            _, unknown = unknown_of_pair(model.source, model.target, (source, target))
            if unknown:
                record["unknown_target"] = unknown
            records.append(record)
        return records

    def _page(self, request: Explain, check: Check) -> str:
        tokens = len(self._model.source.encode(request.source))
        found = explain(
            self._models,
            request.source,
            reference=request.reference or None,
            shown=request.shown,
            limit=max(1, min(self._limits.limit, MAX_POSITIONS // tokens)),
            max_length=self._limits.max_length,
            before_step=check,
        )
        return page(found, form(request.model_dump(), self.has_features))


def _constraint(constraint: Constraint, model: Seq2Seq) -> Constraint:
    """The constraint, checked to name tokens of the model."""
    try:
        Restriction([constraint], model.target, torch.device("cpu"))
    except ValueError as error:
        raise RequestError(422, str(error)) from None
    return constraint
