"""The form of the service in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from served import Served, small_model

from browser import Browser

ATTACK = '"><img src=x onerror="document.title=1"> V'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(small_model()) as running:
        yield running


def submit(browser: Browser, text: str, reference: str = "") -> None:
    """Fills the form, sends it, and waits for the next page."""
    browser.run(
        "window.old = true; const form = document.querySelector('form.ask');"
        "form.text.value = arguments[0]; form.reference.value = arguments[1]; form.requestSubmit()",
        text,
        reference,
    )
    deadline = time.monotonic() + 30
    while browser.run("return window.old || document.readyState !== 'complete'"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_form_explains(browser, served):
    browser.open(f"http://127.0.0.1:{served.port}/")
    browser.messages()
    assert browser.run("return document.activeElement.name") == "text"
    submit(browser, "draw V;PST", "draw")
    assert browser.run("return location.pathname") == "/explain"
    assert browser.run("return document.querySelector('h1').textContent") == "draw V;PST"
    assert browser.run("return document.querySelectorAll('[role=treeitem]').length") > 1
    assert browser.run("return document.querySelector('form.ask').text.value") == "draw V;PST"
    assert browser.run("return document.querySelectorAll('[role=option]').length") > 0
    selected = "return document.querySelectorAll('[role=treeitem][tabindex=\"0\"]').length"
    assert browser.run(selected) == 1  # the page's own script runs
    assert browser.messages() == []


def test_what_is_wrong_is_said_beside_the_form(browser, served):
    browser.open(f"http://127.0.0.1:{served.port}/explain")
    submit(browser, "nonsense")
    said = browser.run("return document.querySelector('[role=alert]').textContent")
    assert "expected a lemma and tags" in said
    assert browser.run("return document.querySelector('form.ask').text.value") == "nonsense"


def test_no_script_of_an_input_runs(browser, served):
    browser.open(f"http://127.0.0.1:{served.port}/")
    submit(browser, ATTACK, ATTACK)
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return document.querySelector('form.ask').text.value") == ATTACK
    assert browser.run("return document.title").startswith('"><img')
    blocked = (
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s); return window.ran === undefined"
    )
    assert browser.run(blocked)
