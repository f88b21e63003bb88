"""The folder of a model: its configuration, vocabularies and weights, as JSON and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from .._files import (
    FormatError,
    check_fit,
    digest,
    fill,
    full,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from ..config._loading import describe
from ..config._schema import ModelConfig
from ..config._section import Section
from ..data._vocabulary import Vocabulary
from ._model import Seq2Seq

SectionType = TypeVar("SectionType", bound=Section)

CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocabulary.json", "weights.safetensors"


def save(model: Seq2Seq, folder: str | Path) -> None:
    """Writes a model to a folder, from which `load` reads it.

    Args:
        model: the model.
        folder: created if it is missing; each file in it is replaced atomically.

    >>> import tempfile
    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'vocabulary.json', 'weights.safetensors']
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_config(path, {"model": model.config.model_dump(mode="json")})
    save_vocabularies(path, model.source, model.target)
    save_weights(path, model, {})


def load(folder: str | Path, device: torch.device | str = "cpu") -> Seq2Seq:
    """Reads a model from a folder that `save` or `fenchel train` wrote, ready to decode.

    Args:
        folder: of config.json, vocabulary.json and weights.safetensors.
        device: where the weights go.
    Returns:
        The model, in evaluation mode.
    Raises:
        FileNotFoundError: if there is no model in the folder.
        ValueError: if a file is damaged or does not fit the others.

    >>> import tempfile
    >>> from fenchel.seq2seq import Characters, ModelConfig
    >>> letters = Characters("abc")
    >>> model = Seq2Seq(ModelConfig(embedding=4, hidden=4, layers=1), letters, letters)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder)
    ...     load(folder).target.tokens([4, 5, 6])
    ['a', 'b', 'c']
    """
    return load_with_config(folder, device)[0]


def load_with_config(
    folder: str | Path, device: torch.device | str = "cpu"
) -> tuple[Seq2Seq, dict[str, Any]]:
    """A model as `load` reads it, and all sections of its configuration."""
    path = Path(folder)
    if not (path / WEIGHTS).exists():
        raise FileNotFoundError(f"{path} holds no trained model: there is no {WEIGHTS} in it.")
    config = read_config(path)
    if "model" not in config:
        raise FormatError(f"{path / CONFIG} does not hold a model.")
    architecture = section(path, config, "model", ModelConfig)
    vocabularies = read_vocabularies(path)
    tensors, value = read_tensors(path / WEIGHTS)
    with torch.device("meta"):  # no memory is allocated before the shapes are checked
        shapes = Seq2Seq(architecture, *vocabularies)
    check_fit(dict(shapes.named_parameters()), tensors, path / WEIGHTS)
    check_vocabularies(path, vocabularies, value, WEIGHTS)
    model = Seq2Seq(architecture, *vocabularies)
    fill(dict(model.named_parameters()), tensors, path / WEIGHTS)
    return model.to(device).eval(), config


def save_config(path: Path, config: dict[str, Any]) -> None:
    """Writes the configuration. To load a model, the section `model` is enough."""
    write_json(path / CONFIG, config)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a model's folder."""
    config = read_json(path / CONFIG)
    if not isinstance(config, dict) or not all(isinstance(each, dict) for each in config.values()):
        raise FormatError(f"{path / CONFIG} does not hold a configuration.")
    return config


def section(path: Path, config: dict[str, Any], name: str, kind: type[SectionType]) -> SectionType:
    """A section of the configuration in a model's folder, or its defaults if it is missing.

    Raises:
        FormatError: with every error in it.
    """
    try:
        return kind.model_validate(config.get(name, {}))
    except ValidationError as error:
        reasons = "; ".join(describe(part, (name,)) for part in error.errors())
        raise FormatError(f"{path / CONFIG} does not hold a {name}: {reasons}") from None


def save_vocabularies(path: Path, source: Vocabulary, target: Vocabulary) -> None:
    """Writes both vocabularies."""
    write_json(path / VOCABULARY, {"source": source.to_json(), "target": target.to_json()})


def read_vocabularies(path: Path) -> tuple[Vocabulary, Vocabulary]:
    """Both vocabularies."""
    value = read_json(path / VOCABULARY)
    try:
        return Vocabulary.from_json(value["source"]), Vocabulary.from_json(value["target"])
    except (KeyError, TypeError, ValueError) as error:
        why = str(error).rstrip(".")
        raise FormatError(f"{path / VOCABULARY} does not hold vocabularies: {why}.") from None


def digest_of(vocabularies: tuple[Vocabulary, Vocabulary]) -> str:
    """The digest of both vocabularies, which is stored with the weights."""
    return digest(*(json.dumps(each.to_json(), sort_keys=True) for each in vocabularies))


def check_vocabularies(
    path: Path, vocabularies: tuple[Vocabulary, Vocabulary], value: dict[str, Any], name: str
) -> None:
    """Checks that vocabularies have the digest in the metadata `value` of the weights file `name`.

    Raises:
        FormatError: if they do not. Metadata without a digest is accepted.
    """
    if value.get("vocabularies", digest_of(vocabularies)) != digest_of(vocabularies):
        raise FormatError(
            f"{path / VOCABULARY} is damaged, or of another model: {path / name} was written with "
            "other tokens. Put a copy of it in its place, or train again in another folder."
        )


def save_weights(path: Path, model: Seq2Seq, metrics: dict[str, Any], is_main: bool = True) -> None:
    """Writes the weights and metrics. All processes gather a sharded model; only rank 0 writes."""
    tensors = {name: full(parameter) for name, parameter in model.named_parameters()}
    if is_main:
        value = {**metrics, "vocabularies": digest_of((model.source, model.target))}
        write_tensors(path / WEIGHTS, tensors, value)
