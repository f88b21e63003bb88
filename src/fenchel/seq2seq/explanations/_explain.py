"""Explanations: the tree of a model's possible outputs, its attention, and forced decoding."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _checks
from .._checks import check_not_empty, check_text
from ..data._codes import CODES
from ..data._vocabulary import EOS, Vocabulary
from ..decoding._hypotheses import Hypothesis, Result
from ..decoding._scoring import forced_steps
from ..decoding._search import search
from ..models._ensemble import Ensemble

END = "end"
"""The name of the end of the sequence, for a reader."""
MAX_NAMED = 12
"""How many unknown parts of an input a warning names."""


@dataclass(frozen=True)
class Node:
    """A node of the tree of hypotheses: tokens without a branch between them.

    Args:
        tokens: their names, for a reader.
        probability: of these tokens, given those before.
        mass: the probability of all tokens from the root to here.
        children: the nodes that follow, the most probable first.
        hypothesis: the index of the hypothesis that ends here, or None. If several sequences of
            tokens spell a text, each has a leaf.

    >>> found = Node(("a", "end"), 0.75, 0.75, hypothesis=0)
    >>> Node((), 1.0, 1.0, (found,)).rest
    0.25
    """

    tokens: tuple[str, ...]
    probability: float
    mass: float
    children: tuple[Node, ...] = ()
    hypothesis: int | None = None

    @property
    def rest(self) -> float:
        """The probability of the continuations that were not found."""
        if self.hypothesis is not None:
            return 0.0
        return max(0.0, self.mass - sum(child.mass for child in self.children))


@dataclass(frozen=True)
class Position:
    """One token of a reference, and the tokens that the model considers at its position.

    Args:
        token: of the reference.
        probability: of this token, which may be zero.
        candidates: tokens of nonzero probability with their probabilities, the most probable
            first: the first few, and the token of the reference if it is among all of them.
        others: the number of further candidates.

    >>> Position("d", 0.25, (("t", 0.75), ("d", 0.25))).candidates[0]
    ('t', 0.75)
    """

    token: str
    probability: float
    candidates: tuple[tuple[str, float], ...]
    others: int = 0


@dataclass(frozen=True)
class Explanation:
    """All outputs that a model considers for one input; `html()` shows them on a page.

    Args:
        text: the input.
        source: the names of its tokens, for a reader.
        result: of the search.
        outputs: the texts of the first hypotheses, which are shown.
        targets: the tokens of the most probable sequence of each, with the end.
        tree: all sequences found that spell the outputs, as a tree of their prefixes.
        reference: the candidates at each token of a reference, if given.
        reference_text: that reference.
        attention: of each of `targets`, (tokens and end, heads, source).
        unknown: the parts of the input that are not in the model's vocabulary.
        copied: if the model copies, for each token of each of `targets` the positions of the source
            that it may be copied from, and the probability of copying each.
        is_unambiguous: whether every text has one sequence of tokens only.

    >>> from fenchel.seq2seq import Characters, ModelConfig, Seq2Seq
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=8, hidden=8), letters, letters)
    >>> found = explain(model, "cabx", shown=2, max_length=5)
    >>> found.source, found.unknown, len(found.outputs)
    (('c', 'a', 'b', '<unk>'), ('x',), 2)
    >>> found.html().startswith("<!doctype html>")
    True
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
    copied: tuple[tuple[tuple[tuple[int, float], ...], ...], ...] = ()
    is_unambiguous: bool = True

    def html(self) -> str:
        """A self-contained page, which loads nothing from the network."""
        from ._page import page

        return page(self)


@CODES.in_use()
def explain(
    models: Any,
    text: str,
    *,
    reference: str | None = None,
    shown: int = 12,
    limit: int = 1000,
    max_length: int = 100,
    before_step: Callable[[], None] | None = None,
) -> Explanation:
    """Lists the outputs that a model considers for an input, by exhaustive search.

    Args:
        models: a `Seq2Seq`, or several with the same vocabularies.
        text: the input, in the format of the source vocabulary; for inflection "draw V;PST".
        reference: an output for forced decoding, which shows the candidates at each of its tokens.
        shown: the largest number of texts in the tree, and of candidates at a position.
        limit: the largest number of hypotheses to search for, up to 8192; a dense model has
            infinitely many.
        max_length: the largest number of tokens of a hypothesis, up to 10,000.
        before_step: called before each step of the search; what it raises ends it.
    Returns:
        The explanation; `fenchel.plots` can draw its `tree`, `attention` and `reference`.
    Raises:
        ValueError: if the input or the reference is empty, or has another format.

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
    _checks.check_size("shown", shown)
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
        before_step=before_step,
    )
    first = result.hypotheses[:shown]
    targets = tuple(_names_and_end(model.target, each) for each in first)
    others = [[_names_and_end(model.target, other) for other in each.others] for each in first]
    positions = ()
    if reference is not None:
        check_text("reference", reference)
        positions = _force_decoding(ensemble, source, lengths, reference, shown)
    weights = [each.attention.cpu() for each in first]  # type: ignore[union-attr]
    copies = getattr(model, "pointer", None) is not None
    heads = -1 if copies else None
    return Explanation(
        text=text,
        source=tuple(_names(model.source, ids)),
        result=result,
        outputs=tuple(model.target.decode(list(each.tokens)) for each in first),
        targets=targets,
        tree=_tree(first, targets, others),
        reference=positions,
        reference_text=reference or "",
        attention=tuple(attention[:, :heads] for attention in weights),
        copied=_copied(model, source, first, weights) if copies else (),
        unknown=tuple(visible(part) for part in model.source.unknown(text)),
        is_unambiguous=ensemble.is_unambiguous,
    )


def _copied(
    model: Any, source: Tensor, hypotheses: Sequence[Hypothesis], weights: Sequence[Tensor]
) -> tuple[tuple[tuple[tuple[int, float], ...], ...], ...]:
    """`Explanation.copied`, by the weights of copying, which come after the heads."""
    ids = model.pointer.copy_ids(source)[0].tolist()
    return tuple(
        tuple(
            tuple((i, p) for i, p in enumerate(row) if p > 0 and ids[i] == token)
            for token, row in zip(each.tokens, copying[:, -1].tolist(), strict=False)
        )
        for each, copying in zip(hypotheses, weights, strict=True)
    )


def _names(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    """The names of tokens, for a reader."""
    return [visible(token) for token in vocabulary.tokens(ids)]


def visible(token: str) -> str:
    """A token in visible characters, and distinct from the end of the sequence.

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


