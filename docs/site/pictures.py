"""The gallery: runs each script, and makes a page of its picture, its reason and its code."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from fenchel import plots

THEMES = {"light": False, "dark": True}
INTRODUCTION = """# Gallery

Each picture is a short script of public names that runs in seconds on one core. Click one for the
reason to care and the code. `pip install '.[plots,seq2seq,sklearn]'`
in a clone installs what they need; most need `plots` alone.
"""


def pages(scripts: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Draws the pictures into a folder; the name and the text of each page."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = (scripts / "README.md").read_text(encoding="utf-8")
    paths = [scripts / name for name in re.findall(r"\((\w+\.py)\)", listed)]
    workers = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(mp_context=get_context("spawn"), **workers) as pool:
        list(pool.map(_draw, paths, [folder] * len(paths)))
    cards = []
    for path in paths:
        title, reason, code = _read(path)
        shown = " ".join(
            f"![{title}]({path.stem}-{theme}.svg){{.only-{theme}}}" for theme in THEMES
        )
        cards.append(f"- [{shown} {title}]({path.stem}.md)")
        yield path.stem, f"# {title}\n\n{reason}\n\n{shown}\n\n```python\n{code}\n```\n"
    names = "\n".join(path.stem for path in paths)
    toctree = f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    yield "index", "\n".join([INTRODUCTION, "{.gallery}", *cards, "", toctree])


def _draw(path: Path, folder: Path) -> None:
    for theme, dark in THEMES.items():
        with plots.theme(dark=dark):
            figure = runpy.run_path(str(path))["picture"]()
            figure.savefig(folder / f"{path.stem}-{theme}.svg", metadata={"Date": None})


def _read(path: Path) -> tuple[str, str, str]:
    """The title, the reason and the code of a script."""
    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    title, _, reason = (ast.get_docstring(module) or "").partition("\n\n")
    code = text.split('"""', 2)[2].strip()
    return title.rstrip("."), reason, code
