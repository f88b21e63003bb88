"""Intervals hold exactly the keys that the arguments' documentation says, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_problems import sees
from fenchel.attention._pattern import Pattern, pattern

SIDES = st.none() | st.integers(0, 4)


@st.composite
def problems(draw: Any) -> tuple[int, int, dict[str, Any]]:
    queries, keys = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    options: dict[str, Any] = {}
    causal = draw(st.sampled_from([False, True, "upper_left", "lower_right"]))
    if causal:
        options["causal"] = causal
    window = draw(st.none() | st.integers(1, 4) | st.tuples(SIDES, SIDES))
    if window is not None:
        options["window"] = window
    kind = draw(st.sampled_from(["whole", "padded", "packed"]))
    if kind == "padded":
        for name, most in (("query_lengths", queries), ("key_lengths", keys)):
            if draw(st.booleans()):
                lengths = draw(st.lists(st.integers(0, most), min_size=2, max_size=2))
                options[name] = torch.tensor(lengths)
    elif kind == "packed":
        count = draw(st.integers(1, 4))
        for name, most in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys)):
            cuts = draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
            options[name] = torch.tensor([0, *sorted(cuts)])
    return queries, keys, options


def build(queries: int, keys: int, options: dict[str, Any]) -> Pattern:
    names = {"cu_seqlens_q": "query_offsets", "cu_seqlens_k": "key_offsets"}
    renamed = {names.get(name, name): value for name, value in options.items()}
    return pattern(queries, keys, torch.device("cpu"), **renamed)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_intervals_are_what_queries_see(problem: tuple[int, int, dict[str, Any]]) -> None:
    queries, keys, options = problem
    found, look = build(*problem), sees(options, queries, keys)
    starts, stops = (x.expand(2, queries).tolist() for x in (found.starts, found.stops))
    for b in range(2):
        for t in range(queries):
            seen = [j for j in range(keys) if look(b, t, j)]
            assert seen == list(range(starts[b][t], stops[b][t]))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_intervals_are_ordered(problem: tuple[int, int, dict[str, Any]]) -> None:
    found = build(*problem)
    for ends in (found.starts, found.stops):
        assert ends.dtype == torch.int32
        assert ends.shape in ((1, problem[0]), (2, problem[0]))
        assert (ends.diff(dim=-1) >= 0).all()
        assert ((ends >= 0) & (ends <= problem[1])).all()
    assert (found.starts <= found.stops).all()


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_spans_hold_all_that_is_seen(problem: tuple[int, int, dict[str, Any]], data: Any) -> None:
    queries, keys, options = problem
    if not queries:
        return
    found, look = build(*problem), sees(options, queries, keys)
    first = data.draw(st.integers(0, queries - 1))
    last = data.draw(st.integers(first + 1, queries))
    span = found.span(slice(0, 2), slice(first, last))
    assert 0 <= span.start <= span.stop <= keys
    for b in range(2):
        for t in range(first, last):
            assert all(span.start <= j < span.stop for j in range(keys) if look(b, t, j))


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_all_see_what_is_inside(problem: tuple[int, int, dict[str, Any]], data: Any) -> None:
    queries, keys, options = problem
    if not queries:
        return
    found, look = build(*problem), sees(options, queries, keys)
    first = data.draw(st.integers(0, queries - 1))
    last = data.draw(st.integers(first + 1, queries))
    low, high = found.inner(slice(0, 2), slice(first, last))
    for b in range(2):
        for t in range(first, last):
            assert all(look(b, t, j) for j in range(max(low, 0), min(high, keys)))


def test_spans_are_narrow() -> None:
    found = pattern(100, 100, torch.device("cpu"), causal=True, window=10)
    assert found.span(slice(0, 1), slice(50, 60)) == slice(41, 60)
    lengths = torch.tensor([3, 7])
    found = pattern(100, 100, torch.device("cpu"), key_lengths=lengths)
    assert found.span(slice(1, 2), slice(0, 5)) == slice(0, 7)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([2**31 - 8, 2**31 - 1, 2**31, 2**63 - 1, 2**70]))
def test_large_windows_are_no_bound(problem: tuple[int, int, dict[str, Any]], far: int) -> None:
    queries, keys, options = problem
    options.pop("window", None)
    expected = build(queries, keys, options)
    for window in (far, (far, far), (None, far), (far, None)):
        found = build(queries, keys, {**options, "window": window})
        assert torch.equal(found.starts, expected.starts)
        assert torch.equal(found.stops, expected.stops)


def test_windows_of_small_integers() -> None:
    found = pattern(300, 300, torch.device("cpu"), window=np.int8(127))
    assert found.span(slice(0, 1), slice(0, 1)) == slice(0, 128)
    assert found.stops[0, 0] == 128
