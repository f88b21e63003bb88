"""Where everything is tested, the packages of the extras are there, so that no test is skipped."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("CI") != "true", reason="elsewhere they may be missing"
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="transformers needs Python 3.11")
def test_transformers_is_installed() -> None:
    assert find_spec("transformers") is not None


def test_scikit_learn_is_installed() -> None:
    assert find_spec("sklearn") is not None
