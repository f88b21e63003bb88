"""The registered mappings, by name."""

from __future__ import annotations

from .. import _checks
from ._base import REGISTRY, AbstractMapping

get, names, examples = REGISTRY.get, REGISTRY.names, REGISTRY.examples


def resolve(mapping: AbstractMapping | str) -> AbstractMapping:
    """A mapping, or the registered one of that name with its default options."""
    if isinstance(mapping, str):
        return get(mapping)
    _checks.mapping(mapping, AbstractMapping)
    return mapping
