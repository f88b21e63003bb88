"""The mappings that a picture shows, with their options and labels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from .. import mappings
from ..mappings import AbstractMapping

SYMBOLS = {"alpha": "α", "gamma": "γ", "k": "k", "lam": "λ", "p": "p"}


def _quartic(y: Tensor) -> Tensor:
    """½‖y‖² + ¼Σ y⁴, a regularizer that has no mapping of its own."""
    return (y * y).sum(-1) / 2 + (y**4).sum(-1) / 4


# The options of the paper's figures; a mapping that is not listed has its first example's.
OPTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "entmax": {"alpha": 1.5},
    "sparsemax": {},
    "pnormmax": {"p": 1.5},
    "normmax": {"alpha": 2.0},
    "fusedmax": {"lam": 0.2},
    "oscarmax": {"lam": 0.2},
    "ksubset": {"k": 2},
    "general": {"omega": _quartic},
}


def showcase() -> list[AbstractMapping]:
    """One instance of every registered mapping, the package's own first.

    Returns:
        The options are the papers' (λ = 0.2, p = 1.5); `General` gets ½‖y‖² + ¼Σ y⁴. A mapping
        registered elsewhere comes with its first example.

    >>> [mapping.name for mapping in showcase()][:3]
    ['softmax', 'entmax', 'sparsemax']
    """
    known = [mappings.get(name, **options) for name, options in OPTIONS.items()]
    others: dict[str, AbstractMapping] = {}
    for example in mappings.examples():
        if example.name not in OPTIONS:
            others.setdefault(example.name, example)
    return [*known, *others.values()]


def label(mapping: AbstractMapping) -> str:
    """A mapping's name and the numbers that make it this one.

    >>> from fenchel import Fusedmax
    >>> label(Fusedmax(0.2))
    'fusedmax λ=0.2'
    """
    words = [mapping.name]
    for option in fields(mapping):
        value = getattr(mapping, option.name)
        if option.name == "gamma" and not isinstance(value, Tensor) and value == 1:
            continue
        if option.name == "omega" and value is _quartic:
            words.append("½‖y‖²+¼Σy⁴")
        elif option.name in SYMBOLS:
            shown = "tensor" if isinstance(value, Tensor) else f"{value:g}"
            words.append(f"{SYMBOLS[option.name]}={shown}")
    return " ".join(words)
