"""Small models of every architecture, and pairs for them."""

from __future__ import annotations

from pathlib import Path

import torch

from fenchel import mappings
from fenchel.seq2seq import Characters, Inflection, ModelConfig, Seq2Seq, Words, save
from fenchel.seq2seq.data._batches import batch

WORDS = Words([f"w{place}" for place in range(9)])
PAIRS = batch([([4, 5, 6, 7, 8], [5, 6]), ([7, 6], [4, 4, 9, 8]), ([12], [10])])
NAMES = [name for name in mappings.names() if name != "general"]  # it needs a function
SHAPES = {
    "lstm": {"architecture": "lstm"},
    "three layers": {"architecture": "lstm", "layers": 3},
    "one layer": {"architecture": "lstm", "layers": 1},
    "no feeding": {"architecture": "lstm", "input_feeding": False},
    "transformer": {"architecture": "transformer", "heads": 2},
}


def build(shape: str = "lstm", **options: object) -> Seq2Seq:
    """A small model in float64, in training mode without dropout."""
    torch.manual_seed(1)
    sizes = {"hidden": 6, "embedding": 4, "dropout": 0.0}
    config = ModelConfig(**{**sizes, **SHAPES[shape], **options})  # type: ignore[arg-type]
    model = Seq2Seq(config, WORDS, WORDS).double()
    with torch.no_grad():  # far enough from uniform for zeros to appear
        for name, parameter in model.named_parameters():
            if "encoder.layers" not in name and "alpha" not in name:
                parameter.mul_(3)
    return model


def save_verbs(folder: Path) -> list[Path]:
    """Two folders of untrained models of verbs, with the same vocabularies."""
    torch.manual_seed(0)
    source = Inflection(["english"], ["PST", "V"], list("adginrsw"))
    folders = [folder / "0", folder / "1"]
    for each in folders:
        sizes = ModelConfig(embedding=8, hidden=8, layers=1)
        save(Seq2Seq(sizes, source, Characters("adginrsw")), each)
    return folders
