"""What a model considers for one input: the tree of its outputs, attention, and a reference."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _checks
from .._checks import check_not_empty, check_text
from ..data._vocabulary import BOS, EOS, Vocabulary
from ..decoding._hypotheses import Hypothesis, Result
from ..decoding._search import search
from ..models._ensemble import Ensemble

END = "end"
"""What a reader sees for the end of the sequence."""
NAMED = 12
"""The most parts of an input that a warning names."""


@dataclass(frozen=True)
class Node:
    """A part of the tree of hypotheses: tokens without a branch between them, and what follows.

    Args:
        tokens: as a reader sees them.
        probability: of these tokens, given those before.
        mass: of the hypotheses so far, from the root.
        children: the most probable first.
        hypothesis: the place among the hypotheses of the text that ends here, or None; where
            several sequences of tokens spell it, each has a leaf.
    """

    tokens: tuple[str, ...]
    probability: float
    mass: float
    children: tuple[Node, ...] = ()
    hypothesis: int | None = None

    @property
    def rest(self) -> float:
        """The probability of what follows and was not found."""
        if self.hypothesis is not None:
            return 0.0
        return max(0.0, self.mass - sum(child.mass for child in self.children))


@dataclass(frozen=True)
class Position:
    """One token of a reference, and the tokens that the model considers in its place.

    Args:
        token: of the reference.
        probability: that the model gives it; zero if it considers others only.
        candidates: tokens of nonzero probability and these probabilities, the most probable first;
            the first few of them, and the reference's own if it is one of them.
        others: how many more there are.
    """

    token: str
    probability: float
    candidates: tuple[tuple[str, float], ...]
    others: int = 0


@dataclass(frozen=True)
class Explanation:
    """What a model considers for one input; `html()` is a page of it.

    Args:
        text: the input.
        source: its tokens, as a reader sees them.
        result: what the search found.
        outputs: the texts of the first hypotheses, those to show.
        targets: the tokens of the most probable sequence that spells each, with the end.
        tree: all sequences that were found to spell them, by their common beginnings.
        reference: what the model would say in the place of each token of a reference, if given.
        reference_text: that reference.
        attention: of each of `targets`, (tokens and end, heads, source).
        unknown: the parts of the input that the model has not met.
        unique: whether a text has one sequence of tokens only.
    """

    text: str
    source: tuple[str, ...]
    result: Result
    outputs: tuple[str, ...]
    targets: tuple[tuple[str, ...], ...]
    tree: Node
    reference: tuple[Position, ...] = ()
    reference_text: str = ""
    attention: tuple[Tensor, ...] = field(default=(), repr=False)
    unknown: tuple[str, ...] = ()
    unique: bool = True

    def html(self) -> str:
        """One page with everything in it: no network, script or font from elsewhere."""
        from ._page import page

        return page(self)


def explain(
    models: Any,
    text: str,
    *,
    reference: str | None = None,
    shown: int = 12,
    limit: int = 1000,
    max_length: int = 100,
) -> Explanation:
    """Enumerates what a model considers for an input, by exhaustive search.

    Args:
        models: a `Seq2Seq`, or several with the same vocabularies.
        text: the input, as the source vocabulary reads it; for inflection "draw V;PST".
        reference: an output to decode by force: at each of its tokens, what else was possible.
        shown: the most texts in the tree, and the most candidates at a position.
        limit: the most hypotheses to search for, up to 8192; a dense model has no end of them.
        max_length: the most tokens of a hypothesis, up to 10,000.
    Returns:
        The explanation, whose `tree`, `attention` and `reference` `fenchel.plots` can draw.
    Raises:
        ValueError: if the input or the reference is empty, or cannot be read.

    Cost: an exhaustive search, see `search`.

    >>> from fenchel.seq2seq import ModelConfig, Seq2Seq
    >>> from fenchel.seq2seq.data._vocabulary import Characters
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=8, hidden=8), letters, letters)
    >>> found = explain(model, "cab", reference="ab", shown=3, max_length=5)
    >>> found.source, [position.token for position in found.reference]
    (('c', 'a', 'b'), ['a', 'b', 'end'])
    """
    check_text("text", text)
    _checks.size("shown", shown)
    ensemble = Ensemble(models)
    model = ensemble.models[0]
    ids = model.source.encode(text)
    check_not_empty("text", text, ids)
    device = next((p.device for p in getattr(model, "parameters", list)()), torch.device("cpu"))
    source = torch.tensor([ids], device=device)
    lengths = torch.tensor([len(ids)], device=device)
    (result,) = search(
        models,
        source,
        lengths,
        method="exhaustive",
        limit=limit,
        max_length=max_length,
        attention=True,
    )
    first = result.hypotheses[:shown]
    targets = tuple(_read(model.target, each) for each in first)
    others = [[_read(model.target, other) for other in each.others] for each in first]
    positions = ()
    if reference is not None:
        check_text("reference", reference)
        positions = _force(ensemble, source, lengths, reference, shown)
    return Explanation(
        text=text,
        source=tuple(_names(model.source, ids)),
        result=result,
        outputs=tuple(model.target.decode(list(each.tokens)) for each in first),
        targets=targets,
        tree=_tree(first, targets, others),
        reference=positions,
        reference_text=reference or "",
        attention=tuple(each.attention.cpu() for each in first),  # type: ignore[union-attr]
        unknown=tuple(visible(part) for part in model.source.unknown(text)),
        unique=ensemble.unique,
    )


def _names(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The tokens as a reader sees them."""
    return [visible(token) for token in vocabulary.tokens(ids)]


