"""A service of a small model, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Served, small_model

from fenchel.seq2seq import Seq2Seq


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    return small_model()


@pytest.fixture(scope="module")
def served(model) -> Iterator[Served]:
    with Served(model) as running:
        yield running
