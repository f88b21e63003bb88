"""What a search can prove about the texts that it found; docs/concepts/search.md has the proofs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ..data._vocabulary import Vocabulary
from ._hypotheses import BackPointers, token_sequences
from ._normalization import Normalization
from ._pruned import Prefixes, Pruned
from ._texts import Text


class Certificate(NamedTuple):
    """The fields of the same names of `Result`."""

    exact: bool
    complete: bool
    bound: float


def certify_sequences(
    texts: Sequence[Sequence[Text]],
    pruned: Pruned,
    unfinished: Tensor,
    normalization: Normalization,
) -> list[Certificate]:
    """The certificate of every input, if each text has one sequence, which was found or pruned."""
    certificates = []
    columns = (pruned.max_log_p.tolist(), pruned.max_upper.tolist(), unfinished.tolist())
    for found, log_p, upper, is_unfinished in zip(texts, *columns, strict=True):
        complete = not is_unfinished and log_p == -math.inf
        exact = complete
        if found and not is_unfinished:
            exact |= upper <= normalization.score(found[0].lower, found[0].length)
        certificates.append(Certificate(exact, complete, math.exp(log_p)))
    return certificates


def certify_texts(
    texts: Sequence[Sequence[Text]],
    keep: int,
    pruned: Pruned,
    unfinished: Tensor,
    history: list[BackPointers],
    vocabulary: Vocabulary,
    normalization: Normalization,
) -> list[Certificate]:
    """The certificate of every input, if a text may have several sequences.

    A pruned prefix then counts for every text that it can become. Which of its sequences is the
    most probable, and so its length, is only known if nothing was pruned: normalized by length,
    only complete results are exact.
    """
    certificates, uncertain = [], []
    columns = (pruned.max_log_p.tolist(), pruned.mass.tolist(), unfinished.tolist())
    for item, (found, log_p, mass, is_unfinished) in enumerate(zip(texts, *columns, strict=True)):
        nothing_pruned = not is_unfinished and log_p == -math.inf
        is_comparable = bool(found) and not is_unfinished and not normalization.power
        other, bound = upper_bounds(found, keep, [], mass)
        exact = nothing_pruned or (is_comparable and other <= math.exp(found[0].lower))
        complete = nothing_pruned and len(found) <= keep
        certificates.append(Certificate(exact, complete, 0.0 if complete else min(1.0, bound)))
        if is_comparable and not exact and vocabulary.is_prefix_monotone:
            uncertain.append(item)
    for item, prefixes in _spell(uncertain, pruned.largest, history, vocabulary).items():
        rest = max(0.0, columns[1][item] - math.fsum(mass for _, mass in prefixes))
        other, bound = upper_bounds(texts[item], keep, prefixes, rest)
        exact = other <= math.exp(texts[item][0].lower)
        certificates[item] = Certificate(exact, False, min(1.0, bound))
    return certificates


def upper_bounds(
    texts: Sequence[Text], keep: int, prefixes: Sequence[tuple[str, float]], rest: float
) -> tuple[float, float]:
    """Upper bounds of the probabilities of all texts but the first, and of all that are not kept.

    A text may gain the mass of every pruned prefix whose text it begins with, and the rest.

    Args:
        texts: those found, the most probable first.
        keep: how many of them are kept.
        prefixes: the texts of pruned prefixes, and the mass of each.
        rest: the mass of all other pruned prefixes.

    >>> found = [Text("ab", [0], *[math.log(0.5)] * 3), Text("cd", [1], *[math.log(0.2)] * 3)]
    >>> upper_bounds(found, 1, [("a", 0.25), ("abc", 0.0625)], 0.0)
    (0.3125, 0.3125)
    """

    def gain(name: str) -> float:
        return rest + math.fsum(mass for prefix, mass in prefixes if name.startswith(prefix))

    not_found = max((gain(prefix) for prefix, _ in prefixes), default=rest)
    found = [math.exp(text.upper) + gain(text.name) for text in texts]
    return max([not_found, *found[1:]]), max([not_found, *found[keep:]])


def _spell(
    items: Sequence[int], prefixes: Prefixes, history: list[BackPointers], vocabulary: Vocabulary
) -> dict[int, list[tuple[str, float]]]:
    """The texts and masses of the pruned prefixes of these inputs."""
    found: dict[int, list[tuple[str, float]]] = {item: [] for item in items}
    wanted = [index for index, item in enumerate(prefixes.item.tolist()) if item in found]
    prefixes = prefixes[prefixes.item.new_tensor(wanted)]
    columns = (prefixes.item.tolist(), prefixes.mass.tolist(), prefixes.token.tolist())
    sequences = token_sequences(history, prefixes.length, prefixes.parent)
    for item, mass, token, tokens in zip(*columns, sequences, strict=True):
        found[item].append((vocabulary.decode([*tokens, token]), mass))
    return found
