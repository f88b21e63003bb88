"""The page of an explanation, in a real browser: what it shows, and that keys lead through it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from browser import Browser
from fenchel.seq2seq import Explanation, Hypothesis, Node, Position, Result
from fenchel.seq2seq.explanations import _page
from fenchel.seq2seq.explanations._explain import _tree
from fenchel.seq2seq.explanations._page import reference_verdict, verdict

NASTY = '<img src=x onerror="document.title=1">&\'"'


def example(
    outputs: dict[str, float], source: str = "draw", heads: int = 1, **flags: bool
) -> Explanation:
    """An explanation of outputs with these probabilities, chosen by their last letters."""
    hypotheses, targets, attention = [], [], []
    for text, p in outputs.items():
        steps = len(text) + 1
        weights = torch.zeros(steps, heads, len(source) + 2)
        for step in range(steps):
            weights[step, :, min(step, len(source) - 1) + 2] = 1
        weights[-1, 0] = 0
        weights[-1, 0, :2] = torch.tensor([0.25, 0.75])
        chain = (*[1.0] * (steps - 2), p, 1.0)
        tokens = tuple(ord(letter) for letter in text)
        hypotheses.append(Hypothesis(tokens, math.log(p), chain, True, weights))
        targets.append((*text, "end"))
        attention.append(weights)
    result = Result(hypotheses, True, flags.get("complete", True), 0.0, False)
    reference = (
        Position("d", 1.0, (("d", 1.0),)),
        Position("r", 1.0, (("r", 1.0),)),
        Position("x", 0.0, (("a", 0.6), ("o", 0.4))),
        Position("end", 0.2, (("n", 0.8), ("end", 0.2)), 3),
    )
    return Explanation(
        f"{source} V;{NASTY}",
        ("V", NASTY, *source),
        result,
        tuple(outputs),
        tuple(targets),
        _tree(hypotheses, targets, [[] for _ in targets]),
        reference,
        "drx",
        tuple(attention),
    )


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        yield window


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(example({"drawn": 0.7, "drawed": 0.3}).html(), encoding="utf-8")
    return path


def test_the_page_asks_for_nothing_from_elsewhere(page, browser):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(https?:)?//\w|@import|url\(|<link|<script src|<iframe", text)
    browser.open(page)
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.messages() == []


def test_user_text_is_text(page, browser):
    browser.open(page)
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == f"draw V;{NASTY}"
    assert browser.run("return document.title") == f"draw V;{NASTY} – fenchel explain"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 375, 768, 1100])
def test_no_width_scrolls_sideways(page, browser, width, dark):
    browser.open(page, width, dark=dark)
    wide, room = browser.run(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert (wide, room) == (width, width)


def test_long_inputs_and_many_outputs_fit_a_phone(tmp_path, browser):
    outputs = {f"{'un' * k}believable{k % 3}": 1 / 12 for k in range(12)}
    path = tmp_path / "page.html"
    path.write_text(example(outputs, source="unbelievable" * 3).html(), encoding="utf-8")
    browser.open(path, 375)
    assert browser.run("return document.documentElement.scrollWidth") == 375


@pytest.mark.parametrize("width", [360, 1100])
def test_bars_begin_on_one_line(tmp_path, browser, width):
    path = tmp_path / "page.html"
    outputs = {"drawn": 0.5, "drawed": 0.3, "dr": 0.15, "withdrawn": 0.05}
    path.write_text(example(outputs).html(), encoding="utf-8")
    browser.open(path, width)
    lefts = "[...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().left)"
    found = browser.run(f"return {lefts}")
    assert len(found) == 4
    assert max(found) - min(found) < 0.5


def test_a_map_that_scrolls_says_so_until_its_end(tmp_path, browser):
    path = tmp_path / "page.html"
    path.write_text(example({"drawn": 1.0}, source="unbelievable" * 3).html(), encoding="utf-8")
    browser.open(path, 360)
    cue = "getComputedStyle(document.querySelector('.cue')).display"
    assert browser.run(f"return {cue}") == "inline"
    end = "const box = document.querySelector('.scroll'); box.scrollLeft = box.scrollWidth;"
    browser.run(end)
    browser.wait()
    assert browser.run(f"return {cue}") == "none"


def test_numbers_can_be_read_on_a_phone(page, browser):
    browser.open(page, 360)
    sizes = browser.run(
        "return [...document.querySelectorAll('.map:not([hidden]) td.on')].map((cell) => "
        "[parseFloat(getComputedStyle(cell).fontSize), cell.scrollWidth <= cell.clientWidth])"
    )
    assert sizes
    assert all(size >= 11 and fits for size, fits in sizes)


def test_pages_are_bounded_and_the_rest_is_said(tmp_path, browser, monkeypatch):
    explanation = example({"drawn": 0.6, "drew": 0.4})
    assert "too many cells" not in explanation.html()
    monkeypatch.setattr(_page, "MAX_CELLS", 40)  # drawn has 6 × 6
    path = tmp_path / "page.html"
    path.write_text(explanation.html(), encoding="utf-8")
    browser.open(path)
    assert browser.run("return document.querySelectorAll('.map').length") == 1
    assert "too many cells" in browser.run("return document.body.textContent")
    browser.press("Tab", "End")
    assert browser.focused() == "drew: 40.0%"
    assert browser.run("return document.querySelectorAll('.map:not([hidden])').length") == 1
    assert browser.messages() == []


def test_dark_and_light_differ_and_can_be_read(page, browser):
    colours = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        colours.append(
            browser.run(
                "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
            )
        )
    assert colours[0] != colours[1]
    for ink, paper in colours:
        assert contrast(ink, paper) > 7


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_arrows_lead_through_the_tree_and_choose_the_attention(page, browser):
    browser.open(page)
    shown = "return [...document.querySelectorAll('.map:not([hidden])')].map(m => m.dataset.map)"
    assert browser.run(shown) == ["0"]
    browser.press("Tab")
    assert browser.focused() == "d r a w, 100%"
    browser.press("ArrowRight")
    assert browser.focused() == "drawn: 70.0%"
    browser.press("ArrowDown")
    assert browser.focused() == "drawed: 30.0%"
    assert browser.run(shown) == ["1"]
    assert browser.run("return document.getElementById('status').textContent") == "drawed: 30.0%"
    chosen = "return document.querySelector('[aria-selected=true]').getAttribute('aria-label')"
    assert browser.run(chosen) == "drawed: 30.0%"
    browser.press("ArrowLeft")
    assert browser.focused() == "d r a w, 100%"
    browser.press("End")
    assert browser.focused() == "drawed: 30.0%"
    browser.press("Home")
    assert browser.focused() == "d r a w, 100%"


def test_focus_can_be_seen(page, browser):
    browser.open(page)
    for stop in range(3):
        browser.press("Tab")
        mark = browser.run(
            "const e = document.activeElement; const t = e.querySelector(':scope > .item') || e;"
            "const s = getComputedStyle(t); return [s.outlineStyle, s.outlineWidth]"
        )
        assert mark == ["solid", "3px"], stop


def test_arrows_lead_through_the_attention(page, browser):
    browser.open(page)
    browser.press("Tab", "Tab")
    assert browser.focused() == "d looks at V: 0%"
    browser.press("ArrowRight", "ArrowRight")
    assert browser.focused() == "d looks at d: 100%"
    browser.press("ArrowDown", "End")
    assert browser.focused() == "r looks at w: 0%"
    browser.press("ArrowRight")
    assert browser.focused() == "r looks at w: 0%"


def test_exact_zeros_are_blank(page, browser):
    browser.open(page)
    cells = browser.run(
        "return [...document.querySelectorAll('.map:not([hidden]) tbody td')]"
        ".map(c => [c.getAttribute('aria-label'), c.textContent, c.classList.contains('on')])"
    )
    assert len(cells) == 6 * 6
    for label, text, on in cells:
        zero = label.endswith(": 0%")
        assert on is not zero
        assert bool(text) is not zero


@pytest.mark.parametrize("heads", [1, 2])
def test_a_tiny_weight_is_not_blank(tmp_path, browser, heads):
    explanation = example({"drawn": 1.0}, heads=heads)
    for tiny, column in ((1e-45, 2), (1e-9, 3), (4e-5, 4)):
        explanation.attention[0][-1, 0, column] = tiny
    path = tmp_path / "page.html"
    path.write_text(explanation.html(), encoding="utf-8")
    browser.open(path)
    cells = (
        "return [...document.querySelectorAll('.map tbody tr:last-child td')].map(c => "
        "[c.textContent, c.classList.contains('on'), c.getAttribute('aria-label').split(': ')[1]])"
    )
    tiny = ["<1", True, "<0.1%"]
    assert browser.run(cells)[2:5] == [tiny, tiny, tiny]
    if heads > 1:
        choose = (
            "const h = document.getElementById('head'); h.value = arguments[0];"
            "h.dispatchEvent(new Event('change'))"
        )
        browser.run(choose, "0")
        assert browser.run(cells)[2:5] == [tiny, tiny, tiny]
        browser.run(choose, "1")
        assert browser.run(cells)[2:5] == [["", False, "0%"]] * 3


def test_unknown_tokens_are_said_beside_the_certificate(tmp_path, browser):
    explanation = replace(example({"drawn": 1.0}), unknown=("é", "PTS"))
    path = tmp_path / "page.html"
    path.write_text(explanation.html(), encoding="utf-8")
    browser.open(path)
    said = browser.run("return document.querySelector('header').textContent")
    assert "The model does not know 2 of the 6 tokens of the input: é, PTS." in said
    assert "⚠ 2 of 6 tokens unknown" in said
    sizes = "return ['.verdict.alarm', '.verdict:not(.alarm)', '.badge.alarm', '.badge.yes'].map("
    sizes += "s => getComputedStyle(document.querySelector(s)).fontSize)"
    alarm, verdict_size, badge, certificate = browser.run(sizes)
    assert (alarm, badge) == (verdict_size, certificate)
    for dark in (False, True):
        browser.open(path, dark=dark)
        ink = browser.run("return getComputedStyle(document.querySelector('.alarm')).color")
        paper = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert contrast(ink, paper) > 4.5
    assert "not met" not in example({"drawn": 1.0}).html()


def test_a_text_of_several_paths_has_the_probability_of_all(tmp_path, browser):
    one = Hypothesis((1, 2), math.log(0.25), (0.25, 1.0, 1.0))
    two = Hypothesis((3,), math.log(0.5), (0.5, 1.0))
    text = Hypothesis.of([two, one])
    names = [("marched", "end")], [[("mar", "ched", "end")]]
    explanation = Explanation(
        "march",
        ("march",),
        Result([text], True, False, 0.25, False),
        ("marched",),
        tuple(names[0]),
        _tree([text], *names),
        (Position("marched", 0.5, (("marched", 0.5),)), Position("end", 1.0, (("end", 1.0),))),
        "marched",
        (torch.ones(2, 1, 1),),
        is_unambiguous=False,
    )
    path = tmp_path / "page.html"
    path.write_text(explanation.html(), encoding="utf-8")
    browser.open(path)
    leaves = "return [...document.querySelectorAll('[data-map][role=treeitem]')]"
    labels = browser.run(f"{leaves}.map(e => e.getAttribute('aria-label'))")
    assert labels == [
        "marched: 75.0%, 50.0% of it by this path",
        "marched: 75.0%, 25.0% of it by this path",
    ]
    assert browser.run(f"{leaves}.map(e => e.getAttribute('aria-selected'))") == ["true", "true"]
    body = browser.run("return document.body.textContent")
    assert "1 output found; all others together have at most 25.0%" in body
    assert "The tokens of the reference together have 50.0%; the text has 75.0%." in body
    assert "others: 25.0%" in body


def test_the_probability_of_the_reference():
    found = example({"drawn": 0.7, "drawed": 0.3})
    said = "The reference as a whole has 0%, impossible at token 3, x"
    assert reference_verdict(found) == f"{said}."
    assert reference_verdict(replace(found, is_unambiguous=False)).endswith(
        "0%, impossible at token 3, x."
    )
    long = (Position("d", 1e-200, ()),) * 3
    assert reference_verdict(replace(found, reference=long)).endswith("has <0.1%.")


def test_arrows_lead_through_the_reference(page, browser):
    browser.open(page)
    browser.press("Tab", "Tab", "Tab")
    assert browser.focused() == "position 1, d: d 100%"
    browser.press("ArrowRight", "ArrowRight")
    assert browser.focused() == "position 3, x: a 60.0%, o 40.0%"
    never = browser.run("return document.querySelector('.never').textContent")
    assert never == "x0%"
    assert "and 3 more" in browser.run("return document.querySelector('.forced').textContent")
    joined = browser.run("return document.querySelectorAll('.joined').length")
    assert joined == 1


def test_one_of_several_heads_can_be_chosen(tmp_path, browser):
    path = tmp_path / "page.html"
    path.write_text(example({"drawn": 1.0}, heads=2).html(), encoding="utf-8")
    browser.open(path)
    last = "[...document.querySelectorAll('.map tbody tr:last-child td')]"
    values = f"return {last}.map(c => c.textContent)"
    assert browser.run(values) == ["12", "38", "", "", "", "50"]
    choose = (
        "const h = document.getElementById('head'); h.value = arguments[0];"
        "h.dispatchEvent(new Event('change'))"
    )
    browser.run(choose, "0")
    assert browser.run(values) == ["25", "75", "", "", "", ""]
    browser.run(choose, "1")
    assert browser.run(values) == ["", "", "", "", "", "100"]


def test_every_part_has_a_role_and_a_name(page, browser):
    browser.open(page)
    for role in ("tree", "treeitem", "grid", "listbox", "option", "status"):
        assert browser.run(
            "return document.querySelectorAll(`[role=${arguments[0]}]`).length", role
        )
    unnamed = browser.run(
        "return [...document.querySelectorAll('[tabindex]')]"
        ".filter(e => !e.getAttribute('aria-label')).length"
    )
    assert unnamed == 0
    assert browser.run("return document.documentElement.lang") == "en"


def test_the_verdict_says_what_is_certified():
    many = {"drawn": 0.7, "drawed": 0.3}
    assert verdict(example({"drawn": 1.0})).startswith("The model is certain: every other output")
    assert verdict(example(many)).startswith("The model considers exactly 2 outputs; every other")
    some = {"drawn": 0.6, "drawed": 0.3}
    assert verdict(example(some, complete=False)) == (
        "2 outputs found; all others together have 10.0%, and none of them is more probable than "
        "the first."
    )


def test_what_is_missing_is_in_the_tree():
    tree = example({"drawn": 0.6, "drawed": 0.3}, complete=False).tree
    (root,) = tree.children
    assert root.tokens == tuple("draw")
    assert [child.tokens for child in root.children] == [("n", "end"), ("e", "d", "end")]
    assert root.rest == pytest.approx(0.1)
    assert Node((), 1.0, 1.0, (Node(("a",), 1.0, 1.0, hypothesis=0),)).rest == 0
