"""The probability of given outputs, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from .._checks import check_not_empty, check_search_size, check_texts
from ..data._batches import padded, split_batches
from ..data._readers import Pair
from ..data._vocabulary import BOS, EOS
from ..models._ensemble import Ensemble, check_decoders
from ..models._model import Seq2Seq


@dataclass(frozen=True)
class Score:
    """The probability of one output, given its source.

    Args:
        tokens: the ids of the output's tokens, as the vocabulary splits it.
        probabilities: of each token, and of the end, given the tokens before it.
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


def score(
    models: Seq2Seq | Sequence[Seq2Seq],
    pairs: Sequence[Pair],
    *,
    batch_size: int = 256,
    before_step: Callable[[], None] | None = None,
) -> list[Score]:
    """The probabilities of given outputs: Πₜ p(yₜ | y₁ … yₜ₋₁, x), the end included.

    Args:
        models: a model, or several, whose probabilities for the next token are averaged.
        pairs: sources and outputs.
        batch_size: the largest number of pairs computed at once.
        before_step: called before each step of the models; what it raises ends the computation.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a text is empty or has another format.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> (found,) = score(model, [("abc", "ab")])
    >>> found.tokens, len(found.probabilities)
    ((4, 5), 3)
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
    order = sorted(range(len(ids)), key=lambda i: lengths[i])
    found: dict[int, Score] = {}
    for rows in split_batches([lengths[i] for i in order], batch_size):
        chosen = order[rows]
        sources, targets = zip(*(ids[i] for i in chosen), strict=True)
        target = padded([[*y, EOS] for y in targets]).to(device)
        source_lengths = torch.tensor([len(x) for x in sources], device=device)
        columns = []
        with ensemble.evaluating():
            states = ensemble.start(padded(sources).to(device), source_lengths)
            last = torch.full_like(target[:, 0], BOS)
            for token in target.unbind(1):
                if before_step is not None:
                    before_step()
                p, _, states = ensemble.step(states, last)
                columns.append(p.gather(1, token[:, None])[:, 0])
                last = token
        for i, y, row in zip(chosen, targets, torch.stack(columns, 1).tolist(), strict=True):
            found[i] = Score(tuple(y), tuple(row[: len(y) + 1]))
    return [found[i] for i in range(len(ids))]
