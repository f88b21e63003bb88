"""The bibliography as a page, one entry for each key."""

from __future__ import annotations

import re
import unicodedata

ENTRY = re.compile(r"@\w+\{(\w+),(.*?)\n\}", re.DOTALL)
FIELD = re.compile(r"(\w+)\s*=\s*\{(.*)\},?\s*$", re.MULTILINE)
ACCENTS = {
    "'": "\u0301",
    "`": "\u0300",
    '"': "\u0308",
    "^": "\u0302",
    "~": "\u0303",
    "v": "\u030c",
    "c": "\u0327",
}
ACCENT = re.compile(r"\\(['`\"^~vc])\s*\{?(\w)\}?")


def _plain(value: str) -> str:
    """A field without braces, its accents as letters."""
    value = ACCENT.sub(lambda match: match[2] + ACCENTS[match[1]], value)
    return (
        unicodedata.normalize("NFC", re.sub(r"[{}]", "", value))
        .replace("\\L", "Ł")
        .replace("--", "–")
    )


def page(text: str) -> str:
    """The page of a BibTeX file, the newest work last."""
    rows = []
    for key, body in ENTRY.findall(text):
        found = {name.lower(): _plain(value) for name, value in FIELD.findall(body)}
        where = found.get("booktitle") or found.get("journal") or found.get("publisher") or ""
        authors = found.get("author", "").replace(" and ", "; ")
        place = f" *{where}*," if where else ""
        year = found.get("year", "")
        rows.append(
            (year, f"(ref-{key})=\n`{key}` — {authors}. **{found['title']}.**{place} {year}.")
        )
    return "# The papers\n\n" + "\n\n".join(row for _, row in sorted(rows)) + "\n"
