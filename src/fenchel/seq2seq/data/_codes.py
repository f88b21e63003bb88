"""Numbers of words that are in no vocabulary, by which a model that copies tells them apart.

A word's number is a part of its digest, so that it is the same in every process. A word that finds
its number taken gets the next free one: of the words that are remembered, no two share a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock

MAX_WORDS = 1 << 20
"""How many words are remembered at least, the last ones used."""
BITS = 60
"""Of a number. Added to the sizes of vocabularies it is still an int64."""


def digest_number(word: str) -> int:
    """The number that a word has unless another one has it already."""
    content = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> (64 - BITS)


class Codes:
    """Words and their numbers, for several threads.

    >>> codes = Codes()
    >>> codes.word(codes.number("Kirschbaum"))
    'Kirschbaum'
    """

    def __init__(self) -> None:
        self._lock, self._users = RLock(), 0
        self._numbers: dict[str, int] = {}
        self._words: dict[int, str] = {}

    def number(self, word: str) -> int:
        """The number of a word, which is remembered with it."""
        with self._lock:
            number = self._numbers.pop(word, None)
            if number is None:
                number = digest_number(word)
                while number in self._words:
                    number = (number + 1) % (1 << BITS)
                self._words[number] = word
            self._numbers[word] = number  # the last word used is the last one
            return number

    def word(self, number: int) -> str | None:
        """The word with this number, or None if it is not remembered."""
        return self._words.get(number)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """No word is forgotten until the end of the block."""
        with self._lock:
            if not self._users:
                self._forget()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def _forget(self) -> None:
        """Forgets all but the last `MAX_WORDS` words."""
        while len(self._numbers) > MAX_WORDS:
            word = next(iter(self._numbers))
            del self._words[self._numbers.pop(word)]


CODES = Codes()
"""Those of the process, which the models of an ensemble share."""
