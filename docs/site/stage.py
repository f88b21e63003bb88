"""Writes what Sphinx reads: `python docs/site/stage.py FOLDER`.

The pages of docs/ stay plain Markdown. Here formulas become MathML, links to other files of the
repository lead to pages of the site, and the reference, the gallery and the bibliography are
generated.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import bibliography
import pictures
import reference
from formulas import is_formula, mathml, with_scripts

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAVIGATION = {
    "": ["start", "choose", "gallery/index"],
    "What you want to do": [
        "guides/from-softmax",
        "guides/learn-alpha",
        "guides/sparse-attention",
        "guides/long-context",
        "guides/large-vocabularies",
        "guides/parsing",
        "guides/alignment",
        "guides/factor-graphs",
        "guides/latent-variables",
        "guides/seq2seq",
        "guides/text-tasks",
        "guides/predict-and-explain",
        "guides/serving",
        "guides/scikit-learn",
        "guides/gpu",
        "guides/export",
        "guides/troubleshooting",
    ],
    "Coming from": ["guides/from-entmax", "guides/from-torch-struct", "guides/from-lp-sparsemap"],
    "The mathematics": [
        "concepts/mappings",
        "concepts/losses",
        "concepts/attention",
        "concepts/structures",
        "concepts/sparsemap",
        "concepts/factor-graphs",
        "concepts/latent",
        "concepts/search",
        "references",
    ],
    "The library": ["api", "guarantees", "evidence", "design"],
    "The project": ["project/CONTRIBUTING", "project/CHANGELOG"],
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
ROW = re.compile(r"^\| `(\w+)([^`]*)`", re.MULTILINE)
BLOCK = re.compile(r"(?:^|(?<=\n\n))((?: {4}.*(?:\n|$))+)")


class Site:
    """The pages of the site; `folder` is what Sphinx reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting = sorted(DOCS.rglob("*.md"))
        self.known = set(self.waiting)

    def place(self, path: Path) -> Path:
        """Where a file of the repository is on the site."""
        if path == ROOT / "README.md":
            return self.folder / "index.md"
        if path == DOCS / "gallery" / "README.md":
            return self.folder / "gallery" / "index.md"
        if path == DOCS / "references.bib":
            return self.folder / "references.md"
        if path.parent == DOCS / "gallery" and path.suffix == ".py":
            return self.folder / "gallery" / f"{path.stem}.md"
        is_inside = path.is_relative_to(DOCS)
        return self.folder / (
            path.relative_to(DOCS) if is_inside else Path("project", path.relative_to(ROOT))
        )

    def write(self) -> None:
        """Writes all pages."""
        shutil.rmtree(self.folder, ignore_errors=True)
        names = reference.public_names(DOCS / "api.md")
        while self.waiting:
            page = self.waiting.pop()
            text = self._page(page, page.read_text(encoding="utf-8"))
            if page == DOCS / "api.md":
                text = _linked_names(text, names) + _toctree([f"api/{name}" for name in names])
            if page == DOCS / "index.md":
                text += "\n".join(_navigation())
            listed = self.place(page).relative_to(self.folder).with_suffix("").as_posix()
            if listed != "index" and not any(listed in pages for pages in NAVIGATION.values()):
                text = f"---\norphan: true\n---\n\n{text}"
            self._save(self.place(page), text)
        for name, text in reference.pages(names):
            self._save(self.folder / "api" / f"{name}.md", text)
        for name, text in pictures.pages(DOCS / "gallery", self.folder / "gallery"):
            self._save(self.folder / "gallery" / f"{name}.md", text)
        bib = (DOCS / "references.bib").read_text(encoding="utf-8")
        self._save(self.folder / "references.md", bibliography.page(bib))

    def _save(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _page(self, page: Path, text: str) -> str:
        """A page with its formulas and links as the site has them; examples stay as they are."""
        parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
        for index in range(0, len(parts), 2):
            prose = LINK.sub(lambda match: self._link(page, match), parts[index])
            parts[index] = BLOCK.sub(_block, with_scripts(prose)).replace(
                "<!-- cards -->", "{.cards}"
            )
        for index in range(1, len(parts), 2):
            parts[index] = re.sub(r"^```python\n(?=>>>)", "```pycon\n", parts[index])
        return "".join(parts)

    def _link(self, page: Path, match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or "://" in target:
            return match[0]
        path = (page.parent / target).resolve()
        if image:
            return self._image(page, path, text)
        is_script = path.suffix == ".py" and path.parent == DOCS / "gallery"
        if path.suffix not in (".md", ".bib") and not is_script:
            return text
        if path not in self.known and path.suffix == ".md" and path != ROOT / "README.md":
            self.known.add(path)
            self.waiting.append(path)
        return f"[{text}]({self._relative(page, self.place(path))}{anchor})"

    def _image(self, page: Path, path: Path, text: str) -> str:
        """A picture, and its variant for dark pages where there is one."""
        dark = path.with_name(f"{path.stem}-dark{path.suffix}")
        shown = (
            [(path, ".only-light"), (dark, ".only-dark")] if dark.exists() else [(path, ".shown")]
        )
        for each, _ in shown:
            place = self.place(each)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, place)
        return " ".join(
            f"![{text}]({self._relative(page, self.place(each))}){{{kind}}}" for each, kind in shown
        )

    def _relative(self, page: Path, place: Path) -> str:
        return os.path.relpath(place, self.place(page).parent)


def _block(match: re.Match[str]) -> str:
    block = match[1]
    return f"{mathml(block)}\n" if is_formula(block) else block


def _linked_names(text: str, names: dict[str, list[str]]) -> str:
    """The tables of docs/api.md, each name a link to its entry."""
    sections = text.split("\n## ")
    for index, section in enumerate(sections):
        title = re.match(r"`([\w.]+)`", section)
        if title and title[1] in names:
            sections[index] = ROW.sub(_linker(title[1], names[title[1]]), section)
    return "\n## ".join(sections)


def _linker(package: str, names: list[str]) -> Callable[[re.Match[str]], str]:
    def link(match: re.Match[str]) -> str:
        name, arguments = match[1], match[2]
        return f"| {{py:obj}}`{name}{arguments} <{package}.{name}>`" if name in names else match[0]

    return link


def _navigation() -> Iterator[str]:
    for caption, pages in NAVIGATION.items():
        yield _toctree(pages, caption)


def _toctree(pages: list[str], caption: str = "") -> str:
    title = f":caption: {caption}\n" if caption else ""
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n{title}\n{listed}\n```\n"


if __name__ == "__main__":
    Site(Path(sys.argv[1]).resolve()).write()
