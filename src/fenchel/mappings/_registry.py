"""The registered mappings, by name."""

from __future__ import annotations

import inspect
from typing import Any

from .. import _checks
from . import _base
from ._base import AbstractMapping


def get(name: str, **options: Any) -> AbstractMapping:
    """The registered mapping of that name, with its options.

    >>> get("entmax", alpha=1.25).name
    'entmax'
    """
    if name not in _base._REGISTRY:
        raise ValueError(f"`name` must be one of {', '.join(names())}, got {name!r}.")
    mapping = _base._REGISTRY[name]
    known = list(inspect.signature(mapping).parameters)
    for option in options:
        if option not in known:
            raise TypeError(f"{name} has no option `{option}`; it takes {', '.join(known)}.")
    return mapping(**options)


def resolve(mapping: AbstractMapping | str) -> AbstractMapping:
    """A mapping, or the registered one of that name with its default options."""
    if isinstance(mapping, str):
        return get(mapping)
    _checks.mapping(mapping, AbstractMapping)
    return mapping


def names() -> list[str]:
    """The names of all registered mappings.

    >>> "sparsemax" in names()
    True
    """
    return sorted(_base._REGISTRY)


def examples() -> list[AbstractMapping]:
    """The examples of all registered mappings, over which tests and benchmarks run.

    >>> {example.name for example in examples()} == set(names())
    True
    """
    return [example for name in names() for example in _base._REGISTRY[name].examples()]