def name_parts(parts: Sequence[str]) -> str:
    """The first few different parts of a text, for a reader.

    >>> name_parts(["\u00e9", "\u0301", "\u00e9"])
    'é, ◌́'
    """
    names = list(dict.fromkeys(visible(part) for part in parts))
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _names_and_end(vocabulary: Vocabulary, hypothesis: Hypothesis) -> tuple[str, ...]:
    end = END if hypothesis.finished else "…"
    return (*_names(vocabulary, hypothesis.tokens), end)


def _force_decoding(
    ensemble: Ensemble, source: Tensor, lengths: Tensor, reference: str, max_candidates: int
) -> tuple[Position, ...]:
    """The model's candidates at every token of a reference and at its end."""
    vocabulary = ensemble.models[0].target
    ids = vocabulary.encode(reference)
    check_not_empty("reference", reference, ids)
    names = [*_names(vocabulary, ids), END]
    positions = []
    tokens = [*ids, EOS]
    target = torch.tensor([tokens], device=source.device)
    with ensemble.evaluating():
        steps = forced_steps(ensemble, source, lengths, target)
        for (p, states), token, name in zip(steps, tokens, names, strict=True):
            row, zero = p[0], torch.zeros(1, dtype=torch.int64, device=source.device)
            token = int(ensemble.columns(states, zero + token))
            support = int((row > 0).sum())
            best = row.topk(min(max_candidates, support)).indices.tolist()
            if row[token] > 0 and token not in best:
                best[-1] = token
            found = ensemble.tokens(states, zero.expand(len(best)), zero.new_tensor(best)).tolist()
            words = [END if index == EOS else _names(vocabulary, [index])[0] for index in found]
            candidates = tuple(zip(words, row[best].tolist(), strict=True))
            others = support - len(candidates)
            positions.append(Position(name, float(row[token]), candidates, others))
    return tuple(positions)


@dataclass(frozen=True)
class _Path:
    """A sequence as a path from the root: an id, a name and a probability for each token.

    The last id is the end, or −1 for an unfinished sequence, so that no path is a prefix of
    another. `hypothesis` is the index of the text that it spells.
    """

    hypothesis: int
    ids: tuple[int, ...]
    names: tuple[str, ...]
    probabilities: tuple[float, ...]


def _tree(
    hypotheses: Sequence[Hypothesis],
    targets: Sequence[tuple[str, ...]],
    others: Sequence[Sequence[tuple[str, ...]]],
) -> Node:
    """The tree of all sequences of the hypotheses; a chain of single children is one node.

    Args:
        hypotheses: the texts.
        targets: the names of their tokens, with the end.
        others: the names of the tokens of their other sequences.
    """
    paths = []
    for index, (text, names, more) in enumerate(zip(hypotheses, targets, others, strict=True)):
        for sequence, words in zip((text, *text.others), (names, *more), strict=True):
            last, rest = (EOS, ()) if sequence.finished else (-1, (1.0,))
            ids, probabilities = (*sequence.tokens, last), (*sequence.probabilities, *rest)
            paths.append(_Path(index, ids, words, probabilities))
    return Node((), 1.0, 1.0, _branches(paths, 0, 1.0))


def _branches(paths: list[_Path], depth: int, mass: float) -> tuple[Node, ...]:
    """The nodes below a common prefix of `depth` tokens and probability `mass`."""
    groups: dict[int, list[_Path]] = {}
    for path in paths:
        groups.setdefault(path.ids[depth], []).append(path)
    nodes = [_node(group, depth, mass) for group in groups.values()]
    return tuple(sorted(nodes, key=lambda node: -node.mass))


def _node(paths: list[_Path], begin: int, mass: float) -> Node:
    """The tokens that all paths share from index `begin`, and the branches after them."""
    first, end = paths[0], begin + 1
    while end < len(first.ids) and len({path.ids[end] for path in paths}) == 1:
        end += 1
    probability = math.prod(first.probabilities[begin:end])
    mass *= probability
    is_leaf = end == len(first.ids)
    return Node(
        first.names[begin:end],
        probability,
        mass,
        () if is_leaf else _branches(paths, end, mass),
        first.hypothesis if is_leaf else None,
    )
