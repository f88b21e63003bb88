"""Fine-tuning: training starts from another model's weights and vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..config._data import DataConfig
from ..config._schema import ModelConfig
from ..data._vocabulary import SPECIAL, Vocabulary
from ..models._folder import WEIGHTS, load, read_vocabularies
from ..models._model import Seq2Seq

FREE = ("dropout", "attention", "output")
"""The keys of `model` that may differ from those of the model to start from; whether `attention`
learns its alpha may not."""
UNUSED = {"lstm": ("heads", "feedforward"), "transformer": ("embedding", "input_feeding")}
"""The keys of `model` that an architecture does not read."""


def extend(
    folder: Path, built: tuple[Vocabulary, Vocabulary], data: DataConfig
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of the model in a folder, with the new tokens of those built from data.

    Args:
        folder: of the model.
        built: the source and target vocabularies of the training pairs.
        data: has the largest size; a vocabulary that is larger stays as it is.
    Raises:
        FileNotFoundError: if there is no model.
        ValueError: if the vocabularies are of another kind.
    """
    _check_folder(folder)
    extended = []
    for side, old, new in zip(("source", "target"), read_vocabularies(folder), built, strict=True):
        if type(old) is not type(new):
            raise ValueError(
                f"`training.start_from` is {folder}, a model with a {side} vocabulary of "
                f"{old.kind}, and these data have one of {new.kind}; see `data.task` and "
                "`data.tokens`."
            )
        extended.append(old.extended(new, data.vocabulary_size))
    return extended[0], extended[1]


def start_from(folder: Path, model: Seq2Seq) -> None:
    """Copies the weights of the model in a folder into one whose vocabularies extend its own.

    A new token's rows of embeddings and of the output layer are the means of the old tokens' rows.

    Raises:
        FileNotFoundError: if there is no model.
        ValueError: if the architectures differ, with the keys that do.
    """
    _check_folder(folder)
    other = load(folder)
    _check_same(folder, other.config, model.config)
    source, target = other.source.ids_in(model.source), other.target.ids_in(model.target)
    old = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("core.source_embedding"):
                _fill_rows(parameter, old[name], source)
            elif name.startswith(("core.target_embedding", "output.")):
                _fill_rows(parameter, old[name], target)
            else:
                parameter.copy_(old[name])


def _fill_rows(parameter: Tensor, old: Tensor, ids: Sequence[int]) -> None:
    """Puts the rows of `old` at these ids, and their mean at all others."""
    words = old[len(SPECIAL) :]
    parameter.copy_((words if len(words) else old).mean(0).expand_as(parameter))
    parameter[torch.tensor(ids)] = old


def _check_folder(folder: Path) -> None:
    if not (folder / WEIGHTS).exists():
        raise FileNotFoundError(
            "`training.start_from` must be the folder of a trained model; there is no "
            f"{folder / WEIGHTS}."
        )


def _check_same(folder: Path, old: ModelConfig, new: ModelConfig) -> None:
    """Raises if two architectures do not have the same parameters."""
    ignored = {*FREE, *UNUSED[old.architecture]}
    there, here = (
        {**config.model_dump(exclude=ignored), "attention.learned_alpha": learned}
        for config in (old, new)
        for learned in [config.attention.learned_alpha]
    )
    different = [
        f"`model.{key}` is {here[key]!r} here and {there[key]!r} there"
        for key in there
        if here[key] != there[key]
    ]
    if different:
        raise ValueError(
            f"training cannot start from {folder}: {'; '.join(different)}. Give them the values "
            "of that model, which are in its config.json."
        )
