"""Small models of every architecture, and pairs for them."""

from __future__ import annotations

import torch

from fenchel import mappings
from fenchel.seq2seq import ModelConfig, Seq2Seq
from fenchel.seq2seq.data._batches import batch
from fenchel.seq2seq.data._vocabulary import Words

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
