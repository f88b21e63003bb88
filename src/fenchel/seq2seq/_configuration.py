"""Configuration files: YAML with sections, overridden word by word, with errors that say what to
write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ._config import TAGS, Config, ParallelFiles, SearchConfig

EXAMPLES = ("inflection", "translation", "summarization")


class ConfigError(ValueError):
    """A configuration that cannot be used, with every reason."""


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, and a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        for key in keys:
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not a word{node.start_mark}")
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} stands twice{node.start_mark}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def example(name: str) -> str:
    """The commented configuration file that ships for a task.

    >>> print(example("inflection").splitlines()[0])
    # Morphological inflection: lemma and tags in, inflected form out.
    """
    if name not in EXAMPLES:
        raise ValueError(f"`name` must be one of {', '.join(EXAMPLES)}, got {name!r}.")
    return (resources.files("fenchel.seq2seq") / "examples" / f"{name}.yaml").read_text(
        encoding="utf-8"
    )


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration file.

    Args:
        path: of a YAML file.
        overrides: `section.key=value`, which replace what the file says; values are YAML.
    Raises:
        ConfigError: with all that is wrong, where, and what could stand there.
        OSError: if the file cannot be read.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "config.yaml")
    ...     _ = path.write_text("data: {task: inflection, train: [a.tsv], validation: [b.tsv]}")
    ...     load_config(path, ["model.layers=1"]).model.layers
    1
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}.") from None
    return parse(text, overrides, str(path))


def parse(text: str, overrides: Sequence[str] = (), name: str = "the configuration") -> Config:
    """The configuration of a YAML text; see `load_config`."""
    values = _yaml(text, name)
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold the sections {', '.join(Config.model_fields)}.")
    for override in overrides:
        _override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        reasons = "\n  ".join(dict.fromkeys(reason(part) for part in error.errors()))
        raise ConfigError(f"{name} cannot be used:\n  {reasons}") from None


def search_config(values: Any, name: str) -> SearchConfig:
    """The section `search` of a model's configuration.

    Args:
        values: what it holds.
        name: of the file, for errors.
    Raises:
        ConfigError: with all that is wrong in it.
    """
    try:
        return SearchConfig.model_validate(values)
    except ValidationError as error:
        reasons = "\n  ".join(reason(part, ["search"]) for part in error.errors())
        raise ConfigError(f"{name} cannot be used:\n  {reasons}") from None


def _yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {error}") from None


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise ConfigError(f"an override is `section.key=value`, got {override!r}.")
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if isinstance(inner, str) and section in ("attention", "output"):
            inner = {"mapping": inner}
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{override!r} goes into {section!r}, which is {inner!r}.")
        values[section] = values = dict(inner or {})
    values[last] = _yaml(text, repr(override))


def reason(error: Any, inside: Sequence[str] = ()) -> str:
    """One of pydantic's errors, of a section inside others, as a sentence."""
    place = [*inside, *(part for part in error["loc"] if part not in TAGS)]
    key = ".".join(str(part) for part in place)
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden":
        known = sorted(_fields(place[:-1]))
        close = get_close_matches(str(place[-1]), known, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        return f"{key}: there is no such key{hint} The keys here are {', '.join(known)}."
    if kind == "missing":
        return f"{key}: this key must be given."
    if kind == "value_error":
        message = str(error["ctx"]["error"])
        return f"{key}: {message}" if key else message
    expected = (
        error["msg"]
        .replace("Input should be", "must be")
        .replace("a valid integer", "an integer")
        .replace("a valid ", "a ")
    )
    return f"{key}: {expected}, got {given!r}."


def _fields(place: Sequence[Any]) -> list[str]:
    """The keys of the section at a place."""
    section: type[BaseModel] = Config
    for part in place:
        field = section.model_fields.get(str(part))
        kind = field.annotation if field is not None else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return list(ParallelFiles.model_fields)  # the only section inside a list
        section = kind
    return list(section.model_fields)