def visible(token: str) -> str:
    """A token that can be seen, and is not taken for the end of the sequence.

    >>> [visible(token) for token in ("a", " ", "end", "\\u200b", "\\u0301")]
    ['a', '␣', '“end”', 'U+200B', '◌́']
    """
    if token == END:
        return f"“{END}”"
    if unicodedata.combining(token[:1] or " "):
        token = f"◌{token}"
    return "".join(
        "␣" if each == " " else each if each.isprintable() else f"U+{ord(each):04X}"
        for each in token
    )


def listed(parts: Sequence[str]) -> str:
    """Different parts of a text, the first few, for a reader.

    >>> listed(["\u00e9", "\u0301", "\u00e9"])
    'é, ◌́'
    """
    names = list(dict.fromkeys(visible(part) for part in parts))
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def _read(vocabulary: Vocabulary, hypothesis: Hypothesis) -> tuple[str, ...]:
    end = END if hypothesis.finished else "…"
    return (*_names(vocabulary, hypothesis.tokens), end)


def _force(
    ensemble: Ensemble, source: Tensor, lengths: Tensor, reference: str, most: int
) -> tuple[Position, ...]:
    """The model's candidates at every token of a reference and at its end."""
    vocabulary = ensemble.models[0].target
    ids = vocabulary.encode(reference)
    check_not_empty("reference", reference, ids)
    names = [*_names(vocabulary, ids), END]
    positions = []
    with ensemble.evaluating():
        states = ensemble.start(source, lengths)
        for last, token, name in zip([BOS, *ids], [*ids, EOS], names, strict=True):
            p, _, states = ensemble.step(states, torch.tensor([last], device=source.device))
            row = p[0].cpu()
            support = int((row > 0).sum())
            classes = row.topk(min(most, support)).indices.tolist()
            if row[token] > 0 and token not in classes:
                classes[-1] = token
            words = [END if c == EOS else _names(vocabulary, [c])[0] for c in classes]
            short = tuple(zip(words, row[classes].tolist(), strict=True))
            positions.append(Position(name, float(row[token]), short, support - len(short)))
    return tuple(positions)


@dataclass(frozen=True)
class _Path:
    """A hypothesis as a path from the root: a key, a name and a probability for each step.

    The last step is its end, or −1 where it was broken off, so that no path begins another.
    """

    place: int
    keys: tuple[int, ...]
    names: tuple[str, ...]
    chain: tuple[float, ...]


def _tree(
    hypotheses: Sequence[Hypothesis],
    targets: Sequence[tuple[str, ...]],
    others: Sequence[Sequence[tuple[str, ...]]],
) -> Node:
    """The tree of all sequences of the hypotheses, with chains of single children made one node.

    Args:
        hypotheses: the texts.
        targets: the names of their tokens, with the end.
        others: those of the other sequences of each.
    """
    paths = []
    for place, (text, names, more) in enumerate(zip(hypotheses, targets, others, strict=True)):
        for each, words in zip((text, *text.others), (names, *more), strict=True):
            last, chain = (EOS, ()) if each.finished else (-1, (1.0,))
            paths.append(_Path(place, (*each.tokens, last), words, each.probabilities + chain))
    return Node((), 1.0, 1.0, _branches(paths, 0, 1.0))


def _branches(paths: list[_Path], depth: int, mass: float) -> tuple[Node, ...]:
    """The nodes below a prefix of `depth` tokens and probability `mass`, which the paths share."""
    groups: dict[int, list[_Path]] = {}
    for path in paths:
        groups.setdefault(path.keys[depth], []).append(path)
    nodes = [_node(group, depth, mass) for group in groups.values()]
    return tuple(sorted(nodes, key=lambda node: -node.mass))


def _node(paths: list[_Path], begin: int, mass: float) -> Node:
    """The tokens that the paths share from `begin` on, and the branches after them."""
    first, end = paths[0], begin + 1
    while end < len(first.keys) and len({path.keys[end] for path in paths}) == 1:
        end += 1
    probability = math.prod(first.chain[begin:end])
    after = mass * probability
    over = end == len(first.keys)
    return Node(
        first.names[begin:end],
        probability,
        after,
        () if over else _branches(paths, end, after),
        first.place if over else None,
    )
