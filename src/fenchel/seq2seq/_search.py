"""Greedy, beam and exhaustive search, with certificates of what they found."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from . import _frontier
from ._ensemble import Decoder, Ensemble
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

    A hypothesis has the probability Πₜ p(yₜ | y₁ … yₜ₋₁, x), to the end of the sequence. Tokens of
    probability zero are not followed. What is cut is remembered by the largest probability among
    it, which no continuation can exceed; `Result.exact` and `Result.complete` follow from it.

    Args:
        models: a model, or several, whose probabilities for the next token are averaged; a
            `Seq2Seq` or any other object with `start`, `step` and `probabilities`.
        source: (B, S) tokens.
        lengths: (B,) how many of each row are not padding.
        method: "greedy" follows the most probable token; "beam" the `beam` best hypotheses of each
            length, beside those that have finished; "exhaustive" all of them.
        beam: how many live hypotheses are kept for an input.
        nbest: the most hypotheses to return; by default as many as `beam`, or all found by an
            exhaustive search. A live hypothesis that cannot be among them any more is dropped.
        max_length: the most tokens of a hypothesis, without its end. Where it breaks one off,
            nothing is certified.
        limit: the most live, and the most finished, hypotheses of an input in an exhaustive
            search, which bounds its memory; what exceeds it is cut, and so not certified. Inputs
            are searched a few at a time, with no more than 8192 live hypotheses together.
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
    _checks.sources(source, lengths)
    sizes = {
        "beam": beam,
        "max_length": max_length,
        "limit": limit,
        "nbest": 1 if nbest is None else nbest,
    }
    for name, value in sizes.items():
        _checks.search_size(name, value)
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
