"""Vocabularies: text to token ids and back, by characters, words or subwords."""

from __future__ import annotations

import abc
import base64
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from random import Random
from typing import Any, ClassVar

from .._files import digest

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SAMPLE = 2_000_000
"""The most texts that subwords are learnt from."""
LONGEST_TEXT = 1 << 20
"""In bytes; sentencepiece would leave out whole documents."""

_KINDS: dict[str, type[Vocabulary]] = {}


class Vocabulary(abc.ABC):
    """The tokens of one side of a model.

    Ids 0 to 3 are padding, begin, end and unknown in every vocabulary.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of ids."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end."""

    @abc.abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """What each id stands for, for a reader."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids up to the first end; padding and begin are skipped."""

    @property
    def unique(self) -> bool:
        """Whether no text is spelled by two sequences of ids without padding and begin."""
        return False

    @property
    def grows(self) -> bool:
        """Whether the text of a sequence begins with the text of every prefix of it."""
        return False

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that `encode` reads as unknown, in their order."""
        return [SPECIAL[UNK]] * self.encode(text).count(UNK)

    @cached_property
    def digest(self) -> str:
        """A digest of all that `to_json` holds; equal vocabularies have equal digests."""
        return digest(json.dumps(self.to_json(), sort_keys=True))

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What `from_json` makes this vocabulary of again."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Vocabulary:
        """The vocabulary that `to_json` described.

        Raises:
            ValueError: for anything else.
        """
        from . import _inflection  # noqa: F401  registers its kind

        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in _KINDS:
            raise ValueError(
                f"a vocabulary's `kind` must be one of {', '.join(sorted(_KINDS))}, got {kind!r}."
            )
        rest = {key: part for key, part in value.items() if key != "kind"}
        try:
            return _KINDS[kind]._restored(**rest)
        except TypeError:
            raise ValueError(
                f"a vocabulary of kind {kind!r} does not hold {sorted(rest)}."
            ) from None

    @classmethod
    def _restored(cls, **parts: Any) -> Vocabulary:
        """The vocabulary of its parts; a TypeError says that they are not its."""
        return cls(**parts)


def checked_tokens(parts: dict[str, Any]) -> dict[str, list[str]]:
    """Lists of tokens, as they come from JSON.

    Raises:
        TypeError: if one is no list.
        ValueError: if one holds something else than texts, or one text twice.
    """
    for name, tokens in parts.items():
        if not isinstance(tokens, list):
            raise TypeError
        seen = set[str]()
        for token in tokens:
            if not isinstance(token, str) or token in seen:
                wrong = "stands twice" if isinstance(token, str) else "is not a text"
                raise ValueError(f"`{name}` must hold different texts; {token!r} {wrong}.")
            seen.add(token)
    return parts


def words_of(ids: Sequence[int]) -> Iterator[int]:
    """The ids up to the first end, without padding and begin."""
    for index in ids:
        if index == EOS:
            return
        if index not in (PAD, BOS):
            yield index


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The `size` most frequent keys; ties in the order of their letters, so that any order of the
    data gives the same vocabulary."""
    return [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][
        : max(size, 0)
    ]


def sampled(texts: Iterable[str], most: int) -> list[str]:
    """All texts, or `most` of them, each as likely as any other, and the same ones every time."""
    random, chosen = Random(0), list[str]()
    for place, text in enumerate(texts):
        if place < most:
            chosen.append(text)
        elif (other := random.randrange(place + 1)) < most:
            chosen[other] = text
    return chosen


class _Table(Vocabulary):
    """A list of tokens."""

    separator: ClassVar[str]

    def __init__(self, tokens: Sequence[str]) -> None:
        self._names = [*SPECIAL, *tokens]
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIAL))}
        self._unique = len(self._ids) == len(tokens) and all(map(self._stands_alone, tokens))

    def _stands_alone(self, token: str) -> bool:
        """Whether a token can be told from its neighbours, and from an unknown one."""
        apart = self.separator not in token if self.separator else len(token) == 1
        return apart and token not in ("", UNKNOWN)

    @staticmethod
    @abc.abstractmethod
    def split(text: str) -> Sequence[str]:
        """The tokens of a text."""

    @classmethod
    def build(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The vocabulary of the most frequent tokens, of up to `size` ids."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls.split(text))
        return cls(most_frequent(counts, size - len(SPECIAL)))

    @property
    def size(self) -> int:
        return len(self._names)

    @property
    def unique(self) -> bool:
        return self._unique

    @property
    def grows(self) -> bool:
        return True

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(token, UNK) for token in self.split(text)]

    def unknown(self, text: str) -> list[str]:
        return [token for token in self.split(text) if token not in self._ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._names[index] for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(
            UNKNOWN if index == UNK else self._names[index] for index in words_of(ids)
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": self._names[len(SPECIAL) :]}

    @classmethod
    def _restored(cls, **parts: Any) -> Vocabulary:
        return cls(**checked_tokens(parts))


class Characters(_Table):
    """The characters of a text."""

    kind = "characters"
    separator = ""

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text


class Words(_Table):
    """The words of a text, between spaces."""

    kind = "words"
    separator = " "

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text.split()


class Subwords(Vocabulary):
    """Byte-pair encoding by sentencepiece.

    Args:
        model: sentencepiece's serialized model.

    References: kudo2018sentencepiece.
    """

    kind = "subwords"

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise ValueError("the subwords are not a model of sentencepiece.") from None

    @classmethod
    def build(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learns up to `size` subwords from texts, or from two million of them if there are more:
        sentencepiece holds them all in memory."""
        import sentencepiece

        chosen = sampled(texts, SAMPLE)
        if not chosen:
            raise ValueError("there is no text to learn subwords from; see `data.train`.")
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(chosen),
                max_sentence_length=LONGEST_TEXT,
                model_writer=written,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,
                character_coverage=1.0,
                normalization_rule_name="identity",
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNK,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(
                f"sentencepiece cannot make {size} subwords of this text; change "
                f"`data.vocabulary_size`. It says: {error}"
            ) from None
        return cls(written.getvalue())

    @property
    def size(self) -> int:
        return self._processor.get_piece_size()

    @property
    def grows(self) -> bool:
        """Not where characters are divided into bytes, a part of which is another text."""
        return not any(map(self._processor.is_byte, range(self.size)))

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def unknown(self, text: str) -> list[str]:
        pieces = self._processor.encode(text, out_type=str)
        return [piece for piece, i in zip(pieces, self.encode(text), strict=True) if i == UNK]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(index)) for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(index) for index in words_of(ids)])

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": base64.b64encode(self._model).decode("ascii")}

    @classmethod
    def _restored(cls, **parts: Any) -> Vocabulary:
        if set(parts) != {"model"}:
            raise TypeError
        return cls(base64.b64decode(parts["model"]))
