"""Percentages: rounded, but to 0% and 100% only if they are."""

from __future__ import annotations

import pytest

from fenchel._format import percent


@pytest.mark.parametrize(
    ("p", "one_digit", "no_digits"),
    [
        (0.0, "0%", "0%"),
        (1e-9, "<0.1%", "<1%"),
        (1 / 275, "0.4%", "<1%"),
        (0.664, "66.4%", "66%"),
        (274 / 275, "99.6%", ">99%"),
        (1 - 1e-9, ">99.9%", ">99%"),
        (1.0, "100%", "100%"),
    ],
)
def test_percentages(p: float, one_digit: str, no_digits: str) -> None:
    assert percent(p) == one_digit
    assert percent(p, digits=0) == no_digits
