"""Ancestral samples of a model's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from ..._checks import check_integer, check_number
from .._checks import check_search_size
from ..data._vocabulary import BOS, EOS
from ..models._ensemble import CHUNK, Decoder, Ensemble, check_decoders, cut_out, join, select
from ..models._model import Seq2Seq
from ..models._state import State
from ._batched import in_batches
from ._constraints import Constraint
from ._hypotheses import BackPointers, Ends, Hypothesis, Sequences, backtrace
from ._restriction import Restriction, restriction_of
from ._search import MAX_LIVE


def sample(
    models: Seq2Seq | Sequence[Seq2Seq],
    texts: Sequence[str],
    *,
    samples: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 256,
    max_length: int = 100,
    constraints: Constraint | Sequence[Constraint | None] | None = None,
    before_step: Callable[[], None] | None = None,
) -> list[list[Hypothesis]]:
    """Draws outputs from the model's distribution, token after token.

    A sequence y is drawn with its probability Πₜ p(yₜ | y₁ … yₜ₋₁, x), so what has probability
    zero is never drawn.

    Args:
        models: a model, or a list of models that form an ensemble.
        texts: in the format of the source vocabulary; a text without tokens has no sample.
        samples: how many to draw for each text, at most 8192.
        temperature: divides the scores before the output mapping, like its γ: below 1 the samples
            are closer to the most probable output, above 1 they vary more.
        seed: the samples of a text depend on it, on the text and on their number alone. In another
            batch rounding may change one, if a random number falls that close to a boundary.
        batch_size: the largest number of texts decoded at once.
        max_length: the largest number of tokens; a longer sample is cut off, and not `finished`.
        constraints: as for `search`. Every token is drawn from the allowed ones, in proportion to
            their probabilities. With a prefix of tokens these are samples given the prefix.
            Otherwise they are not distributed as the model's outputs given the constraint: what
            is not allowed later does not count earlier. A sample that no allowed token can
            continue is left out.
        before_step: called before each step of the models; what it raises ends the sampling.
    Returns:
        The samples of each text. Each is one sequence of tokens, with its probability at this
        temperature, which a constraint does not change.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a text has another format.

    Cost: at most `max_length` + 1 steps of the models, on the different prefixes alone.

    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> (found,) = sample(model, ["abc"], samples=3, max_length=5)
    >>> len(found), found == sample(model, ["abc"], samples=3, max_length=5)[0]
    (3, True)
    """
    _check_options(samples, temperature, seed, max_length)
    models = check_decoders(models)

    def run(source: Tensor, lengths: Tensor, allowed: list[Constraint | None]):
        return sample_sequences(
            models,
            source,
            lengths,
            samples=samples,
            temperature=temperature,
            seed=seed,
            max_length=max_length,
            constraints=allowed,
            before_step=before_step,
        )

    none: list[Hypothesis] = []
    return [
        list(found) for found in in_batches(models[0], texts, batch_size, constraints, run, none)
    ]


def _check_options(samples: Any, temperature: Any, seed: Any, max_length: Any) -> None:
    check_search_size("samples", samples)
    check_search_size("max_length", max_length)
    check_integer("seed", seed)
    check_number("temperature", temperature, above=0)


def sample_sequences(
    models: Decoder | Sequence[Decoder],
    source: Tensor,
    lengths: Tensor,
    *,
    samples: int,
    temperature: float,
    seed: int,
    max_length: int,
    constraints: Sequence[Constraint | None],
    before_step: Callable[[], None] | None = None,
) -> list[list[Hypothesis]]:
    """The samples of each row of tokens (B, S); the arguments are those of `sample`."""
    ensemble = Ensemble(models, temperature)
    size = max(1, MAX_LIVE // samples)
    found: list[list[Hypothesis]] = []
    with ensemble.evaluating():
        for begin in range(0, len(source), size):
            items = slice(begin, begin + size)
            restriction = restriction_of(ensemble, source[items], constraints[items])
            draw = _Draw(ensemble, restriction, max_length, before_step)
            found += draw.run(source[items], lengths[items], samples, seed)
    return found


class _Draw:
    """Draws the samples of a batch together; those with the same prefix share its state."""

    def __init__(
        self,
        ensemble: Ensemble,
        restriction: Restriction | None,
        max_length: int,
        before_step: Callable[[], None] | None,
    ) -> None:
        self._ensemble, self._restriction = ensemble, restriction
        self._max_length, self._before_step = max_length, before_step

    def run(
        self, source: Tensor, lengths: Tensor, samples: int, seed: int
    ) -> list[list[Hypothesis]]:
        item = torch.arange(len(source), device=source.device)
        zero = torch.zeros(len(source), dtype=torch.float64, device=source.device)
        live = Sequences(item, zero, zero, zero, item, torch.full_like(item, BOS), zero + 1)
        randoms = _generators(source.tolist(), lengths.tolist(), samples, seed)
        number = torch.arange(len(source) * samples, device=source.device)
        row = number // samples
        states = self._ensemble.start(source, lengths)
        history: list[BackPointers] = []
        drawn: list[tuple[Ends, list[int]]] = []
        for length in range(self._max_length + 1):
            uniform = torch.tensor(
                [randoms[index].random() for index in number.tolist()],
                dtype=torch.float64,
                device=source.device,
            )
            token, probability, states = self._step(states, live, history, length, row, uniform)
            history.append(BackPointers(live.parent, live.token, live.probability))
            is_over, goes_on = token == EOS, (token >= 0) & (token != EOS)
            if length == self._max_length:
                if self._restriction is not None:  # a part of a prefix is no output
                    goes_on = goes_on & self._restriction.has_prefix[row]
                probability = probability.masked_fill(goes_on, math.nan)
                is_over, goes_on = is_over | goes_on, goes_on & False
            over = self._extended(live, row[is_over], token[is_over], probability[is_over])
            drawn.append((Ends.at(length, over), number[is_over].tolist()))
            if not goes_on.any():
                break
            row, token, probability = row[goes_on], token[goes_on], probability[goes_on]
            number = number[goes_on]
            # Of the samples that continue a prefix by the same token, the first one stands for all.
            tokens, place = token.unique(return_inverse=True)  # a copied token's id may be large
            key = row * len(tokens) + place
            different, inverse = key.unique(return_inverse=True)
            first = torch.full_like(different, len(key)).scatter_reduce(
                0, inverse, torch.arange(len(key), device=key.device), "amin"
            )
            live = self._extended(live, row[first], token[first], probability[first])
            states, row = select(states, live.parent), inverse
        return self._in_order(drawn, history, lengths, samples)

    def _step(
        self,
        states: list[State],
        live: Sequences,
        history: list[BackPointers],
        length: int,
        row: Tensor,
        uniform: Tensor,
    ) -> tuple[Tensor, Tensor, list[State]]:
        """A token (N,) for each sample, which continues row `row` of the live sequences.

        Returns:
            The tokens, −1 where none is allowed, their probabilities, and the next states.
        """
        if self._restriction is not None:
            self._restriction.advance(live, history, length)
        token = torch.full_like(row, -1)
        probability = torch.zeros_like(uniform)
        parts = []
        for begin in range(0, len(live), CHUNK):
            if self._before_step is not None:
                self._before_step()
            rows = slice(begin, begin + CHUNK)
            p, _, part = self._ensemble.step(cut_out(states, rows), live.token[rows])
            parts.append(part)
            p = p.double() / p.sum(-1, keepdim=True, dtype=torch.float64)
            if self._restriction is not None:
                allowed = self._restriction.mask(live[rows], begin, p.shape[-1])
                p = p.masked_fill(~allowed, 0)
            cumulative = p.cumsum(-1)
            here = ((row >= begin) & (row < begin + len(p))).nonzero().squeeze(1)
            for group in here.split(CHUNK):
                own = cumulative[row[group] - begin]
                total = own[:, -1:]
                below = torch.nextafter(total, torch.zeros_like(total))
                threshold = torch.minimum(uniform[group, None] * total, below)
                chosen = torch.searchsorted(own, threshold, right=True).squeeze(1)
                is_possible = total.squeeze(1) > 0
                index, own_row = chosen.clamp(max=p.shape[-1] - 1), row[group] - begin
                token[group] = self._ensemble.tokens(part, own_row, index).where(is_possible, -1)
                probability[group] = p[own_row, index]
        return token, probability, join(parts)

    @staticmethod
    def _extended(live: Sequences, row: Tensor, token: Tensor, probability: Tensor) -> Sequences:
        log_p = live.log_p[row] + probability.log().nan_to_num(0.0, neginf=-math.inf)
        return Sequences(live.item[row], log_p, log_p, log_p, row, token, probability)

    @staticmethod
    def _in_order(
        drawn: list[tuple[Ends, list[int]]],
        history: list[BackPointers],
        lengths: Tensor,
        samples: int,
    ) -> list[list[Hypothesis]]:
        """The samples of each input by their numbers."""
        found: dict[int, Hypothesis] = {}
        sizes = lengths.tolist()
        for ends, numbers in drawn:
            sequences = backtrace(history, ends, [False] * len(numbers), sizes)
            found.update(zip(numbers, sequences, strict=True))
        return [
            [found[n] for n in range(item * samples, (item + 1) * samples) if n in found]
            for item in range(len(sizes))
        ]


def _generators(
    sources: list[list[int]], lengths: list[int], samples: int, seed: int
) -> list[Random]:
    """The random numbers of each sample, which do not depend on the batch."""
    return [
        Random(f"{seed} {number} {source[:length]}")
        for source, length in zip(sources, lengths, strict=True)
        for number in range(samples)
    ]
