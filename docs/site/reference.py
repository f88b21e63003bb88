"""The reference: for every name of docs/api.md its signature, its docstring and its members."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from formulas import is_formula, mathml, with_scripts

SECTIONS = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises", "Yields": "Yields"}
LISTS = ("Args", "Raises")
PROBLEM = "ŷ(θ) = argmax_y ⟨θ, y⟩ − γΩ(y)"
ITEM = re.compile(r"^(\*{0,2}[\w, ]+): (.*)$", re.DOTALL)


def public_names(page: Path) -> dict[str, list[str]]:
    """The names that docs/api.md lists, by the package that heads their section."""
    found: dict[str, list[str]] = {}
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        if title := re.match(r"`([\w.]+)`", section):
            module = importlib.import_module(title[1])
            listed = re.findall(r"^\| `(\w+)", section, flags=re.MULTILINE)
            found[title[1]] = [
                name for name in listed if not isinstance(getattr(module, name), ModuleType)
            ]
    return found


def pages(names: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The name and the text of a page for each package."""
    for package, members in names.items():
        module = importlib.import_module(package)
        parts = [f"# `{package}`", _prose(inspect.getdoc(module) or "")]
        for name in members:
            member = getattr(module, name)
            formula = _regularizer(getattr(module, name.capitalize(), None))
            parts += [f"## {name}", _entry(f"{package}.{name}", member, formula)]
        yield package, "\n\n".join(parts) + "\n"


def _regularizer(mapping: Any) -> str:
    """The problem that a mapping solves; its class says its Ω."""
    omega = re.match(r"Ω\(y\) = [^,;:]+?(?=[,;:.]( |$))", inspect.getdoc(mapping) or "")
    return mathml(f"{PROBLEM}\n{omega[0]}") if omega else ""


def _entry(path: str, member: Any, formula: str) -> str:
    """A function or a class as a directive of Sphinx, which its search and links know."""
    doc = _document(inspect.getdoc(member) or "")
    if not inspect.isclass(member):
        first, _, rest = doc.partition("\n\n")
        doc = f"{first}\n\n{formula}\n\n{rest}" if formula else doc
        return _directive("function", f"{path}{_signature(member)}", doc)
    kind = "exception" if issubclass(member, Exception) else "class"
    inner = [_member(member, name, each) for name, each in _own_members(member)]
    signature = "" if kind == "exception" else _signature(member)
    return _directive(kind, path + signature, "\n\n".join([doc, *inner]), fence=6)


def _member(owner: type, name: str, member: Any) -> str:
    doc = _document(inspect.getdoc(member) or "")
    if isinstance(member, property) or not callable(getattr(owner, name)):
        return _directive("attribute", name, doc, fence=5)
    function = inspect.unwrap(getattr(owner, name))
    return _directive("method", f"{name}{_signature(function, bound=True)}", doc, fence=5)


def _own_members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class adds to its bases, with docstrings."""
    inherited = {name for base in owner.__mro__[1:] for name in vars(base)}
    own_fields = {field.name for field in fields(owner)} if is_dataclass(owner) else set()
    for name, member in vars(owner).items():
        plain = inspect.isfunction(member) or isinstance(
            member, (property, classmethod, staticmethod)
        )
        is_new = name[0] != "_" and name not in inherited | own_fields
        if plain and is_new and inspect.getdoc(member):
            yield name, member


def _signature(member: Any, bound: bool = False) -> str:
    try:
        signature = inspect.signature(member)
    except ValueError:
        return "()"
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in signature.parameters.items()
        if not (bound and name in ("self", "cls"))
    ]
    plain = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return re.sub(r"<(?:function|class|object)[^>]*>", "...", str(plain))


def _directive(kind: str, signature: str, body: str, fence: int = 4) -> str:
    ticks = "`" * fence
    return f"{ticks}{{py:{kind}}} {signature}\n{body}\n{ticks}"


def _document(text: str) -> str:
    """A docstring as Markdown."""
    parts = []
    for title, body in _sections(text):
        if title in LISTS:
            parts.append(f"**{SECTIONS[title]}**\n\n{_items(body)}")
        elif title:
            parts.append(f"**{SECTIONS[title]}** {_prose(body)}")
        else:
            parts.append(_prose(body))
    return "\n\n".join(parts)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Titles and bodies; a section ends where its indentation does."""
    title, lines = "", []
    for line in text.splitlines():
        head = re.match(rf"^({'|'.join(SECTIONS)}):$", line)
        ends = title and line.strip() and not line.startswith(" ")
        if head or ends:
            yield title, textwrap.dedent("\n".join(lines)).strip("\n")
            title, lines = (head[1], []) if head else ("", [line])
        else:
            lines.append(line)
    yield title, textwrap.dedent("\n".join(lines)).strip("\n")


def _items(body: str) -> str:
    """Arguments as a list; what continues one is indented."""
    rows = []
    for each in re.split(r"\n(?=\S)", body):
        text = " ".join(line.strip() for line in each.splitlines())
        item = ITEM.match(text)
        if item:
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            rows.append(f"- {names}: {with_scripts(item[2])}")
        else:
            rows.append(f"- {text}")
    return "\n".join(rows)


def _prose(text: str) -> str:
    """Paragraphs, formulas, examples and references."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith(">>> "):
            parts.append(f"```pycon\n{block}\n```")
        elif block.startswith("    ") and is_formula(block):
            parts.append(mathml(block))
        elif block.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif found := re.fullmatch(r"References: ([\w, ]+)\.", block.strip()):
            links = (f"[{key}](#ref-{key})" for key in found[1].split(", "))
            parts.append(f"References: {', '.join(links)}.")
        else:
            parts.append(with_scripts(block))
    return "\n\n".join(parts)
