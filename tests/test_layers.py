"""Imports point down the layers only, and rare dependencies stay where they belong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fenchel"
LAYERS = (
    ("_atomic", "_checks", "_choices", "_format", "_interrupts"),
    ("ops",),
    ("mappings",),
    ("structures", "nn"),
    ("losses", "attention"),
    ("latent",),
    ("seq2seq", "plots", "compat"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
HOMES = {
    "ctypes": {"ops"},
    "triton": {"ops", "attention"},
    "matplotlib": {"plots"},
    "rich": {"cli"},
    "pydantic": {"seq2seq"},
    "rouge_score": {"seq2seq"},
    "sacrebleu": {"seq2seq"},
    "safetensors": {"seq2seq"},
    "sentencepiece": {"seq2seq"},
    "tensorboardX": {"seq2seq"},
    "yaml": {"seq2seq"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The absolute names of all that a file imports, in functions too."""
    package = ["fenchel", *path.relative_to(PACKAGE).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            stem = [*base, *([node.module] if node.module else [])]
            names |= {".".join([*stem, alias.name]) for alias in node.names}
    return names


def units_used(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported(path)]
    inside = {part[1] for part in parts if part[0] == "fenchel" and len(part) > 1}
    return {unit if unit in LEVEL else "__init__" for unit in inside - {"__version__"}}


def identify(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_every_file_has_a_layer(path: Path) -> None:
    assert unit_of(path) in LEVEL


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_imports_point_down(path: Path) -> None:
    unit = unit_of(path)
    for used in units_used(path) - {unit}:
        assert LEVEL[used] < LEVEL[unit], f"{unit} must not import {used}"


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_rare_dependencies_stay_home(path: Path) -> None:
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or unit_of(path) in homes, f"{name} belongs in {homes}"


def test_the_parser_sees_relative_imports() -> None:
    assert "mappings" in units_used(PACKAGE / "losses" / "_linear.py")
    assert "_checks" in units_used(PACKAGE / "mappings" / "_base.py")
    assert "fenchel.ops._native.Kernel" in imported(PACKAGE / "ops" / "entmax" / "__init__.py")
