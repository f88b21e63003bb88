"""What pictures show: every registered mapping, under a name that tells it from the others."""

from __future__ import annotations

import torch

import fenchel
from fenchel import mappings, plots


def test_every_registered_mapping_is_shown_once() -> None:
    names = [mapping.name for mapping in plots.showcase()]
    assert sorted(names) == mappings.names()


def test_settings_are_those_of_the_papers() -> None:
    labels = {plots.label(mapping) for mapping in plots.showcase()}
    assert {"fusedmax λ=0.2", "oscarmax λ=0.2", "pnormmax p=1.5", "entmax α=1.5"} <= labels


def test_label_names_what_differs() -> None:
    assert plots.label(fenchel.Softmax()) == "softmax"
    assert plots.label(fenchel.Softmax(gamma=2.0)) == "softmax γ=2"
    assert plots.label(fenchel.Entmax(torch.tensor([1.5]))) == "entmax α=tensor"
    assert plots.label(fenchel.General(lambda y: (y**2).sum(-1))) == "general"
