"""Greedy, beam and exhaustive search, with certificates of what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ... import _checks
from ..._choices import SEARCH_METHODS
from .._checks import check_search_size, check_sources
from ..models._ensemble import Decoder, Ensemble
from . import _beam
from ._constraints import Constraint, constraint_of_each
from ._hypotheses import Result
from ._normalization import Normalization
from ._restriction import restriction_of

MAX_LENGTH_POWER = 10
MAX_LIVE = 8192
"""How many live hypotheses, with their states, a search holds at a time; no beam is wider."""


def search(
    models: Decoder | Sequence[Decoder],
    source: Tensor,
    lengths: Tensor,
    *,
    method: str = "beam",
    beam: int = 5,
    nbest: int | None = None,
    max_length: int = 100,
    limit: int = 1000,
    attention: bool = False,
    constraints: Constraint | Sequence[Constraint | None] | None = None,
    length_power: float = 0.0,
    before_step: Callable[[], None] | None = None,
) -> list[Result]:
    """Finds the most probable outputs of each input, and proves what it can about them.

    A sequence of tokens has the probability Πₜ p(yₜ | y₁ … yₜ₋₁, x), its end included. A text has
    the probability of all sequences that spell it. Tokens of probability zero are never added. The
    probability of a pruned prefix bounds that of all its continuations together; the certificates
    `Result.exact` and `Result.complete` follow from these bounds.

    Args:
        models: a model, or several, whose probabilities for the next token are averaged. A model is
            a `Seq2Seq` or any other object with `start`, `step` and `probabilities`. Its `target`
            is the vocabulary that spells texts; without it every sequence is a text of its own.
        source: tokens (B, S).
        lengths: (B,), the number of tokens of each row without padding.
        method: "greedy" keeps the most probable token; "beam" the `beam` best live sequences of
            each length; "exhaustive" all of them, up to `limit`.
        beam: how many live sequences an input keeps, at most 8192.
        nbest: the largest number of texts to return, at most 8192; by default `beam`, or all texts
            found by an exhaustive search. Live sequences are pruned once they can neither be among
            these texts nor change a certificate.
        max_length: the largest number of tokens of a sequence, without its end, at most 10,000. If
            no sequence ends within it, nothing is certified.
        limit: the largest number of live, and of finished, sequences of an input in an exhaustive
            search, at most 8192; the others are pruned. Inputs are searched in groups with no more
            than 8192 live sequences together.
        attention: whether hypotheses come with their attention weights.
        constraints: one for all inputs, or a list with one or None for each. Only the outputs that
            they allow are searched for, and certificates are about these. Their probabilities are
            those of the model, which together may be less than one. If none is found and the
            result is complete, the model gives all of them probability zero.
        length_power: ranks finished sequences by log p / lengthᵖ, with p at most 10, where the
            length counts the tokens and the end; for dense models, which favour short outputs.
            `exact` is then about this score, among outputs of at most `max_length` tokens; where
            a text may have several sequences, only complete results are exact. Not for greedy
            search.
        before_step: called before each step of the models; what it raises ends the search.
    Returns:
        One `Result` for each input.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a model's probabilities are NaN,
            negative or do not sum to one.

    Cost: at most `max_length` + 1 steps of the models, on the live sequences alone. Certificates
    need no further steps.

    >>> class Coin:  # "5" and the end, or "6" for ever
    ...     def start(self, source, lengths):
    ...         return {"last": source[:, 0]}
    ...     def step(self, state, tokens):
    ...         rows = {1: [0, 0, 0, 0, 0, 0.75, 0.25], 5: [0, 0, 1.0, 0, 0, 0, 0]}
    ...         last = [0, 0, 0, 0, 0, 0, 1.0]
    ...         p = torch.tensor([rows.get(int(token), last) for token in tokens])
    ...         return p, p[:, None, :1], {"last": tokens}
    ...     def probabilities(self, scores):
    ...         return scores
    >>> (result,) = search(Coin(), torch.tensor([[7]]), torch.tensor([1]), nbest=1)
    >>> result.hypotheses[0].tokens, result.hypotheses[0].probability
    ((5,), 0.75)
    >>> result.exact, result.complete, result.bound
    (True, False, 0.25)

    References: peters2019sparse.
    """
    _checks.check_choice("method", method, SEARCH_METHODS)
    check_sources(source, lengths)
    sizes = {
        "beam": beam,
        "max_length": max_length,
        "limit": limit,
        "nbest": 1 if nbest is None else nbest,
    }
    for name, value in sizes.items():
        check_search_size(name, value)
    check_length_power(length_power, method)
    allowed = constraint_of_each(constraints, len(source))
    ensemble = Ensemble(models)
    width = {"beam": beam, "greedy": 1, "exhaustive": limit}[method]
    plan = _beam.Plan(
        width=width,
        keep=1 if method == "greedy" else nbest or width,
        greedy=method == "greedy",
        max_length=max_length,
        attention=attention,
        vocabulary=None if ensemble.is_unambiguous else ensemble.vocabulary,
        normalization=Normalization(float(length_power), max_length),
        before_step=before_step,
    )
    size = MAX_LIVE // width
    results: list[Result] = []
    with ensemble.evaluating():
        for begin in range(0, len(source), size):
            items = slice(begin, begin + size)
            restriction = restriction_of(ensemble, source[items], allowed[items])
            results += _beam.run(ensemble, source[items], lengths[items], plan, restriction)
    return results


def check_length_power(power: Any, method: str) -> None:
    """Checks the power of the length that a search divides log-probabilities by."""
    _checks.check_number("length_power", power, minimum=0, maximum=MAX_LENGTH_POWER)
    if power and method == "greedy":
        raise ValueError(
            "`length_power` needs the method beam or exhaustive: greedy compares none."
        )
