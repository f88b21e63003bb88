"""What Sphinx reads: formulas lose nothing, and every public name has its signature and example."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import bibliography
import formulas
import pytest
import reference
import stage

pytest.importorskip("sklearn")  # the reference imports every package

DOCS = Path(__file__).parents[1] / "docs"
BLOCKS = [
    pytest.param(match[1], id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, match in enumerate(stage.BLOCK.finditer(page.read_text(encoding="utf-8")))
    if formulas.is_formula(match[1])
]
NAMES = reference.public_names(DOCS / "api.md")


def letters(text: str) -> Counter[str]:
    """The signs of a formula, without those that only say where others stand."""
    tables = (formulas.SUBSCRIPTS, formulas.SUPERSCRIPTS, formulas.LARGE)
    signs = {key: value for table in tables for key, value in table.items()}
    signs |= {"½": "12", "¼": "14", "ŷ": "y", "√": ""}
    plain = "".join(signs.get(sign, sign) for sign in text)
    return Counter(re.sub(r"[\s()_^{}]", "", plain))


def tree(formula: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{formulas.mathml(formula).replace('&nbsp;', ' ')}</div>")


def test_the_pages_have_formulas() -> None:
    assert len(BLOCKS) > 30


@pytest.mark.parametrize("block", BLOCKS)
def test_a_formula_loses_nothing(block: str) -> None:
    assert letters("".join(tree(block).itertext())) == letters(block)


@pytest.mark.parametrize(
    ("formula", "path"),
    [
        ("yᵢ = [θᵢ − τ]₊^(1/ε)", ".//msubsup"),
        ("dτ = (1ᵀH⁻¹v)", ".//msup"),
        ("Σ_{i<j} max(yᵢ, yⱼ)", ".//munder"),
        ("⟨q, k⟩ / √D", ".//msqrt"),
        ("½‖y‖²", ".//mfrac"),
    ],
)
def test_formulas_have_their_parts(formula: str, path: str) -> None:
    assert tree(formula).find(path) is not None


def test_a_nested_exponent_ends_with_its_own_parenthesis() -> None:
    exponent = tree("x^(1/(α−1)) + 1").find(".//msup")
    assert exponent is not None
    assert "".join(exponent.itertext()) == "x1/(α−1)"


def test_words_are_text_and_letters_are_symbols() -> None:
    found = tree("GW is a mean of dy")
    assert [text.text and text.text.strip() for text in found.iter("mtext")] == [
        "is",
        "a",
        "mean",
        "of",
    ]
    assert [symbol.text for symbol in found.iter("mi")] == ["G", "W", "d", "y"]
    assert "".join(found.itertext()) == "GW is a mean of dy"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_Ω(θ) and y_k^ε", "max<sub>Ω</sub>(θ) and y<sub>k</sub><sup>ε</sup>"),
        ("e^(−εL), `a_b`, n_samples", "e<sup>−εL</sup>, `a_b`, n_samples"),
        ("[x](a_b.md) F.cross_entropy", "[x](a_b.md) F.cross_entropy"),
    ],
)
def test_prose_has_scripts(text: str, expected: str) -> None:
    assert formulas.with_scripts(text) == expected


def test_commands_are_not_formulas() -> None:
    assert not formulas.is_formula("    fenchel train config.yaml model.attention=sparsemax")


@pytest.mark.parametrize("package", NAMES)
def test_every_name_has_an_entry(package: str) -> None:
    pages = dict(reference.pages({package: NAMES[package]}))
    for name in NAMES[package]:
        assert re.search(rf"\{{py:(function|class|exception)}} {package}\.{name}\b", pages[package])


def test_an_entry_has_signature_formula_arguments_example_and_papers() -> None:
    text = dict(reference.pages({"fenchel": ["entmax", "General"]}))["fenchel"]
    assert "fenchel.entmax(scores, dim=-1, *, alpha=1.5, gamma=1.0)" in text
    assert "<math" in text
    assert "- `alpha`: α > 0, a number or a tensor" in text
    assert "```pycon\n>>> entmax(" in text
    assert "[peters2019sparse](#ref-peters2019sparse)" in text


def test_the_bibliography_has_every_key_and_no_braces() -> None:
    bib = (DOCS / "references.bib").read_text(encoding="utf-8")
    page = bibliography.page(bib)
    assert len(re.findall(r"^\(ref-\w+\)=$", page, re.MULTILINE)) == bib.count("\n@") + 1
    assert "André F. T." in page
    assert not re.search(r"[{}\\]", page)


def test_every_page_is_in_the_navigation() -> None:
    listed = {name for names in stage.NAVIGATION.values() for name in names}
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        assert name in listed | {"index", "gallery/README"}


def test_every_page_of_results_has_a_title() -> None:
    pages = sorted((DOCS.parent / "experiments").rglob("*.md"))
    pages += sorted((DOCS.parent / "benchmarks").rglob("*.md"))
    assert len(pages) > 20
    for page in pages:
        assert page.read_text(encoding="utf-8").startswith("# "), page


def test_a_link_to_a_script_of_the_gallery_leads_to_its_page(tmp_path: Path) -> None:
    site = stage.Site(tmp_path)
    page = DOCS / "guides" / "learn-alpha.md"
    text = site._page(page, "[heads](../gallery/learned_alpha.py), [code](../site/stage.py)")
    assert text == "[heads](../gallery/learned_alpha.md), code"
