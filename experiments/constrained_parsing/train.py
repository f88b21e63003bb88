"""Trains a parser for trees, or for trees within their limits, and decodes both ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel import DependencyTree, FactorGraph, map_inference, structured_loss

from .. import runs
from ..dependency_parsing.conllu import Sentence
from ..dependency_parsing.model import Batch, Encoder, Parser, Vocabulary
from ..dependency_parsing.train import Objective, encoded, loss_of, read_split
from ..dependency_parsing.train import train as train_parser
from .valency import children, limits_of, trees_within

TRAININGS = ("tree", "graph")
WITH_MARGIN = ("svm", "margin_crf", "margin_sparsemap")


def train(folder: Path, data: Path, *, training: str, share: float, **options: Any) -> runs.History:
    """Trains on a treebank's folder, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: as for `dependency_parsing`.
        training: "tree" or "graph": whether the loss knows of the limits.
        share: of the words of a tag, how many keep to its limit in the training data.
        options: those of `dependency_parsing.train`.
    Returns:
        One record per epoch, with the figures of `evaluate`.
    """
    sentences = read_split(data, "train")
    limits = limits_of(sentences, Encoder(Vocabulary.of(sentences)), share)
    objective = Objective(
        loss=partial(graph_loss, limits) if training == "graph" else loss_of,
        evaluate=partial(evaluate, limits),
        measure="graph_uas" if training == "graph" else "tree_uas",
        options={"training": training, "share": share},
    )
    return train_parser(folder, data, objective=objective, **options)


def graph_loss(limits: Tensor, parser: Parser, batch: Batch, kind: str) -> Tensor:
    """The mean structured loss; a sentence whose own tree is over a limit has no limits."""
    losses = []
    for arcs, code, own in _sentences(parser, batch, limits):
        if (children(code) > own).any():
            losses.append(structured_loss(DependencyTree(len(code)), arcs, code, kind=kind))
        else:
            target = torch.nn.functional.one_hot(code, len(code)).T.to(arcs.dtype)
            cost = 1 - target if kind in WITH_MARGIN else None  # one for a wrong head, as for trees
            losses.append(structured_loss(trees_within(own), arcs, target, kind=kind, cost=cost))
    return torch.stack(losses).mean()


def evaluate(
    limits: Tensor, parser: Parser, encode: Encoder, sentences: Sequence[Sentence]
) -> dict[str, float]:
    """Figures on sentences with gold trees, all words counted.

    Returns:
        `tree_uas` and `graph_uas`, the percentage of right heads without and with limits;
        `tree_over` and `graph_over`, the percentage of sentences with a word over its limit;
        `integral`, the percentage of graphs whose relaxation is a tree; `impossible`, that of those
        without any tree, which are parsed without limits; and `tree_ms` and `graph_ms`, the time of
        the processor per sentence.
    """
    names = ("right", "over", "integral", "impossible", "seconds")
    tree: dict[str, float] = dict.fromkeys(names, 0.0)
    graph = dict(tree)
    words = 0
    for _, batch in encoded(encode, sentences):
        for arcs, gold, own in _sentences(parser, batch, limits):
            words += len(gold)
            for found, decode in ((tree, _best_tree), (graph, _best_within)):
                code = _timed(found, partial(decode, arcs, own, found))
                found["right"] += int((code == gold).sum())
                found["over"] += bool((children(code) > own).any())
    count = len(sentences)
    return {
        "tree_uas": 100 * tree["right"] / words,
        "graph_uas": 100 * graph["right"] / words,
        "tree_over": 100 * tree["over"] / count,
        "graph_over": 100 * graph["over"] / count,
        "integral": 100 * graph["integral"] / count,
        "impossible": 100 * graph["impossible"] / count,
        "tree_ms": 1000 * tree["seconds"] / count,
        "graph_ms": 1000 * graph["seconds"] / count,
    }


def _sentences(
    parser: Parser, batch: Batch, limits: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The arcs (n, n), the gold code (n,) and the limits (n,) of each sentence."""
    for place, arcs in enumerate(parser(batch)):
        n = int(batch.lengths[place])
        yield arcs[:n, :n], batch.trees[place, :n], limits[batch.tags[place, 1 : n + 1]]


def _timed(found: dict[str, float], decode: Callable[[], Tensor]) -> Tensor:
    start = time.process_time()
    code = decode()
    found["seconds"] += time.process_time() - start
    return code


def _best_tree(arcs: Tensor, limits: Tensor, found: dict[str, float]) -> Tensor:
    return map_inference(DependencyTree(len(arcs)), arcs).codes  # type: ignore[return-value]


def _best_within(arcs: Tensor, limits: Tensor, found: dict[str, float]) -> Tensor:
    """The best tree within the limits; where the relaxation is none, the one closest to it."""
    graph: FactorGraph = trees_within(limits)
    best: Any = map_inference(graph, arcs)
    found["integral"] += bool(best.is_integral)
    if best.value == -torch.inf:
        found["impossible"] += 1
        return _best_tree(arcs, limits, found)
    return _best_tree(best.indicator, limits, found)
