"""Greedy, beam and exhaustive search, with certificates of what they found."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ... import _checks
from .._checks import check_search_size, check_sources
from ..models._ensemble import Decoder, Ensemble
from . import _frontier
from ._hypotheses import Result

METHODS = ("beam", "greedy", "exhaustive")
LIVE = 8192
"""The most hypotheses whose states a search holds at a time; no beam is wider."""


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
) -> list[Result]:
    """The most probable outputs for each input, and whether better ones can exist.

    A sequence of tokens has the probability Πₜ p(yₜ | y₁ … yₜ₋₁, x), to its end, and a text that of
    all sequences that spell it. Tokens of probability zero are not followed. What is cut is
    remembered by its probability, which no continuation can exceed, nor all of them together;
    `Result.exact` and `Result.complete` follow from it.

    Args:
        models: a model, or several, whose probabilities for the next token are averaged; a
            `Seq2Seq` or any other object with `start`, `step` and `probabilities`. Its `target` is
            the vocabulary that spells texts; without one every sequence is a text of its own.
        source: (B, S) tokens.
        lengths: (B,) how many of each row are not padding.
        method: "greedy" follows the most probable token; "beam" the `beam` best hypotheses of each
            length, beside those that have finished; "exhaustive" all of them.
        beam: how many live sequences are kept for an input, at most 8192.
        nbest: the most texts to return, at most 8192; by default as many as `beam`, or all found
            by an exhaustive search. A live sequence that cannot be among them, nor decide what is
            certified, is dropped.
        max_length: the most tokens of a sequence, without its end, at most 10,000. Where it breaks
            one off, nothing is certified.
        limit: the most live, and the most finished, sequences of an input in an exhaustive search,
            at most 8192; what exceeds it is cut. Inputs are searched a few at a time, with no more
            than 8192 live sequences together.
        attention: whether hypotheses come with their attention weights.
    Returns:
        One `Result` for each input.
    Raises:
        TypeError, ValueError: if an argument is wrong, or a model's probabilities are NaN,
            negative or do not sum to one.

    Cost: at most `max_length` + 1 steps of the models, each on the live hypotheses alone. A
    certificate costs nothing.

    >>> class Coin:  # says "5" and ends, or "6" for ever
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
    _checks.choice("method", method, METHODS)
    check_sources(source, lengths)
    sizes = {
        "beam": beam,
        "max_length": max_length,
        "limit": limit,
        "nbest": 1 if nbest is None else nbest,
    }
    for name, value in sizes.items():
        check_search_size(name, value)
    ensemble = Ensemble(models)
    width = {"beam": beam, "greedy": 1, "exhaustive": limit}[method]
    plan = _frontier.Plan(
        width=width,
        keep=1 if method == "greedy" else nbest or width,
        greedy=method == "greedy",
        max_length=max_length,
        attention=attention,
        vocabulary=None if ensemble.unique else ensemble.vocabulary,
    )
    size = LIVE // width
    results: list[Result] = []
    with ensemble.evaluating():
        for begin in range(0, len(source), size):
            items = slice(begin, begin + size)
            results += _frontier.run(ensemble, source[items], lengths[items], plan)
    return results
