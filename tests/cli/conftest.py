"""What the tests of several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fenchel.seq2seq import ModelConfig, Seq2Seq, save
from fenchel.seq2seq.data._inflection import Inflection
from fenchel.seq2seq.data._vocabulary import Characters


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    """Two folders of untrained models with the same vocabularies."""
    torch.manual_seed(0)
    source = Inflection(["english"], ["PST", "V"], list("adginrsw"))
    folders = []
    for place in range(2):
        model = Seq2Seq(
            ModelConfig(embedding=8, hidden=8, layers=1), source, Characters("adginrsw")
        )
        folders.append(tmp_path_factory.mktemp("models") / str(place))
        save(model, folders[-1])
    return folders
