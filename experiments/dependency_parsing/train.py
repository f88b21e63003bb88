"""Trains a parser with a structured loss, measures it, and parses with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel import DependencyTree, Posterior, map_inference, sparsemap, structured_loss

from .. import files, runs
from .conllu import Sentence, read_conllu
from .model import Batch, Encoder, Parser, Vocabulary

VOCABULARY = "vocabulary.json"
MAX_WORDS = 40
"""Longer sentences are left out of SparseMAP's figures: before training they have thousands of
trees, which take minutes."""


def loss_of(parser: Parser, batch: Batch, kind: str) -> Tensor:
    """The mean structured loss of a batch: one call for all sentences."""
    arcs = parser(batch)
    tree = DependencyTree(arcs.shape[-1])
    return structured_loss(tree, arcs, batch.trees, lengths=batch.lengths, kind=kind)


def parse(parser: Parser, batch: Batch) -> Tensor:
    """The best tree of each sentence, as codes (B, n)."""
    arcs = parser(batch)
    best = map_inference(DependencyTree(arcs.shape[-1]), arcs, lengths=batch.lengths)
    return best.codes  # type: ignore[return-value]  # None only for structures of one's own


def parses(parser: Parser, batch: Batch) -> Posterior:
    """The few trees of each sentence that SparseMAP keeps."""
    arcs = parser(batch)
    return sparsemap(DependencyTree(arcs.shape[-1]), arcs, lengths=batch.lengths)


def evaluate(parser: Parser, encode: Encoder, sentences: Sequence[Sentence]) -> dict[str, float]:
    """Figures on sentences with gold trees, all words counted.

    Returns:
        `uas`, the percentage of right heads; and of SparseMAP, whatever loss trained the scores, on
        sentences of at most `MAX_WORDS` words: `trees`, their number per sentence; `single`, the
        percentage of sentences with one; and `heads`, their number per word.
    """
    right = words = 0
    sizes, heads = [], []
    for _, batch in encoded(encode, sentences):
        arcs = parser(batch)
        tree = DependencyTree(arcs.shape[-1])
        best = map_inference(tree, arcs, lengths=batch.lengths).codes
        gold = batch.trees >= 0
        right += int((gold & (best == batch.trees)).sum())
        words += int(gold.sum())
        short = batch.lengths <= MAX_WORDS
        posterior = sparsemap(tree, arcs[short], lengths=batch.lengths[short])
        sizes.append(posterior.support_size)
        heads.append((posterior.marginals > 0).sum(1)[gold[short]])
    size, head = torch.cat(sizes).double(), torch.cat(heads).double()
    return {
        "uas": 100 * right / words,
        "trees": size.mean().item(),
        "single": 100 * (size == 1).double().mean().item(),
        "heads": head.mean().item(),
    }


@dataclass(frozen=True)
class Objective:
    """What a parser learns, and how it is measured.

    Args:
        loss: the mean loss of a batch, from the parser, the batch and the kind of loss.
        evaluate: figures of a parser on sentences.
        measure: which of these is the best epoch's.
        options: those of the run that it adds.
    """

    loss: Callable[[Parser, Batch, str], Tensor] = loss_of
    evaluate: Callable[[Parser, Encoder, Sequence[Sentence]], dict[str, float]] = evaluate
    measure: str = "uas"
    options: dict[str, Any] = field(default_factory=dict)


def train(
    folder: Path,
    data: Path,
    *,
    loss: str,
    epochs: int,
    seed: int,
    lr: float,
    batch: int,
    objective: Objective | None = None,
) -> runs.History:
    """Trains on a treebank's folder, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: holds one file *train*.conllu and one *dev*.conllu.
        loss: a kind of `fenchel.structured_loss`.
        epochs: in all.
        seed: for weights, order and word dropout.
        lr: Adam's learning rate.
        batch: sentences per step.
        objective: what is learned and measured; trees by default.
    Returns:
        One record per epoch: loss, seconds, and what the objective measures.
    """
    sentences, dev = (read_split(data, name) for name in ("train", "dev"))
    objective = objective or Objective()
    options = {"data": data.resolve().name, "loss": loss, "seed": seed, "lr": lr, "batch": batch}
    runs.open_run(folder, {**options, **objective.options})
    vocabulary = Vocabulary.of(sentences)
    files.write(folder / VOCABULARY, json.dumps(vocabulary.as_json(), ensure_ascii=False).encode())
    torch.manual_seed(seed)
    parser, encode = Parser(vocabulary), Encoder(vocabulary)
    optimizer = torch.optim.Adam(parser.parameters(), lr, fused=True)
    lengths = [len(sentence.words) for sentence in sentences]

    def one_epoch() -> float:
        total = 0.0
        for chosen in runs.with_progress(runs.batches(lengths, batch)):
            given = encode([sentences[index] for index in chosen])
            optimizer.zero_grad()
            value = objective.loss(parser, given, loss)
            value.backward()
            optimizer.step()
            total += value.item() * len(chosen)
        return total / len(sentences)

    return runs.fit(
        folder,
        parser,
        optimizer,
        epochs=epochs,
        seed=seed,
        train=one_epoch,
        evaluate=lambda: objective.evaluate(parser, encode, dev),
        measure=objective.measure,
    )


def encoded(
    encode: Encoder, sentences: Sequence[Sentence], size: int = 32
) -> Iterator[tuple[list[int], Batch]]:
    """All sentences in batches, the short ones first, with their indices."""
    lengths = [len(sentence.words) for sentence in sentences]
    for chosen in runs.batches(lengths, size, shuffle=False):
        yield chosen, encode([sentences[index] for index in chosen])


def read_split(data: Path, name: str) -> list[Sentence]:
    """The sentences of a treebank's folder whose file has that name; each must have a tree.

    Raises:
        ValueError: for a sentence without a tree.
    """
    path = files.find(data, [name], [".conllu"])
    sentences = read_conllu(path)
    for place, sentence in enumerate(sentences, 1):
        if min(sentence.heads) < 0:
            raise ValueError(f"{path.name}: sentence {place} must have a head for every word.")
    return sentences


def load(folder: Path) -> tuple[Parser, Encoder]:
    """The best parser of a run, ready to parse."""
    found: dict[str, Any] = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
    vocabulary = Vocabulary(**found)
    parser = Parser(vocabulary)
    runs.load_best(folder, parser)
    return parser, Encoder(vocabulary)
