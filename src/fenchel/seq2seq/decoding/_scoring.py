"""The probability of given outputs, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .._checks import check_not_empty, check_search_size, check_texts
from ..data._batches import padded, split_batches
from ..data._codes import CODES
from ..data._readers import Pair
from ..data._vocabulary import BOS, EOS
from ..models._ensemble import Ensemble, check_decoders
from ..models._model import Seq2Seq
from ..models._state import State


@dataclass(frozen=True)
class Score:
    """The probability of one output, given its source.

    Args:
        tokens: the ids of the output's tokens, without begin and end, as the vocabulary splits it.
        probabilities: of each token, and of the end, given the tokens before it.

    >>> found = Score((4, 5), (0.5, 0.5, 1.0))
    >>> found.probability, found.is_possible
    (0.25, True)
    >>> Score((4,), (0.0, 1.0)).first_zero
    0
    """

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]

    @cached_property
    def log_probability(self) -> float:
        """The natural logarithm of the probability; −inf if the output is impossible."""
        return sum(math.log(p) if p > 0 else -math.inf for p in self.probabilities)

    @property
    def probability(self) -> float:
        """The product of the probabilities; it may underflow where its logarithm does not."""
        return math.exp(self.log_probability)

    @property
    def first_zero(self) -> int | None:
        """The index of the first token, or of the end, that has probability zero, or None."""
        return next((i for i, p in enumerate(self.probabilities) if p == 0), None)

    @property
    def is_possible(self) -> bool:
        """Whether the probability is not zero."""
        return self.first_zero is None


def forced_steps(
    ensemble: Ensemble, source: Tensor, lengths: Tensor, target: Tensor
) -> Iterator[tuple[Tensor, list[State]]]:
    """The probabilities (B, V) of the next token, before each token of given targets, and the
    states of that step.

    It is called inside of `ensemble.evaluating()`.

    Args:
        ensemble: the models.
        source, lengths: tokens (B, S) and their numbers (B,).
        target: tokens (B, T), without begin, padded with 0.
    """
    states = ensemble.start(source, lengths)
    last = torch.full_like(target[:, 0], BOS)
    for token in target.unbind(1):
        p, _, states = ensemble.step(states, last)
        yield p, states
        last = token


@CODES.in_use()
def score(
    models: Seq2Seq | Sequence[Seq2Seq],
    pairs: Sequence[Pair],
    *,
    batch_size: int = 256,
    before_step: Callable[[], None] | None = None,
) -> list[Score]:
    """The probabilities of given outputs: Πₜ p(yₜ | y₁ … yₜ₋₁, x), the end included.

    The tokens are those that the target vocabulary splits the output into. If other sequences of
    subwords spell the same text, their probability is not counted; `search` adds them up.

    Args:
        models: a model, or several, whose probabilities for the next token are averaged.
        pairs: sources and outputs.
        batch_size: the largest number of pairs computed at once.
        before_step: called before each step of the models; what it raises ends the computation.
    Returns:
        One score for each pair, in their order.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a text is empty or has another format.

    Cost: a step of the models for each token of the longest output of a batch.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> (found,) = score(model, [("abc", "ab")])
    >>> found.tokens, len(found.probabilities), found.is_possible
    ((4, 5), 3, True)
    """
    check_search_size("batch_size", batch_size)
    check_texts([text for pair in pairs for text in pair])
    models = check_decoders(models)
    ensemble, device = Ensemble(models), next(models[0].parameters()).device
    ids: list[tuple[list[int], list[int]]] = []
    for source, target in pairs:
        ids.append((models[0].source.encode(source), models[0].target.encode(target)))
        check_not_empty("source", source, ids[-1][0])
        check_not_empty("target", target, ids[-1][1])
    lengths = [max(len(x), len(y) + 1) for x, y in ids]
    order = sorted(range(len(ids)), key=lambda i: (lengths[i], len(ids[i][1])))
    found: dict[int, Score] = {}
    for rows in split_batches([lengths[i] for i in order], batch_size):
        chosen = order[rows]
        sources, targets = zip(*(ids[i] for i in chosen), strict=True)
        target = padded([[*y, EOS] for y in targets]).to(device)
        source_lengths = torch.tensor([len(x) for x in sources], device=device)
        with ensemble.evaluating():
            steps = forced_steps(ensemble, padded(sources).to(device), source_lengths, target)
            probabilities = []
            for token in target.unbind(1):
                if before_step is not None:
                    before_step()
                row, states = next(steps)
                probabilities.append(row.gather(1, ensemble.columns(states, token)[:, None])[:, 0])
            p = torch.stack(probabilities)
        for i, y, row in zip(chosen, targets, p.T.tolist(), strict=True):
            found[i] = Score(tuple(y), tuple(row[: len(y) + 1]))
    return [found[i] for i in range(len(ids))]
