"""Classes by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fenchel._registry import Registry

REGISTRY: Registry[Shape] = Registry("shape")


class Shape:
    """The kind of classes that these tests register."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        REGISTRY.register(cls)

    @classmethod
    def examples(cls) -> Iterator[Shape]:
        yield cls()


class Abstract(Shape):
    """Without a name, so that it is not registered."""


@dataclass
class Square(Abstract):
    name = "square"
    side: float = 1.0


class Circle(Abstract):
    name = "circle"


def test_named_classes_are_registered() -> None:
    assert REGISTRY.names() == ["circle", "square"]
    assert [type(example) for example in REGISTRY.examples()] == [Circle, Square]
    assert REGISTRY.get("square", side=2.0) == Square(2.0)


def test_a_class_may_be_defined_again_but_not_another_of_its_name() -> None:
    again = type("Circle", (Abstract,), {"name": "circle", "__qualname__": "Circle"})
    assert REGISTRY.classes["circle"] is again
    with pytest.raises(ValueError, match="a shape named 'circle' is already registered: <class"):
        type("Disk", (Abstract,), {"name": "circle"})


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match="of a shape must be one of circle, square, got 'cube'"):
        REGISTRY.get("cube")
    with pytest.raises(TypeError, match="square has no option `edge`; it takes side"):
        REGISTRY.get("square", edge=2.0)
