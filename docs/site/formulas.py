"""Formulas as the docs and docstrings write them, in Unicode, become MathML that browsers draw."""

from __future__ import annotations

import re
from html import escape

MATHEMATICS = re.compile(r"[Α-Ωα-ωŷ⟨⟩∂∇½‖₊ᵀ∘≤∝ℓ∏√·]")
"""A block of code with one of these is a formula; commands and trees of files have none."""
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖₘₙₜ", "0123456789+−ijkmnt", strict=True))
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᵏⁿ", "0123456789+−⊤kn", strict=True))
FRACTIONS = {"½": ("1", "2"), "¼": ("1", "4")}
LARGE = {"Σ": "∑", "Π": "∏"}
FENCES = "()[]{}|‖⟨⟩"
FUNCTIONS = {"log", "exp", "max", "min", "argmax", "tanh", "cap", "softmax", "sparsemax"}
THIN = '<mspace width=".17em"></mspace>'
SCRIPT = re.compile(
    r"(?P<kept>^ {4}.*$|`+[^`]+`+|\]\([^)]*\)|<[^>]*>|https?://\S+)"
    r"|(?:(?<![A-Za-z0-9_])(?P<base>max(?=_Ω)|[A-Za-z0-9Α-Ωα-ωℓ])|(?<=[)\]}‖₊⁻¹>ᵢⱼₖ]))(?P<sign>[_^])"
    r"(?:\((?P<group>(?:[^()]|\([^()]*\))+)\)|\{(?P<braces>[^}]+)\}|(?P<name>max|[A-Za-zΑ-Ωα-ω0-9]{1,2})(?![A-Za-z0-9_]))",
    re.MULTILINE,
)
TOKEN = re.compile(r"\s+|\d+(?:\.\d+)?|[A-Za-z]+|.")


def is_formula(block: str) -> bool:
    """Whether an indented block is mathematics."""
    return bool(MATHEMATICS.search(block)) and "  #" not in block


def mathml(block: str) -> str:
    """A formula as an element of HTML: lines below each other, parts of a line where they fit."""
    lines = [line.strip() for line in block.strip().splitlines()]
    sides = [re.split(r"\s+(=)\s+", line, maxsplit=1) for line in lines]
    if len(lines) > 1 and all(len(each) == 3 for each in sides):
        return _frame([_table([[_row(cell) for cell in each] for each in sides])])
    return "".join(
        _frame([_math(_row(part)) for part in re.split(r"\s{2,}", line)]) for line in lines
    )


def with_scripts(text: str) -> str:
    """Prose with what stands behind _ and ^ lowered and raised; code and links stay."""
    before = ""
    while before != text:  # y_k^ε takes two rounds
        before, text = text, SCRIPT.sub(_script, text)
    return text


def _script(match: re.Match[str]) -> str:
    if match["kept"]:
        return match[0]
    inside = match["group"] or match["braces"] or match["name"]
    tag = "sub" if match["sign"] == "_" else "sup"
    return f"{match['base'] or ''}<{tag}>{inside}</{tag}>"


def _frame(parts: list[str]) -> str:
    return f'<div class="formula">{"".join(parts)}</div>'


def _math(body: str) -> str:
    return f'<math display="block">{body}</math>'


def _table(rows: list[list[str]]) -> str:
    cells = ("".join(f"<mtd>{cell}</mtd>" for cell in row) for row in rows)
    body = "".join(f"<mtr>{row}</mtr>" for row in cells)
    return _math(f'<mtable displaystyle="true">{body}</mtable>')


def _row(text: str) -> str:
    return f"<mrow>{''.join(_Reader(text).read())}</mrow>"


def _is_word(token: str) -> bool:
    """Whether letters are a word of English, and not a product or a differential."""
    is_short = len(token) == 2 and token.islower() and token[0] != "d"
    return token.isascii() and token.isalpha() and (len(token) > 2 or is_short)


