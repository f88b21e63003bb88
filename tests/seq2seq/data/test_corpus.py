"""Batches: every pair once in an epoch, an order of the seed alone, and buffers that resume."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fenchel.seq2seq import Batch
from fenchel.seq2seq.data._batches import EMPTY, batch
from fenchel.seq2seq.data._corpus import Corpus, Encoded, by_length, encode, shuffled
from fenchel.seq2seq.data._vocabulary import Characters

LETTERS = Characters("abcdefghij")
PAIRS = [("abcdefghij"[: 1 + i % 10], "abcdefghij"[: i % 7]) for i in range(200)]


@pytest.fixture
def encoded() -> Encoded:
    return encode(PAIRS, LETTERS, LETTERS)


def assert_same(one: Batch, other: Batch) -> None:
    for name in ("source", "source_lengths", "target"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_batches_are_padded(encoded: Encoded) -> None:
    index = np.array([3, 9, 0])
    ids = [(LETTERS.encode(PAIRS[i][0]), LETTERS.encode(PAIRS[i][1])) for i in index]
    found = encoded.batch(index)
    assert_same(found, batch(ids))
    assert found.source.shape == (3, 10)
    assert found.target[:, 0].tolist() == [1, 1, 1]
    assert found.target[2].tolist() == [1, 2, 0, 0, 0]
    assert int(found.count) == encoded.count(index) == 4 + 3 + 1
    assert encoded.batch(index, multiple=8).source.shape == (3, 16)


def test_no_pairs_are_a_batch_without_tokens(encoded: Encoded) -> None:
    found = encoded.batch(np.array([], dtype=np.int64))
    assert_same(found, EMPTY)
    assert int(found.count) == 0


def test_every_pair_is_in_one_batch(encoded: Encoded) -> None:
    for batches in (shuffled(encoded, 16, (0, 1, 0)), by_length(encoded, 16)):
        assert sorted(np.concatenate(batches)) == list(range(200))
        assert max(map(len, batches)) == 16


def test_long_pairs_share_a_batch_with_fewer(
    encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fenchel.seq2seq.data._batches.MAX_BATCH_TOKENS", 24)
    batches = by_length(encoded, 16)
    assert sorted(int(i) for index in batches for i in index) == list(range(len(encoded)))
    for index in batches:
        widest = max(encoded.sources.lengths[index].max(), encoded.targets.lengths[index].max())
        assert len(index) == 1 or len(index) * widest <= 24


def test_the_order_depends_on_the_seed_alone(encoded: Encoded) -> None:
    first = np.concatenate(shuffled(encoded, 16, (0, 1, 0)))
    assert np.array_equal(first, np.concatenate(shuffled(encoded, 16, (0, 1, 0))))
    assert not np.array_equal(first, np.concatenate(shuffled(encoded, 16, (0, 2, 0))))


def test_batches_hold_similar_lengths(encoded: Encoded) -> None:
    widths = [np.ptp(encoded.targets.lengths[rows]) for rows in shuffled(encoded, 16, (0,))]
    assert np.mean(widths) < 1.5


def test_long_and_empty_pairs_are_dropped_and_counted() -> None:
    found = encode([("abc", "a"), ("a", "abc"), ("", "a"), ("ab", "ab")], LETTERS, LETTERS, 2)
    assert (len(found), found.dropped) == (1, 3)


def corpus(buffer: int | None, reads: list[int] | None = None) -> Corpus:
    def read() -> Iterator[tuple[str, str]]:
        if reads is not None:
            reads.append(1)
        return iter(PAIRS)

    return Corpus(read, LETTERS, LETTERS, 8, buffer)


def test_buffers_hold_all_pairs() -> None:
    whole = encode(PAIRS, LETTERS, LETTERS, 8)
    parts = list(corpus(30).buffers())
    assert [number for number, _ in parts] == list(range(7))
    streamed = np.concatenate([part.sources.flat[:-1] for _, part in parts])
    assert np.array_equal(streamed, whole.sources.flat[:-1])


def test_buffers_go_on_in_the_middle() -> None:
    wanted = list(corpus(30).buffers())[4:]
    found = list(corpus(30).buffers(4))
    assert [number for number, _ in found] == [4, 5, 6]
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert np.array_equal(one.targets.flat, other.targets.flat)


def test_memory_is_read_once_and_streams_every_time() -> None:
    for buffer, wanted in ((None, 1), (30, 2)):
        reads: list[int] = []
        pairs = corpus(buffer, reads)
        for _ in range(2):
            list(pairs.buffers())
        assert len(reads) == wanted
        assert pairs.dropped == 40
