"""Classes by name: what mappings and structures share."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar


class _Named(Protocol):
    name: ClassVar[str]

    @classmethod
    def examples(cls) -> Iterable[Any]: ...


T = TypeVar("T", bound=_Named)


class Registry(Generic[T]):
    """The classes of one kind, by their `name`.

    Args:
        kind: what messages call an instance.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.classes: dict[str, type[T]] = {}

    def register(self, cls: type[T]) -> None:
        """Adds a class that states a `name`; an abstract class has none."""
        if "name" not in cls.__dict__:
            return
        other = self.classes.get(cls.name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise ValueError(f"a {self.kind} named {cls.name!r} is already registered: {other!r}.")
        self.classes[cls.name] = cls

    def get(self, name: str, **options: Any) -> T:
        """An instance of the registered class of that name, with these options.

        >>> from fenchel import mappings, structures
        >>> mappings.get("entmax", alpha=1.25).alpha
        1.25
        >>> structures.get("bits", d=3).shape
        (3,)
        """
        if name not in self.classes:
            near = difflib.get_close_matches(str(name), self.names(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"the name of a {self.kind} must be one of {', '.join(self.names())}, got "
                f"{name!r}{hint}"
            )
        if options:
            known = list(inspect.signature(self.classes[name]).parameters)
            for option in options:
                if option not in known:
                    message = f"{name} has no option `{option}`; it takes {', '.join(known)}."
                    raise TypeError(message)
        return self.classes[name](**options)

    def names(self) -> list[str]:
        """The names of all registered classes.

        >>> from fenchel import mappings, structures
        >>> "entmax" in mappings.names(), "sequence" in structures.names()
        (True, True)
        """
        return sorted(self.classes)

    def examples(self) -> list[T]:
        """The examples of all registered classes; tests and benchmarks run over them.

        >>> from fenchel import mappings, structures
        >>> {example.name for example in mappings.examples()} == set(mappings.names())
        True
        >>> {example.name for example in structures.examples()} == set(structures.names())
        True
        """
        return [example for name in self.names() for example in self.classes[name].examples()]
