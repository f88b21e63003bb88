"""What the service can be asked, checked against its limits."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..decoding._constraints import Constraint
from ._errors import RequestError
from ._limits import Limits

MAX_REASONS = 5
"""How many errors of a request an answer names."""
OF_SEARCH = ("nbest", "method", "beam", "certificate", "attention", "length_power")
OF_SAMPLES = ("temperature", "seed")


class Request(BaseModel):
    """The body of a request: a JSON object with these keys alone. An optional key that is null is
    not given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        optional = {name for name, each in cls.model_fields.items() if not each.is_required()}
        return {k: v for k, v in value.items() if v is not None or k not in optional}

    def texts(self) -> dict[str, str]:
        """Every text by its place, for the limit on characters."""
        return {}

    def counts(self) -> dict[str, int]:
        """Every number of outputs, for its limit."""
        return {}


class Predict(Request):
    """The inputs, and the options of `fenchel predict`."""

    inputs: list[str] = Field(min_length=1)
    nbest: int = Field(1, ge=1)
    method: Literal["beam", "greedy", "exhaustive"] = "beam"
    beam: int | None = Field(None, ge=1)
    max_length: int | None = Field(None, ge=1)
    certificate: bool = False
    attention: bool = False
    prefix: str = ""
    allowed: str | list[str] | None = None
    forbidden: str | list[str] = ""
    allow_unknown: bool = True
    length_power: float = Field(0.0, ge=0, le=10, allow_inf_nan=False)
    samples: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, gt=0, le=1e6, allow_inf_nan=False)
    seed: int = 0

    def texts(self) -> dict[str, str]:
        found = {f"inputs[{index}]": text for index, text in enumerate(self.inputs)}
        return {**found, "prefix": self.prefix}

    def counts(self) -> dict[str, int]:
        return {"nbest": self.nbest, "beam": self.beam or 1, "samples": self.samples or 1}

    @property
    def constraint(self) -> Constraint:
        """Which outputs are allowed."""
        return Constraint(self.prefix, self.allowed, self.forbidden, self.allow_unknown)

    def check(self) -> None:
        """Checks options that do not go together."""
        if self.length_power and self.method == "greedy":
            raise RequestError(422, "`length_power` needs the method beam or exhaustive.")
        if self.beam and self.method != "beam":
            raise RequestError(422, f"`beam` needs the method beam, got {self.method}.")
        if self.beam and self.nbest > self.beam:
            raise RequestError(
                422, f"`nbest` must be at most `beam`, {self.beam}, got {self.nbest}; raise `beam`."
            )
        given = [name for name in type(self).model_fields if name in self.model_fields_set]
        for name in given:
            if self.samples and name in OF_SEARCH and getattr(self, name):
                raise RequestError(422, f"`samples` does not search: leave out `{name}`.")
            if not self.samples and name in OF_SAMPLES:
                raise RequestError(422, f"`{name}` needs `samples`.")


class Pair(Request):
    """An input and an output."""

    source: str
    target: str


class Score(Request):
    """Pairs whose probabilities are wanted."""

    pairs: list[Pair] = Field(min_length=1)

    def texts(self) -> dict[str, str]:
        return {
            f"pairs[{index}].{name}": text
            for index, pair in enumerate(self.pairs)
            for name, text in (("source", pair.source), ("target", pair.target))
        }


class Explain(Request):
    """An input for the page of `fenchel explain`."""

    text: str
    features: str = ""
    reference: str = ""
    shown: int = Field(12, ge=1, le=100)

    def texts(self) -> dict[str, str]:
        return {"text": self.text, "features": self.features, "reference": self.reference}

    @property
    def source(self) -> str:
        """The input of the model: the text, and the features after a tab."""
        return f"{self.text}\t{self.features}" if self.features else self.text


Kind = TypeVar("Kind", bound=Request)


def parse(kind: type[Kind], body: bytes, limits: Limits) -> Kind:
    """The request in a body.

    Raises:
        RequestError: 400 if it is not JSON, 422 if it is not such a request, or too large.
    """
    try:
        return checked(kind.model_validate_json(body), limits)
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError) -> RequestError:
    """What a client is told of a request that is not valid."""
    reasons = []
    for part in error.errors()[:MAX_REASONS]:
        if part["type"] == "json_invalid":
            why = part["msg"].removeprefix("Invalid JSON: ")
            return RequestError(400, f"The body must be JSON in UTF-8: {why}.")
        where = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in part["loc"])
        reasons.append(f"`{where.lstrip('.')}`: {part['msg']}" if where else part["msg"])
    return RequestError(422, "; ".join(reasons) + ".")


def checked(request: Kind, limits: Limits) -> Kind:
    """The request, within the limits."""
    texts = request.texts()
    count = sum(place.startswith(("inputs", "pairs")) for place in texts)
    count = count // 2 if isinstance(request, Score) else count
    if count > limits.inputs:
        raise RequestError(422, f"A request holds at most {limits.inputs} inputs, got {count}.")
    for place, text in texts.items():
        if len(text) > limits.characters:
            raise RequestError(
                422, f"`{place}` must have at most {limits.characters} characters, got {len(text)}."
            )
        if "\0" in text:
            raise RequestError(422, f"`{place}` must not hold a NUL.")
    for name, value in request.counts().items():
        if value > limits.outputs:
            raise RequestError(422, f"`{name}` must be at most {limits.outputs}, got {value}.")
    length = getattr(request, "max_length", None) or 1
    if length > limits.max_length:
        raise RequestError(422, f"`max_length` must be at most {limits.max_length}, got {length}.")
    return request
