"""What a search can claim of the texts that it found: docs/concepts/search.md has the proofs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ..data._vocabulary import Vocabulary
from ._cuts import Cuts, Prefixes
from ._hypotheses import Links, spelled
from ._texts import Text


class Claim(NamedTuple):
    """As in `Result`."""

    exact: bool
    complete: bool
    bound: float


def certify_sequences(
    texts: Sequence[Sequence[Text]], cuts: Cuts, unfinished: Tensor, rounding: float
) -> list[Claim]:
    """The claims for every input where each text has one sequence, which was found or cut whole."""
    claims = []
    least = math.log(rounding)  # what a token of probability zero may have in another batch
    columns = (cuts.worst.tolist(), cuts.high.tolist(), unfinished.tolist())
    for found, worst, high, broken in zip(texts, *columns, strict=True):
        certain = bool(found) and not broken
        complete = certain and worst == -math.inf
        exact = complete or (certain and max(high, least) <= found[0].low)
        claims.append(Claim(exact, complete, math.exp(worst)))
    return claims


def certify_texts(
    texts: Sequence[Sequence[Text]],
    keep: int,
    cuts: Cuts,
    unfinished: Tensor,
    history: list[Links],
    vocabulary: Vocabulary,
) -> list[Claim]:
    """The claims for every input where what was cut may belong to any text that it can spell."""
    claims, open_items = [], []
    columns = (cuts.worst.tolist(), cuts.mass.tolist(), unfinished.tolist())
    for item, (found, worst, mass, broken) in enumerate(zip(texts, *columns, strict=True)):
        certain, whole = bool(found) and not broken, worst == -math.inf
        rival, bound = rivals(found, keep, [], mass)
        exact = certain and (whole or rival <= math.exp(found[0].low))
        complete = certain and whole and len(found) <= keep
        claims.append(Claim(exact, complete, 0.0 if complete else min(1.0, bound)))
        if certain and not exact and vocabulary.grows:
            open_items.append(item)
    for item, prefixes in _cut_texts(open_items, cuts.largest, history, vocabulary).items():
        rest = max(0.0, columns[1][item] - math.fsum(mass for _, mass in prefixes))
        rival, bound = rivals(texts[item], keep, prefixes, rest)
        exact = rival <= math.exp(texts[item][0].low)
        claims[item] = Claim(exact, False, min(1.0, bound))
    return claims


def rivals(
    texts: Sequence[Text], shown: int, prefixes: Sequence[tuple[str, float]], rest: float
) -> tuple[float, float]:
    """How probable a text other than the first can be, and one that is not among those shown.

    A text can gain the mass of a prefix that was cut if it begins with the prefix's own text, and
    whatever is not attributed to a prefix.

    Args:
        texts: those found.
        shown: how many of them are.
        prefixes: texts that were cut, with all of their mass.
        rest: the mass of all others.

    >>> found = [Text("ab", [0], *[math.log(0.5)] * 3), Text("cd", [1], *[math.log(0.2)] * 3)]
    >>> rivals(found, 1, [("a", 0.25), ("abc", 0.0625)], 0.0)
    (0.3125, 0.3125)
    """

    def gain(name: str) -> float:
        return rest + math.fsum(mass for prefix, mass in prefixes if name.startswith(prefix))

    unseen = max((gain(prefix) for prefix, _ in prefixes), default=rest)
    found = [math.exp(text.high) + gain(text.name) for text in texts]
    return max([unseen, *found[1:]]), max([unseen, *found[shown:]])


def _cut_texts(
    items: Sequence[int], cut: Prefixes, history: list[Links], vocabulary: Vocabulary
) -> dict[int, list[tuple[str, float]]]:
    """The texts and masses of the largest prefixes that were cut, of some inputs."""
    found: dict[int, list[tuple[str, float]]] = {item: [] for item in items}
    wanted = [place for place, item in enumerate(cut.item.tolist()) if item in found]
    cut = cut[cut.item.new_tensor(wanted)]
    columns = (cut.item.tolist(), cut.mass.tolist(), cut.token.tolist())
    sequences = spelled(history, cut.length, cut.row)
    for item, mass, token, tokens in zip(*columns, sequences, strict=True):
        found[item].append((vocabulary.decode([*tokens, token]), mass))
    return found
