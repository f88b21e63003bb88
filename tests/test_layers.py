"""Imports point down the layers only, rare dependencies stay where they belong, and whoever stands
beside the package uses its public names."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Sequence
from pathlib import Path

import pytest

from test_docs import PAGES, code_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fenchel"


def private_files(folder: Path) -> tuple[str, ...]:
    """The private modules that stand in a folder itself: all of its parts may use them."""
    return tuple(path.stem for path in sorted(folder.glob("_[a-z]*.py")))


LAYERS = (
    ("_checks", *private_files(PACKAGE)),
    ("ops",),
    ("mappings",),
    ("structures", "nn"),
    ("losses", "attention"),
    ("latent",),
    ("seq2seq", "plots", "integrations", "compat", "testing"),
    ("cli",),
    ("__init__", "__main__"),
)
ROOMS = (
    private_files(PACKAGE / "seq2seq"),
    ("config",),
    ("data",),
    ("models",),
    ("decoding",),
    ("training",),
    ("evaluation",),
    ("explanations",),
    ("serving", "exporting"),
    ("__init__",),
)
"""The layers inside `seq2seq`."""
HOMES = {
    "ctypes": {"ops"},
    "triton": {"ops", "attention"},
    "matplotlib": {"plots"},
    "rich": {"cli"},
    "pydantic": {"seq2seq"},
    "rouge_score": {"seq2seq"},
    "sacrebleu": {"seq2seq"},
    "safetensors": {"seq2seq"},
    "scipy": {"integrations"},
    "sentencepiece": {"seq2seq"},
    "sklearn": {"integrations"},
    "starlette": {"seq2seq"},
    "tensorboardX": {"seq2seq"},
    "transformers": {"integrations"},
    "uvicorn": {"seq2seq"},
    "yaml": {"seq2seq"},
}
FILES = sorted(PACKAGE.rglob("*.py"))
SEQ2SEQ = sorted((PACKAGE / "seq2seq").rglob("*.py"))
OUTSIDE = sorted(
    path for name in ("benchmarks", "experiments", "docs") for path in (ROOT / name).rglob("*.py")
)


def level(layers: Sequence[Sequence[str]]) -> dict[str, int]:
    """The number of each unit's layer."""
    return {unit: number for number, units in enumerate(layers) for unit in units}


LEVEL, ROOM = level(LAYERS), level(ROOMS)


def unit_of(path: Path, folder: Path = PACKAGE) -> str:
    """The part of a folder that a file belongs to."""
    return path.relative_to(folder).with_suffix("").parts[0]


def bindings(tree: ast.AST, package: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What a module imports, in functions too: the name it has there, and its absolute name."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                found.append((alias.asname or first, alias.name if alias.asname else first))
                found.append(("", alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            stem = [*base, *([node.module] if node.module else [])]
            found += [(a.asname or a.name, ".".join([*stem, a.name])) for a in node.names]
    return found


def imported(path: Path) -> set[str]:
    """The absolute names of all that a file of the package imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name for _, name in bindings(tree, ["fenchel", *path.relative_to(PACKAGE).parts[:-1]])}


def units_used(path: Path, unit: str = "") -> set[str]:
    """The parts of the package, or of one unit of it, that a file imports from."""
    prefix = ["fenchel", *([unit] if unit else [])]
    parts = [name.split(".") for name in imported(path)]
    inside = {part[len(prefix)] for part in parts if part[:-1][: len(prefix)] == prefix}
    known = ROOM if unit else LEVEL
    return {used if used in known else "__init__" for used in inside - {"__version__"}}


def dotted(node: ast.AST) -> list[str]:
    """The names of `a.b.c`; none for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [*inside, node.attr] if (inside := dotted(node.value)) else []
    return []


def private_names(code: str) -> set[str]:
    """What a piece of code uses of the package that is not public."""
    tree = ast.parse(code)
    names = bindings(tree)
    known = {bound: name for bound, name in names if bound}
    used = {name for _, name in names}
    for chain in map(dotted, ast.walk(tree)):
        if chain and chain[0] in known:
            used.add(".".join([known[chain[0]], *chain[1:]]))
    return {name for name in used if name.split(".")[0] == "fenchel" and _is_private(name)}


def _is_private(name: str) -> bool:
    parts = name.split(".")[1:]
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return hidden or parts[:1] == ["ops"]


def identify(path: Path) -> str:
    return str(path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT))


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_every_file_has_a_layer(path: Path) -> None:
    assert unit_of(path) in LEVEL


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_imports_point_down(path: Path) -> None:
    unit = unit_of(path)
    for used in units_used(path) - {unit}:
        assert LEVEL[used] < LEVEL[unit], f"{unit} must not import {used}"


@pytest.mark.parametrize("path", SEQ2SEQ, ids=identify)
def test_imports_point_down_inside_seq2seq(path: Path) -> None:
    room = unit_of(path, PACKAGE / "seq2seq")
    for used in units_used(path, "seq2seq") - {room}:
        assert ROOM[used] < ROOM[room], f"seq2seq.{room} must not import seq2seq.{used}"


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_rare_dependencies_stay_home(path: Path) -> None:
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or unit_of(path) in homes, f"{name} belongs in {homes}"


@pytest.mark.parametrize("path", OUTSIDE, ids=identify)
def test_benchmarks_and_experiments_use_public_names(path: Path) -> None:
    assert not private_names(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_examples_of_pages_use_public_names(page: Path) -> None:
    examples = doctest.DocTestParser().get_examples(code_of(page))
    assert not private_names("".join(example.source for example in examples))


def test_the_parser_sees_relative_imports() -> None:
    assert "mappings" in units_used(PACKAGE / "losses" / "_linear.py")
    assert "_checks" in units_used(PACKAGE / "mappings" / "_base.py")
    functions = imported(PACKAGE / "ops" / "entmax" / "__init__.py")
    assert "fenchel.ops._native.NativeFunction" in functions
    assert {"config", "data"} <= units_used(PACKAGE / "seq2seq/models/_model.py", "seq2seq")


@pytest.mark.parametrize(
    ("code", "private"),
    [
        ("import fenchel; fenchel.entmax; fenchel.__version__", set()),
        ("from fenchel.seq2seq import load", set()),
        ("import fenchel.ops.entmax", {"fenchel.ops.entmax"}),
        ("from fenchel import ops", {"fenchel.ops"}),
        ("from fenchel.plots import _style as s; s.GREY", {"fenchel.plots._style"}),
        ("def f():\n  from fenchel.latent._supports import g", {"fenchel.latent._supports.g"}),
        ("import fenchel as f; f.nn._x", {"fenchel.nn._x"}),
        ("from fenchel import plots; plots._style.tidy", {"fenchel.plots._style"}),
    ],
)
def test_the_parser_sees_private_names(code: str, private: set[str]) -> None:
    found = private_names(code)
    assert private <= found
    assert bool(found) == bool(private)


def test_the_design_page_shows_every_folder() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tree = page.split("## The tree")[1].split("\n## ")[0]
    for folder in {path.parent for path in FILES} - {PACKAGE}:
        assert f"{folder.name}/" in tree


def test_test_files_have_names_of_their_own() -> None:
    """Of two modules with one name in different folders, only one is found."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py")]
    assert len(names) == len(set(names))
