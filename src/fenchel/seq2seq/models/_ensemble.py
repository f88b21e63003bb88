"""Several models that decode as one, by the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..._checks import type_name
from ...attention import KeysValues
from ..data._vocabulary import Vocabulary
from ._checks import (
    check_all_copy,
    check_distributions,
    check_same_sizes,
    check_same_vocabularies,
)
from ._model import Seq2Seq
from ._pointer import Pointer
from ._state import State

CHUNK = 1024
"""The most hypotheses in one call of a model's `step`, to bound its memory."""

ROUNDING = 2.0**14
"""How far a row of probabilities may move when a model computes it in another batch: in total
variation, in units of the rounding error of its scores' dtype. See docs/concepts/search.md."""


@runtime_checkable
class Decoder(Protocol):
    """What search needs of a model: `Seq2Seq`, or anything with these three methods.

    A state holds tensors, and caches of keys, whose first dimension is the hypotheses.
    """

    def start(self, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token, of source (B, S) and lengths (B,)."""
        ...

    def step(self, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """Scores (B, V), attention (B, heads, S) and the state after the tokens (B,)."""
        ...

    def probabilities(self, scores: Tensor) -> Tensor:
        """The probabilities (B, V) of the next token, with exact zeros."""
        ...


def check_decoders(models: Any) -> list[Any]:
    """One model or several as a list, checked to have what a search needs."""
    found = list(models) if isinstance(models, (list, tuple)) else [models]
    for model in found:
        if not isinstance(model, Decoder):
            raise TypeError(
                "`models` must be a model, or a list of models, with `start`, `step` and "
                f"`probabilities`; got {type_name(model)}."
            )
    if not found:
        raise ValueError("`models` must hold at least one model, got none.")
    return found


class Ensemble:
    """The mean of the models' probabilities for the next token, given the same prefix.

    A mean of distributions is a distribution, so prefixes have probabilities as with one model. A
    token has probability zero only if it does in all models. Attention is concatenated over heads;
    if the models copy, one more holds the probabilities of copying each position.

    Args:
        models: one, or several.
        temperature: divides all scores.
    """

    def __init__(self, models: Decoder | Sequence[Decoder], temperature: float = 1.0) -> None:
        self.models, self._temperature = check_decoders(models), temperature
        check_same_vocabularies(self.models)
        check_all_copy([_pointer(model) is not None for model in self.models])
        self.rounding = 0.0
        """How far a row of probabilities of the last step may move: see `ROUNDING`."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The target vocabulary; without one, a sequence of tokens is its own text."""
        targets = (getattr(model, "target", None) for model in self.models)
        return next((target for target in targets if isinstance(target, Vocabulary)), None)

    @property
    def is_unambiguous(self) -> bool:
        """Whether different outputs have different texts. Only `Seq2Seq` never outputs padding or
        begin, which no text shows."""
        known = self.vocabulary
        return known is None or (
            known.is_unambiguous and all(isinstance(model, Seq2Seq) for model in self.models)
        )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without gradients, and with all modules in evaluation mode until the end of the block."""
        training = [
            model for model in self.models if isinstance(model, torch.nn.Module) and model.training
        ]
        try:
            for model in training:
                model.eval()
            with torch.no_grad():
                yield
        finally:
            for model in training:
                model.train()

    def start(self, source: Tensor, lengths: Tensor) -> list[State]:
        """One state for each model."""
        return [model.start(source, lengths) for model in self.models]

    def step(self, states: list[State], tokens: Tensor) -> tuple[Tensor, Tensor, list[State]]:
        """The averaged probabilities (R, V), at most 1, the attention (R, heads, S), new states.

        Raises:
            ValueError: if a model's probabilities are not a distribution, or NaN; or if the models
                have different target vocabularies.
        """
        probabilities, attention, copied, after, errors = [], [], [], [], []
        for model, state in zip(self.models, states, strict=True):
            scores, weights, state = model.step(state, tokens)
            errors.append(ROUNDING * torch.finfo(scores.dtype).eps)
            if self._temperature != 1:
                scores = scores / self._temperature
            p = model.probabilities(scores)
            if (pointer := _pointer(model)) is not None:
                copied.append(p[:, None, pointer.size :])
                p = pointer.merge(p, state)
            probabilities.append(p)
            attention.append(weights)
            after.append(state)
        check_same_sizes([p.shape[-1] for p in probabilities])
        mean = probabilities[0]
        if len(probabilities) > 1:  # in float64, or the mean of denormals could be zero
            mean = torch.stack([p.double() for p in probabilities]).mean(0)
        check_distributions(mean)
        self.rounding = max(errors)
        if copied:
            attention.append(torch.stack(copied).mean(0).to(attention[0].dtype))
        return mean.clamp(max=1.0), torch.cat(attention, 1), after

    def tokens(self, states: list[State], rows: Tensor, columns: Tensor) -> Tensor:
        """The tokens (N,) of these columns (N,) of these rows (N,) of a step's probabilities. They
        are the columns themselves, unless the models copy."""
        pointer = _pointer(self.models[0])
        return columns if pointer is None else pointer.ids(states[0], rows, columns)

    def columns(self, states: list[State], tokens: Tensor) -> Tensor:
        """The columns of tokens (R, ...) in a step's probabilities (R, V)."""
        pointer = _pointer(self.models[0])
        return tokens if pointer is None else pointer.columns(states[0], tokens)

    def copied_tokens(self, source: Tensor) -> Tensor | None:
        """The tokens (B, S) of the columns behind the vocabulary's, for sources (B, S);
        `NOT_COPIED` for columns that are always zero. None unless the models copy."""
        pointer = _pointer(self.models[0])
        return None if pointer is None else pointer.copied_tokens(source)


def _pointer(model: Any) -> Pointer | None:
    """The pointer of a model that copies."""
    return model.pointer if isinstance(model, Seq2Seq) else None


def select(states: list[State], rows: Tensor) -> list[State]:
    """The states of these rows, in this order; not copied if that is all of them."""
    size = next((len(value) for state in states for value in state.values()), 0)
    if len(rows) == size and torch.equal(rows, torch.arange(size, device=rows.device)):
        return states
    return [{key: value.index_select(0, rows) for key, value in state.items()} for state in states]


def cut_out(states: list[State], rows: slice) -> list[State]:
    """Views of some rows of the states."""
    return [{key: value[rows] for key, value in state.items()} for state in states]


def join(parts: list[list[State]]) -> list[State]:
    """The states of all parts, concatenated."""
    if len(parts) == 1:
        return parts[0]
    models = zip(*parts, strict=True)
    return [{key: _join([part[key] for part in model]) for key in model[0]} for model in models]


def _join(values: list[Any]) -> Any:
    return KeysValues.join(values) if isinstance(values[0], KeysValues) else torch.cat(values)
