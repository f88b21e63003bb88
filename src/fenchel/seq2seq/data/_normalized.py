"""Text in one of Unicode's normal forms."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from ..._checks import check_choice
from ..._choices import Form
from ._vocabulary import Vocabulary

FORMS: tuple[str, ...] = get_args(Form)


class Normalized(Vocabulary):
    """A vocabulary that brings text into a normal form before it is split.

    Args:
        base: splits the text.
        form: "NFC", "NFD", "NFKC" or "NFKD".

    >>> from fenchel.seq2seq import Characters
    >>> Normalized(Characters("é"), "NFC").encode("e\\u0301")
    [4]
    """

    kind = "normalized"

    def __init__(self, base: Vocabulary, form: Form) -> None:
        check_choice("form", form, FORMS)
        self.base = base
        self.form: Form = form

    @classmethod
    def build(cls, kind: Any, form: Form, texts: Iterable[str], size: int) -> Vocabulary:
        """The vocabulary of normalized texts, by a class of vocabularies with `build`."""
        return cls(kind.build((unicodedata.normalize(form, text) for text in texts), size), form)

    @property
    def size(self) -> int:
        return self.base.size

    @property
    def is_unambiguous(self) -> bool:
        return self.base.is_unambiguous

    @property
    def is_prefix_monotone(self) -> bool:
        return self.base.is_prefix_monotone

    def normalize(self, text: str) -> str:
        return self.base.normalize(unicodedata.normalize(self.form, text))

    def encode(self, text: str) -> list[int]:
        return self.base.encode(unicodedata.normalize(self.form, text))

    def unknown(self, text: str) -> list[str]:
        return self.base.unknown(unicodedata.normalize(self.form, text))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return self.base.tokens(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self.base.decode(ids)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "base": self.base.to_json(), "form": self.form}

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        if set(parts) != {"base", "form"}:
            raise TypeError
        return cls(Vocabulary.from_json(parts["base"]), parts["form"])
