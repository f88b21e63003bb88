"""The examples of README, of docs and of every docstring run, and print what they say."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import fenchel
from fenchel import mappings, structures

ROOT = Path(__file__).parents[1]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(fenchel.__path__, "fenchel.")
    if not module.name.endswith("__main__") and "fenchel_native" not in module.name
)


def run(test: doctest.DocTest) -> None:
    """Runs the examples and fails with doctest's own report."""
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    if report:
        pytest.fail("".join(report), pytrace=False)


def skip_without_extras(text: str) -> None:
    """Skips what needs the package of an extra, where it is missing."""
    for package in ("sklearn", "transformers"):
        if f"integrations.{package}" in text:
            pytest.importorskip(package)


def code_of(page: Path) -> str:
    """The page's Python blocks, on the lines where they stand; prose becomes blank lines."""
    inside, lines = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line.startswith("```python") if fence else inside
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_examples(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_extras(code_of(page))
    for base in (mappings._base, structures._base):  # a page may add a mapping or a structure
        monkeypatch.setattr(base.REGISTRY, "classes", dict(base.REGISTRY.classes))
    test = doctest.DocTestParser().get_doctest(code_of(page), {}, page.name, str(page), 0)
    run(test)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    skip_without_extras(name)
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder().find(module, name, extraglobs={"torch": torch}):
        if test.examples:
            run(test)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r' src(?:set)?="(.+?)"', text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.split("#")[0]).exists(), target


def test_references_are_in_the_bibliography() -> None:
    keys = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text("utf-8")))
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        text = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
        for line in re.findall(r"References: ([\w, ]+)\.", text):
            assert set(line.split(", ")) <= keys, f"{name}: {line}"
