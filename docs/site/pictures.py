"""The gallery: runs each script, and makes a page of its picture, its reason and its code."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

from fenchel import plots

THEMES = {"light": False, "dark": True}


def pages(scripts: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Draws the pictures into a folder; the name and the text of each page."""
    folder.mkdir(parents=True, exist_ok=True)
    cards = []
    paths = sorted(scripts.glob("*.py"), key=_order)
    for path in paths:
        title, reason, code = _read(path)
        name = path.stem
        for theme, dark in THEMES.items():
            with plots.theme(dark=dark):
                figure = runpy.run_path(str(path))["picture"]()
                figure.savefig(folder / f"{name}-{theme}.svg", metadata={"Date": None})
        shown = " ".join(f"![{title}]({name}-{theme}.svg){{.only-{theme}}}" for theme in THEMES)
        yield name, f"---\norphan: true\n---\n\n# {title}\n\n{reason}\n\n{shown}\n\n```python\n{code}\n```\n"
        images = "".join(
            f'<img class="only-{theme}" src="../_images/{name}-{theme}.svg" alt="">' for theme in THEMES
        )
        cards.append(f'<a class="card" href="{name}.html">{images}<span>{title}</span></a>')
    grid = "\n".join(cards)
    toctree = "\n".join(path.stem for path in paths)
    yield (
        "index",
        "# Gallery\n\nEach picture is a short script of public names that runs in seconds on one core. "
        f'Click one for the reason to care and the code.\n\n<div class="gallery">\n{grid}\n</div>\n\n'
        f"```{{toctree}}\n:hidden:\n\n{toctree}\n```\n",
    )


def _read(path: Path) -> tuple[str, str, str]:
    """The title, the reason and the code of a script."""
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    title, _, reason = (ast.get_docstring(module) or "").partition("\n\n")
    code = text.split('"""', 2)[2].strip()
    return title.rstrip("."), reason, code


def _order(path: Path) -> str:
    return path.stem
