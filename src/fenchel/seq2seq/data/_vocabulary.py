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
from ._lines import MAX_LINE_BYTES

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""How a text shows a token that is not in the vocabulary."""
MAX_TRAINING_TEXTS = 2_000_000
"""How many texts subwords are learnt from; sentencepiece holds them all in memory."""
MAX_QUOTED = 80
"""How many characters of an input an error message quotes."""

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
        """The name of each id, for a reader."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids up to the first end; padding and begin are skipped."""

    @property
    def is_unambiguous(self) -> bool:
        """Whether every text has one sequence of ids only, padding and begin aside."""
        return False

    @property
    def is_prefix_monotone(self) -> bool:
        """Whether the text of a sequence always begins with the texts of its prefixes."""
        return False

    def normalize(self, text: str) -> str:
        """The text as an output could spell it: a vocabulary that splits at spaces knows no others
        than single ones, and another may know only a normal form."""
        return text

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that `encode` takes for unknown tokens, in their order."""
        return [SPECIAL[UNK]] * self.encode(text).count(UNK)

    @cached_property
    def digest(self) -> str:
        """A digest of all that `to_json` holds; equal vocabularies have equal digests."""
        return digest(json.dumps(self.to_json(), sort_keys=True))

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The vocabulary as JSON, for `from_json`."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Vocabulary:
        """The vocabulary of a value that `to_json` returned.

        Raises:
            ValueError: for any other value.
        """
        from . import _features, _inflection, _normalized  # noqa: F401  registers their kinds

        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in _KINDS:
            raise ValueError(
                f"a vocabulary's `kind` must be one of {', '.join(sorted(_KINDS))}, got {kind!r}."
            )
        rest = {key: part for key, part in value.items() if key != "kind"}
        try:
            return _KINDS[kind]._from_parts(**rest)
        except TypeError:
            raise ValueError(
                f"a vocabulary of kind {kind!r} does not hold {sorted(rest)}."
            ) from None

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        """The vocabulary of the parts in its JSON; raises a TypeError for other parts."""
        return cls(**parts)


def check_tokens(parts: dict[str, Any]) -> None:
    """Checks lists of tokens, which come from JSON.

    Raises:
        TypeError: if a part is not a list.
        ValueError: if a token is not a text, or stands twice in a list.
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


def quoted(text: str) -> str:
    """The start of an input in quotation marks, for an error message."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def content_ids(ids: Sequence[int]) -> Iterator[int]:
    """The ids up to the first end, without padding and begin."""
    for index in ids:
        if index == EOS:
            return
        if index not in (PAD, BOS):
            yield index


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The `size` most frequent keys; those of equal frequency are in alphabetical order.

    The result does not depend on the order of the data.
    """
    return [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][
        : max(size, 0)
    ]


def sample_texts(texts: Iterable[str], max_texts: int) -> list[str]:
    """A uniform sample of up to `max_texts` texts, by reservoir sampling with a fixed seed."""
    random, reservoir = Random(0), list[str]()
    for count, text in enumerate(texts):
        if count < max_texts:
            reservoir.append(text)
        elif (index := random.randrange(count + 1)) < max_texts:
            reservoir[index] = text
    return reservoir


class _TokenList(Vocabulary):
    """A vocabulary that is a list of tokens."""

    separator: ClassVar[str]

    def __init__(self, tokens: Sequence[str]) -> None:
        self._names = [*SPECIAL, *tokens]
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIAL))}
        self._is_unambiguous = len(self._ids) == len(tokens) and all(map(self._is_distinct, tokens))

    def _is_distinct(self, token: str) -> bool:
        """Whether a token cannot be mistaken for several tokens, or for an unknown one."""
        is_single = self.separator not in token if self.separator else len(token) == 1
        return is_single and token not in ("", UNKNOWN)

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
    def is_unambiguous(self) -> bool:
        return self._is_unambiguous

    @property
    def is_prefix_monotone(self) -> bool:
        return True

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(token, UNK) for token in self.split(text)]

    def unknown(self, text: str) -> list[str]:
        return [token for token in self.split(text) if token not in self._ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._names[index] for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(
            UNKNOWN if index == UNK else self._names[index] for index in content_ids(ids)
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": self._names[len(SPECIAL) :]}

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        check_tokens(parts)
        return cls(**parts)


class Characters(_TokenList):
    """The characters of a text."""

    kind = "characters"
    separator = ""

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text


class Words(_TokenList):
    """The words of a text, between spaces."""

    kind = "words"
    separator = " "

    def normalize(self, text: str) -> str:
        return self.separator.join(self.split(text))

    @staticmethod
    def split(text: str) -> Sequence[str]:
        return text.split()


class Symbols(Words):
    """Tokens that are given between spaces, such as phonemes.

    They are split as `Words` are. But all symbols of a text form one word, which matters to the
    word error rate.
    """

    kind = "symbols"


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
        """Learns up to `size` subwords from texts, or from a sample of two million of them."""
        import sentencepiece

        sample = sample_texts(texts, MAX_TRAINING_TEXTS)
        if not sample:
            raise ValueError("there is no text to learn subwords from; see `data.train`.")
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sample),
                max_sentence_length=MAX_LINE_BYTES,  # sentencepiece leaves out longer texts
                model_writer=model,
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
                f"sentencepiece cannot learn {size} subwords from this text; change "
                f"`data.vocabulary_size`. It says: {error}"
            ) from None
        return cls(model.getvalue())

    @property
    def size(self) -> int:
        return self._processor.get_piece_size()

    @property
    def is_prefix_monotone(self) -> bool:
        """False where subwords are bytes: the first bytes of a character are another text."""
        return not any(map(self._processor.is_byte, range(self.size)))

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def normalize(self, text: str) -> str:
        return " ".join(word for word in text.split(" ") if word)

    def unknown(self, text: str) -> list[str]:
        pieces = self._processor.encode(text, out_type=str)
        return [piece for piece, i in zip(pieces, self.encode(text), strict=True) if i == UNK]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(index)) for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(index) for index in content_ids(ids)])

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": base64.b64encode(self._model).decode("ascii")}

    @classmethod
    def _from_parts(cls, **parts: Any) -> Vocabulary:
        if set(parts) != {"model"}:
            raise TypeError
        return cls(base64.b64decode(parts["model"]))
