"""What a Python function is made of."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor

_KNOWN = ("builtins", "functools", "math", "numpy", "torch")
"""Packages whose functions and classes hold no tensor of a user's."""


_MOST = 10_000
"""How many things to look at; who has more is taken to have a tensor among them."""


def holds_tensors(function: Any) -> bool:
    """Whether a function can reach tensors that it does not make itself: in its closure, defaults
    and globals, in the object or the partial that it belongs to, or in functions that it calls.

    Attributes of modules are not looked at.
    """
    seen: dict[int, Any] = {}
    left = [function]
    while left and len(seen) < _MOST:
        thing = left.pop()
        if isinstance(thing, Tensor):
            return True
        if id(thing) not in seen and not isinstance(thing, ModuleType):
            seen[id(thing)] = thing  # held, so that no other thing gets its id
            left.extend(_parts(thing))
    return bool(left)


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, (list, tuple, set, frozenset)):
        return thing
    if isinstance(thing, partial):
        return (thing.func, thing.args, thing.keywords)
    if isinstance(thing, MethodType):
        return (thing.__self__, thing.__func__)
    if isinstance(thing, (FunctionType, type)):
        if str(thing.__module__).partition(".")[0] in _KNOWN:
            return ()
        return _of_function(thing) if isinstance(thing, FunctionType) else _of_class(thing)
    return (getattr(thing, "__dict__", None), type(thing))


def _of_function(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    yield function.__defaults__
    yield function.__kwdefaults__
    for name in _names(function.__code__):
        yield function.__globals__.get(name)


def _of_class(kind: type) -> Iterable[Any]:
    yield from vars(kind).values()
    yield kind.__bases__


def _names(code: CodeType) -> Iterable[str]:
    """The names that a function looks up, and those of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
