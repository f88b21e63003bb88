"""Which modules of a model call an attention implementation by its name, and which have their own.

What a class does is read from the names in the code of its methods.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

_OWN = {"softmax", "scaled_dot_product_attention"}


@functools.cache
def calls_by_name(kind: type) -> bool:
    """Whether modules of this class look for an attention implementation."""
    from transformers import PreTrainedModel

    if issubclass(kind, PreTrainedModel):  # it only lists their names
        return False
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in _methods(kind))


def own_attention(model: nn.Module) -> str | None:
    """The class of a module whose attention is its own; None if the model has none."""
    return next((type(part).__name__ for part in _parts(model) if _is_own(type(part))), None)


@functools.cache
def takes_other_names(kind: type) -> bool:
    """Whether what models of this class build is not chosen from a table of attention classes.

    Such a table has the names of transformers' own implementations only.
    """
    scope = vars(sys.modules[kind.__module__])
    seen: set[str] = set()
    todo: list[Any] = [kind]
    while todo:
        for base in todo.pop().__mro__:
            for name in {name for code in _methods(base) for name in code.co_names} - seen:
                seen.add(name)
                found = scope.get(name)
                if name.endswith("ATTENTION_CLASSES") and isinstance(found, dict):
                    return False
                if (
                    isinstance(found, type)
                    and issubclass(found, nn.Module)
                    and not _is_model(found)
                ):
                    todo.append(found)
    return True


def _methods(kind: type) -> Iterator[CodeType]:
    """The code of the methods of a class, and that of functions and comprehensions inside."""
    todo = [
        inspect.unwrap(each).__code__ for _, each in inspect.getmembers(kind, inspect.isfunction)
    ]
    while todo:
        code = todo.pop()
        todo += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        yield code


def _parts(module: nn.Module, config: Any = None) -> Iterator[nn.Module]:
    """All modules inside, but for models with another configuration."""
    config = getattr(module, "config", None) if config is None else config
    for child in module.children():
        if not _is_model(type(child)) or child.config is config:
            yield child
            yield from _parts(child, config)


@functools.cache
def _is_model(kind: type) -> bool:
    from transformers import PreTrainedModel

    return issubclass(kind, PreTrainedModel)


@functools.cache
def _is_own(kind: type) -> bool:
    """Whether this is a layer of attention of transformers that does not look for a name."""
    is_layer = kind.__name__.endswith("Attention") and kind.__module__.startswith("transformers.")
    if not is_layer or calls_by_name(kind):
        return False
    return any(not _OWN.isdisjoint(code.co_names) for code in _methods(kind))
