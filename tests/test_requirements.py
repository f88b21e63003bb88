"""`requirements/oldest.txt` has the oldest versions that the package promises to work with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

OLDEST = Path(__file__).parents[1] / "requirements" / "oldest.txt"
EXTRAS = ("", "export", "plots", "seq2seq", "serve", "sklearn")
"""What Python 3.10 can have; that transformers promises, it cannot."""


def of_users(requirement: Requirement) -> bool:
    """Whether users install it, for one of the extras or always."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in EXTRAS)


try:
    PROMISED = [
        requirement
        for requirement in map(Requirement, requires("fenchel") or ())
        if of_users(requirement) and requirement.name != "fenchel"  # which an extra may name
    ]
except PackageNotFoundError:
    pytest.skip("the package is not installed", allow_module_level=True)


@pytest.mark.parametrize("requirement", PROMISED, ids=lambda r: r.name)
def test_the_oldest_versions_are_tested(requirement: Requirement) -> None:
    (bound,) = requirement.specifier
    assert bound.operator == ">="
    lines = OLDEST.read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    oldest = Version(bound.version).release
    assert Version(pins[requirement.name.lower()]).release[: len(oldest)] == oldest


def test_everything_promised_is_found() -> None:
    assert {"torch", "numpy", "onnx", "pydantic", "scikit-learn", "starlette"} <= {
        r.name for r in PROMISED
    }
