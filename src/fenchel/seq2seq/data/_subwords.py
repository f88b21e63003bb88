"""A vocabulary of subwords, which sentencepiece learns from texts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from ._lines import MAX_LINE_BYTES
from ._vocabulary import BOS, EOS, PAD, UNK, Vocabulary, content_ids

MAX_TRAINING_TEXTS = 2_000_000
"""How many texts subwords are learnt from; sentencepiece holds them all in memory."""


def sample_texts(texts: Iterable[str], max_texts: int) -> list[str]:
    """A uniform sample of up to `max_texts` texts, by reservoir sampling with a fixed seed."""
    random, reservoir = Random(0), list[str]()
    for count, text in enumerate(texts):
        if count < max_texts:
            reservoir.append(text)
        elif (index := random.randrange(count + 1)) < max_texts:
            reservoir[index] = text
    return reservoir


class Subwords(Vocabulary):
    """Byte-pair encoding by sentencepiece.

    Args:
        model: sentencepiece's serialized model.

    >>> known = Subwords.build(["low lower lowest", "new newer newest"] * 9, 20)
    >>> known.decode(known.encode("lower newest"))
    'lower newest'
    >>> len(known.encode("lower")) < len("lower")
    True

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
