"""Configuration files: YAML with sections, overrides of single keys, and errors that suggest what
to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from reprlib import Repr
from typing import Any, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from ... import _checks
from ..._choices import TASKS
from ._data import TAGS, ColumnsConfig, ParallelFiles
from ._schema import Config

MAX_CHARACTERS = 1 << 20
"""A longer file is taken for something else than a configuration."""
RENAMED = {
    "accumulate": "gradient_accumulation",
    "clip": "max_grad_norm",
    "decay": "lr_decay",
    "floor": "min_lr_ratio",
    "patience": "lr_patience",
    "stop_after": "early_stopping_patience",
}
"""The present names of keys that had other names, for the error that suggests them."""


class ConfigError(ValueError):
    """A configuration that cannot be used, with every reason.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "config.yaml")
    ...     _ = path.write_text("data: {task: text, train: [a.tsv], validation: [b.tsv]}")
    ...     load_config(path, ["model.hiden=4"])
    Traceback (most recent call last):
        ...
    fenchel.seq2seq.config._loading.ConfigError: ...config.yaml cannot be used:
      model.hiden: there is no such key; did you mean hidden? ...
    """


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, and a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):  # type: ignore[no-untyped-call]
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {_shorten(key)} is not a word{node.start_mark}")
            if key in seen:
                raise yaml.YAMLError(f"the key {_shorten(key)} is given twice{node.start_mark}")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def example(name: str) -> str:
    """The commented configuration file of a task, as shipped with the package.

    >>> print(example("inflection").splitlines()[0])
    # Morphological inflection: lemma and tags in, inflected form out.
    """
    _checks.check_choice("name", name, TASKS)
    return (
        resources.files("fenchel.seq2seq") / "resources" / "examples" / f"{name}.yaml"
    ).read_text(encoding="utf-8")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration file.

    Args:
        path: of a YAML file.
        overrides: texts `section.key=value`, which replace the file's values; values are YAML, or
            a text if they begin with `*`, as patterns of files do.
    Raises:
        ConfigError: with every error, its key, and what the key accepts.
        OSError: if the file cannot be read.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "config.yaml")
    ...     _ = path.write_text("data: {task: inflection, train: [a.tsv], validation: [b.tsv]}")
    ...     load_config(path, ["model.layers=1"]).model.layers
    1
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}; save it as UTF-8.") from None
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{path} is longer than {MAX_CHARACTERS} characters; is it a configuration?"
        )
    return parse(text, overrides, str(path))


def parse(text: str, overrides: Sequence[str] = (), name: str = "the configuration") -> Config:
    """The configuration of a YAML text; see `load_config`."""
    values = _parse_yaml(text, name)
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold the sections {', '.join(Config.model_fields)}.")
    for override in overrides:
        _override(values, override)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        reasons = "\n  ".join(dict.fromkeys(describe(part) for part in error.errors()))
        raise ConfigError(f"{name} cannot be used:\n  {reasons}") from None


def parse_columns(values: dict[str, Any]) -> ColumnsConfig:
    """The columns of a table, from the keys of `data` that describe them."""
    try:
        return ColumnsConfig.model_validate(values)
    except ValidationError as error:
        reasons = "; ".join(describe(part) for part in error.errors())
        raise ConfigError(f"the columns cannot be used: {reasons}") from None


def _parse_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # PyYAML lets Python's own errors about numbers and dates through.
        raise ConfigError(f"{name} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is not a configuration: it nests too deep.") from None


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise ConfigError(f"an override is `section.key=value`, got {override!r}.")
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if isinstance(inner, str) and section in ("attention", "output"):
            inner = {"mapping": inner}
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{override!r} goes into {section!r}, which is {_shorten(inner)}.")
        values[section] = values = dict(inner or {})
    is_pattern = text.lstrip().startswith("*")  # there is nothing that an alias could refer to
    values[last] = text.strip() if is_pattern else _parse_yaml(text, repr(override))


def describe(error: Any, section: Sequence[str] = ()) -> str:
    """One of pydantic's errors as a sentence; `section` is where the validated values belong."""
    place = [*section, *(part for part in error["loc"] if part not in TAGS)]
    key = ".".join(str(part) for part in place)
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden":
        known = sorted(_fields(place[:-1]))
        suggestion = _suggestion(str(place[-1]), known)
        hint = f"; did you mean {suggestion}?" if suggestion else "."
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
    return f"{key}: {expected}, got {_shorten(given)}."


def _shorten(value: Any) -> str:
    """The start of a value's repr. In full, a value that YAML's references repeat may be huge."""
    shortener = Repr()
    shortener.maxstring = shortener.maxother = 80
    return shortener.repr(value)


def _suggestion(name: str, known: Sequence[str]) -> str:
    """The key that was probably meant: renamed, of another section, or spelled like it."""
    name = RENAMED.get(name, name)
    elsewhere: dict[str, str] = {}
    for section in Config.model_fields:
        for key in _fields([section]):
            elsewhere.setdefault(key, f"{section}.{key}")
    if name in known:
        return name
    if name in elsewhere:
        return elsewhere[name]
    here, there = (get_close_matches(name, keys, n=1) for keys in (known, elsewhere))
    return here[0] if here else elsewhere[there[0]] if there else ""


def _fields(place: Sequence[Any]) -> list[str]:
    """The keys of the section at a place."""
    section: type[BaseModel] = Config
    for part in place:
        field = section.model_fields.get(str(part))
        kind = field.annotation if field is not None else None
        # Python 3.10 takes list[str] for a type.
        if get_origin(kind) or not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return list(ParallelFiles.model_fields)  # the only section inside a list
        section = kind
    return list(section.model_fields)
