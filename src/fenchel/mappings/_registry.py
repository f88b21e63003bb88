"""The registered mappings, by name."""

from __future__ import annotations

from ._base import REGISTRY, AbstractMapping
from ._checks import check_mapping

get, names, examples = REGISTRY.get, REGISTRY.names, REGISTRY.examples


def resolve(mapping: AbstractMapping | str) -> AbstractMapping:
    """A mapping, or the registered one of that name with its default options."""
    if isinstance(mapping, str):
        return get(mapping)
    check_mapping(mapping, AbstractMapping)
    return mapping
