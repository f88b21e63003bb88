"""Several models that decode as one: their raw probabilities are averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ... import _checks
from ..data._vocabulary import Vocabulary
from ._model import Seq2Seq
from ._state import State

CHUNK = 1024
"""How many hypotheses a model sees at once, so that a step needs no more memory than this many."""

ROUNDING = 2.0**14
"""How many roundings of its scores' dtype a row of probabilities may be off, in total variation,
when a model computes it in another batch: see docs/concepts/search.md."""


@runtime_checkable
class Decoder(Protocol):
    """What search needs of a model: `Seq2Seq`, or anything with these three methods.

    Every tensor of a state has the hypotheses as its first dimension.
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


class Ensemble:
    """The mean of the models' probabilities for the next token, given the same prefix.

    The mean of distributions is one, so that prefixes have probabilities as with one model, and a
    token has probability zero only where all models say so. Attention is concatenated over heads.
    """

    def __init__(self, models: Decoder | Sequence[Decoder]) -> None:
        self.models = _checks.decoders(models, Decoder)
        _checks.same_vocabularies(self.models)
        self.rounding = 0.0
        """How far a row of probabilities may be off, of the last step: see `ROUNDING`."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What outputs are read with; without it a sequence of tokens is its own text."""
        targets = (getattr(model, "target", None) for model in self.models)
        return next((target for target in targets if isinstance(target, Vocabulary)), None)

    @property
    def is_unambiguous(self) -> bool:
        """Whether no text is spelled by two outputs; other models may say padding and begin, which
        no text shows."""
        known = self.vocabulary
        return known is None or (
            known.is_unambiguous and all(isinstance(model, Seq2Seq) for model in self.models)
        )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without gradients, and with modules in evaluation mode, which is undone afterwards."""
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
        probabilities, attention, after, errors = [], [], [], []
        for model, state in zip(self.models, states, strict=True):
            scores, weights, state = model.step(state, tokens)
            errors.append(ROUNDING * torch.finfo(scores.dtype).eps)
            probabilities.append(model.probabilities(scores))
            attention.append(weights)
            after.append(state)
        _checks.same_classes([p.shape[-1] for p in probabilities])
        mean = probabilities[0]
        if len(probabilities) > 1:  # in double, where the mean of denormals is not zero
            mean = torch.stack([p.double() for p in probabilities]).mean(0)
        _checks.distributions(mean)
        self.rounding = max(errors)
        return mean.clamp(max=1.0), torch.cat(attention, 1), after


def select(states: list[State], rows: Tensor) -> list[State]:
    """The states of these rows, in their order; the states themselves if that is all of them."""
    size = next((len(value) for state in states for value in state.values()), 0)
    if len(rows) == size and torch.equal(rows, torch.arange(size, device=rows.device)):
        return states
    return [{key: value.index_select(0, rows) for key, value in state.items()} for state in states]


def cut_out(states: list[State], rows: slice) -> list[State]:
    """Views of some rows of the states."""
    return [{key: value[rows] for key, value in state.items()} for state in states]


def join(parts: list[list[State]]) -> list[State]:
    """The states of all parts, one below the other."""
    if len(parts) == 1:
        return parts[0]
    models = zip(*parts, strict=True)
    return [{key: torch.cat([part[key] for part in model]) for key in model[0]} for model in models]