class _Reader:
    """Reads a line from left to right; `at` is the next token."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(text)
        self.at = 0

    def read(self, end: str = "") -> list[str]:
        """The elements up to a closing token, or to the end of the line."""
        found: list[str] = []
        depth = 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            depth += (token in "([{") - (token in ")]}")
            if token == end and depth < 0:
                break
            if token.isspace():
                self.at += 1
                if len(token) > 2:
                    found.append('<mspace width="2em"></mspace>')
            else:
                found.append(self._scripts(self._atom(), token in LARGE))
        self.at += 1
        return found

    def _atom(self) -> str:
        token = self.tokens[self.at]
        self.at += 1
        if token in LARGE:
            return f'<mo movablelimits="false">{LARGE[token]}</mo>'
        if token in FRACTIONS:
            return "<mfrac>{}{}</mfrac>".format(*(f"<mn>{n}</mn>" for n in FRACTIONS[token]))
        if token == "√":
            return f"<msqrt>{self._atom()}</msqrt>"
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isascii() and token.isalpha():
            return self._word(token)
        if token == "ŷ":
            return '<mover accent="true"><mi>y</mi><mo stretchy="false">^</mo></mover>'
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in FENCES:
            return f'<mo stretchy="false" lspace="0" rspace="0">{escape(token)}</mo>'
        if token in ".,;:":
            return f'<mo separator="true" lspace="0">{token}</mo>'
        return f"<mo>{escape(token)}</mo>"

    def _word(self, token: str) -> str:
        """A function, a word of English, or a product of letters."""
        if token in FUNCTIONS:
            before, behind = (THIN if self._is_space(place) else "" for place in (-2, 0))
            return f"{before}<mi>{token}</mi>{behind}"
        if _is_word(token) or (token == "a" and self._is_between_words()):
            last = self._token(-3)
            follows_word = last == "a" or (_is_word(last) and last not in FUNCTIONS)
            before = self._is_space(-2) and not follows_word
            behind = "&nbsp;" if self._is_space(0) else ""
            return f"<mtext>{'&nbsp;' if before else ''}{token}{behind}</mtext>"
        return "".join(f"<mi>{letter}</mi>" for letter in token)

    def _token(self, offset: int) -> str:
        """The token so many places from the next one; empty beyond the line."""
        place = self.at + offset
        return self.tokens[place] if 0 <= place < len(self.tokens) else ""

    def _is_space(self, offset: int) -> bool:
        return self._token(offset).isspace()

    def _is_between_words(self) -> bool:
        return _is_word(self._token(-3)) and _is_word(self._token(1))

    def _scripts(self, base: str, large: bool) -> str:
        lower, upper = "", ""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token in SUBSCRIPTS:
                lower += self._run(SUBSCRIPTS)
            elif token in SUPERSCRIPTS:
                upper += self._run(SUPERSCRIPTS)
            elif token == "_":
                lower += self._group()
            elif token == "^":
                upper += self._group()
            else:
                break
        before, tag, last = base.rpartition("<mi>")  # of a product, the last letter has the scripts
        if tag and not base.startswith("<mover"):
            return before + self._attach(tag + last, lower, upper, large)
        return self._attach(base, lower, upper, large)

    @staticmethod
    def _attach(base: str, lower: str, upper: str, large: bool) -> str:
        lower, upper = (f"<mrow>{part}</mrow>" if part else "" for part in (lower, upper))
        if lower and upper:
            return f"<msubsup>{base}{lower}{upper}</msubsup>"
        if lower:
            tag = "munder" if large else "msub"
            return f"<{tag}>{base}{lower}</{tag}>"
        return f"<msup>{base}{upper}</msup>" if upper else base

    def _run(self, table: dict[str, str]) -> str:
        signs = ""
        while self.at < len(self.tokens) and self.tokens[self.at] in table:
            signs += table[self.tokens[self.at]]
            self.at += 1
        return "".join(_Reader(signs).read())

    def _group(self) -> str:
        """What stands behind _ or ^: an atom, or all between braces or parentheses."""
        self.at += 1
        closing = {"(": ")", "{": "}"}.get(self.tokens[self.at])
        if closing is None:
            return self._atom()
        self.at += 1
        return "".join(self.read(closing))
