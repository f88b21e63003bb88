"""The tasks: sequences of symbols and what to answer, made on the device.

A symbol is a number below 2¹⁶, so that even the longest sequence can have distinct ones. It is
written with two digits of base 256. Other tokens are numbers from 2¹⁶ on. The target of a position
is the symbol to answer there; the last positions of a sequence have one. Its size counts what grows
with it: symbols, pairs or slots. Padding follows the shorter sequences of a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BITS = 16
SYMBOLS = 2**BITS
START, SEPARATOR, PADDING, MARKERS = (SYMBOLS + i for i in range(4))
"""MARKERS is the first of NEEDLES."""
NEEDLES = 4
MAX_QUESTIONS = 256
"""Of a sequence, in multi-query recall."""
NOTHING = -1
"""The target where there is no answer."""


class Batch(NamedTuple):
    """Tokens and targets, (B, length), int64."""

    tokens: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Task:
    """A kind of sequences.

    Args:
        sample: from sizes (B,) and a length to a batch, without waiting for the device.
        length: from a size to the number of tokens.
        num_answers: from a size to how many of the last tokens have a target.
        min_size: of a sequence.
    """

    sample: Callable[[Tensor, int], Batch]
    length: Callable[[int], int]
    num_answers: Callable[[int], int]
    min_size: int = 1

    def max_size(self, length: int) -> int:
        """The largest size of a sequence of at most that length.

        Raises:
            ValueError: if none is so short.
        """
        least = self.length(self.min_size)
        if length < least:
            raise ValueError(f"`length` must be at least {least} for this task, got {length}.")
        return bisect_right(range(length + 1), length, key=self.length) - 1

    def training(self, rows: int, length: int, device: str) -> Batch:
        """Sequences of random sizes, up to that length."""
        largest = self.max_size(length)
        sizes = torch.randint(self.min_size, largest + 1, (rows,), device=device)
        return self.sample(sizes, length)

    def testing(self, rows: int, length: int, device: str) -> tuple[Batch, int]:
        """Sequences of the largest size without padding, and the number of their answers."""
        size = self.max_size(length)
        sizes = torch.full((rows,), size, device=device)
        return self.sample(sizes, self.length(size)), self.num_answers(size)


def distinct(rows: int, count: int, device: torch.device, bits: int = BITS) -> Tensor:
    """Rows of distinct random numbers below 2^bits, (rows, count).

    Each row is a stretch of a random permutation of all of them: two steps that can be undone,
    repeated. They are adding the upper half of the bits to the lower, and multiplying by an odd
    number.
    """
    most = 2**bits
    x = torch.randint(most, (rows, 1), device=device) + torch.arange(count, device=device)
    x = x % most
    for odd in 2 * torch.randint(most // 2, (3, rows, 1), device=device) + 1:
        x = (x ^ (x >> (bits // 2))) * odd % most
    return x ^ (x >> (bits // 2))


def transduce(answer: Callable[[Tensor, Tensor], Tensor]) -> Task:
    """START, the symbols, SEPARATOR, and their answer symbol by symbol.

    Args:
        answer: from symbols (B, n) and their numbers (B, 1) to the answer's symbols.
    """

    def sample(sizes: Tensor, length: int) -> Batch:
        sizes = sizes[:, None]
        x = distinct(len(sizes), length, sizes.device)
        y = answer(x, sizes)
        place = torch.arange(length, device=x.device)
        ahead = (place - sizes - 1).clamp(0, length - 1)
        here, after = y.gather(1, (ahead - 1).clamp(min=0)), y.gather(1, ahead)
        tokens = torch.where(place > sizes + 1, here, x.roll(1, 1))
        tokens[:, 0] = START
        tokens.masked_fill_(place == sizes + 1, SEPARATOR)
        tokens.masked_fill_(place > 2 * sizes, PADDING)
        is_answer = (place > sizes) & (place <= 2 * sizes)
        return Batch(tokens, after.masked_fill(~is_answer, NOTHING))

    return Task(sample, lambda size: 2 * size + 1, lambda size: size)


def reversed_symbols(x: Tensor, sizes: Tensor) -> Tensor:
    """The first symbols of each row, from the last to the first."""
    place = torch.arange(x.shape[1], device=x.device)
    return x.gather(1, (sizes - 1 - place).clamp(min=0))


def sorted_symbols(x: Tensor, sizes: Tensor) -> Tensor:
    """The first symbols of each row in rising order."""
    place = torch.arange(x.shape[1], device=x.device)
    return x.masked_fill(place >= sizes, SYMBOLS).sort(1).values


def num_questions(size: int) -> int:
    """All pairs are asked for, up to a bound."""
    return min(size, MAX_QUESTIONS)


def recall(sizes: Tensor, length: int) -> Batch:
    """Multi-query associative recall: pairs of a key and a value, then keys; answer their values.

    Keys are the symbols below 2¹⁵ and values the others. No key comes twice among the pairs or
    among the questions.
    """
    rows, half = len(sizes), SYMBOLS // 2
    sizes = sizes[:, None]
    most = max(length // 2, 1)
    keys = distinct(rows, most, sizes.device, BITS - 1)
    values = torch.randint(half, SYMBOLS, (rows, most), device=sizes.device)
    order = torch.rand(rows, most, device=sizes.device)
    order = order.masked_fill(torch.arange(most, device=sizes.device) >= sizes, 2.0).argsort(1)
    place = torch.arange(length, device=sizes.device)
    asked = order.gather(1, (place - 2 * sizes).clamp(0, most - 1))
    pair = torch.where(place < 2 * sizes, place // 2, asked).clamp(max=most - 1)
    key, value = keys.gather(1, pair), values.gather(1, pair)
    tokens = torch.where((place < 2 * sizes) & (place % 2 == 1), value, key)
    end = 2 * sizes + sizes.clamp(max=MAX_QUESTIONS)
    is_answer = (place >= 2 * sizes) & (place < end)
    return Batch(tokens.masked_fill(place >= end, PADDING), value.masked_fill(~is_answer, NOTHING))


def needles(sizes: Tensor, length: int) -> Batch:
    """Needle retrieval: random symbols with a few markers among them, then the markers again;
    answer the symbol that followed each.

    The sequence has slots of two tokens, and each equal stretch of it a marker in one of them.
    """
    rows, device = len(sizes), sizes.device
    sizes = sizes[:, None]
    place = torch.arange(length, device=device)
    tokens = torch.randint(SYMBOLS, (rows, length), device=device)
    stretch = sizes // NEEDLES
    inside = (torch.rand(rows, NEEDLES, device=device) * stretch).long()
    slots = torch.arange(NEEDLES, device=device) * stretch + inside
    marker = torch.rand(rows, NEEDLES, device=device).argsort(1)
    tokens.scatter_(1, 2 * slots, MARKERS + marker)
    order = torch.rand(rows, NEEDLES, device=device).argsort(1)
    question = (place - 2 * sizes).clamp(0, NEEDLES - 1)
    asked = order.gather(1, question)
    answer = tokens.gather(1, 2 * slots + 1).gather(1, asked)
    is_answer = (place >= 2 * sizes) & (place < 2 * sizes + NEEDLES)
    tokens = torch.where(is_answer, MARKERS + marker.gather(1, asked), tokens)
    tokens.masked_fill_(place >= 2 * sizes + NEEDLES, PADDING)
    return Batch(tokens, answer.masked_fill(~is_answer, NOTHING))


TASKS = {
    "recall": Task(recall, lambda size: 2 * size + num_questions(size), num_questions),
    "copy": transduce(lambda x, sizes: x),
    "reverse": transduce(reversed_symbols),
    "sort": transduce(sorted_symbols),
    "needle": Task(needles, lambda size: 2 * size + NEEDLES, lambda size: NEEDLES, NEEDLES),
}
