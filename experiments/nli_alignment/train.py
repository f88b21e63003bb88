"""Trains and measures a classifier of pairs of sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .. import files, runs
from .data import Pair, Vocabulary, read_pairs
from .models import MODELS

VOCABULARY = "vocabulary.json"
DECAY = 0.9
"""What SGD's learning rate is multiplied by after an epoch that is not the best."""


def train(
    folder: Path,
    data: Path,
    *,
    model: str,
    alignment: str,
    epochs: int,
    seed: int,
    lr: float,
    batch: int,
    hidden: int,
    dropout: float,
    optimizer: str,
    vectors: Path | None,
) -> runs.History:
    """Trains on a folder of pairs, or resumes the run in `folder`.

    Args:
        folder: of the run.
        data: holds one file *train* and one *dev* or *trial*, of SICK's or SNLI's format.
        model, alignment: names in `MODELS`.
        epochs: in all.
        seed: for weights, order and dropout.
        lr: the learning rate.
        batch: pairs per step.
        hidden, dropout: of the model.
        optimizer: "adam"; or "sgd", whose learning rate then decays as in the paper.
        vectors: a file of word vectors, or None to train them.
    Returns:
        One record per epoch: loss, seconds, `accuracy`, `nonzero`.
    """
    pairs, dev = read_split(data, "train"), read_split(data, "dev", "trial")
    vocabulary = Vocabulary.of(pairs)
    torch.manual_seed(seed)
    given = vocabulary.vectors(vectors) if vectors else None
    options = {"data": data.resolve().name, "model": model, "alignment": alignment, "seed": seed}
    options |= {"lr": lr, "batch": batch, "hidden": hidden, "dropout": dropout}
    options |= {"optimizer": optimizer, "width": None if given is None else given.shape[1]}
    runs.open_run(folder, options)
    files.write(folder / VOCABULARY, json.dumps(vocabulary.words, ensure_ascii=False).encode())
    network = MODELS[model][0](len(vocabulary), hidden, alignment, dropout, given)
    kind: Any = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    steps = kind([weight for weight in network.parameters() if weight.requires_grad], lr)
    lengths = [len(pair.premise) + len(pair.hypothesis) for pair in pairs]

    def one_epoch() -> float:
        total = 0.0
        for chosen in runs.with_progress(runs.batches(lengths, batch)):
            shown = vocabulary.batch([pairs[index] for index in chosen])
            steps.zero_grad()
            value = functional.cross_entropy(network(shown)[0], shown.labels)
            value.backward()
            steps.step()
            total += value.item() * len(chosen)
        return total / len(pairs)

    return runs.fit(
        folder,
        network,
        steps,
        epochs=epochs,
        seed=seed,
        train=one_epoch,
        evaluate=lambda: evaluate(network, vocabulary, dev),
        measure="accuracy",
        decay=DECAY if optimizer == "sgd" else 1.0,
    )


def evaluate(network: nn.Module, vocabulary: Vocabulary, pairs: Sequence[Pair]) -> dict[str, float]:
    """`accuracy` in percent, and `nonzero`, the percentage of pairs of words that are aligned."""
    right = aligned = possible = 0
    lengths = [len(pair.premise) + len(pair.hypothesis) for pair in pairs]
    for chosen in runs.batches(lengths, 64, shuffle=False):
        batch = vocabulary.batch([pairs[index] for index in chosen])
        scores, found = network(batch)
        right += int((scores.argmax(-1) == batch.labels).sum())
        both = batch.mask() if found.rows.shape[2] > 1 else (batch.premise > 0).unsqueeze(2)
        for weights in (found.rows, found.columns):
            aligned += int((weights != 0).sum())
            possible += int(both.sum())
    return {"accuracy": 100 * right / len(pairs), "nonzero": 100 * aligned / possible}


def read_split(data: Path, *names: str) -> list[Pair]:
    """The pairs of a folder whose file has one of the names."""
    return read_pairs(files.find(data, names, [".txt", ".tsv", ".jsonl"]))


def load(folder: Path) -> tuple[nn.Module, Vocabulary]:
    """The best classifier of a run."""
    options = runs.read_options(folder)
    vocabulary = Vocabulary(json.loads((folder / VOCABULARY).read_text(encoding="utf-8")))
    given = torch.zeros(len(vocabulary), options["width"]) if options["width"] else None
    network = MODELS[options["model"]][0](
        len(vocabulary), options["hidden"], options["alignment"], options["dropout"], given
    )
    runs.load_best(folder, network)
    return network, vocabulary
