"""The site that `make docs` built, in a real browser: links, search, mathematics, themes, phone."""

from __future__ import annotations

import re
import threading
import time
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import Browser
from test_public_api import DOCUMENTED

pytestmark = pytest.mark.slow

SITE = Path(__file__).parents[1] / "build" / "docs" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
SHOWN = ["index.html", "choose.html", "concepts/mappings.html", "gallery/index.html", "api.html"]
RESOURCES = "return performance.getEntriesByType('resource').map((entry) => entry.name)"


class Reader(HTMLParser):
    """The links and the places of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            if value and name == "id":
                self.places.add(value)


@pytest.fixture(scope="module")
def read() -> dict[str, Reader]:
    if "index.html" not in PAGES:
        pytest.skip("needs the site: make docs")
    return {page: Reader((SITE / page).read_text(encoding="utf-8")) for page in PAGES}


@pytest.fixture(scope="module")
def address(read):
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site and logs nothing."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, directory=str(SITE), **options)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        yield window


def test_every_internal_link_leads_somewhere(read):
    broken = []
    for page, reader in read.items():
        for link in reader.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (SITE / page).parent / unquote(parts.path) if parts.path else SITE / page
            name = target.resolve().relative_to(SITE).as_posix() if target.exists() else None
            known = read[name].places if name in read else None
            if name is None or (
                parts.fragment and known is not None and unquote(parts.fragment) not in known
            ):
                broken.append(f"{page}: {link}")
    assert broken == []


def test_every_public_name_has_an_entry(read):
    for package, names in DOCUMENTED.items():
        places = read[f"api/{package}.html"].places
        missing = {name for name in names if f"{package}.{name}" not in places}
        assert missing <= {"mappings", "structures", "latent", "nn", "estimators"}


def test_no_page_complains_or_asks_for_anything_from_elsewhere(address, browser):
    for page in PAGES:
        browser.open(f"{address}/{page}")
        assert browser.messages() == [], page
        assert [url for url in browser.run(RESOURCES) if not url.startswith(address)] == []
    for path in (*SITE.rglob("*.css"), *SITE.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import |<link[^>]+href=|src=)[\"']?(https?:)?//", text), path


def test_mathematics_is_visible(address, browser):
    browser.open(f"{address}/concepts/mappings.html")
    sizes = browser.run(
        "return [...document.querySelectorAll('.formula math')].map((math) => "
        "[math.getBoundingClientRect().width, math.getBoundingClientRect().height])"
    )
    assert len(sizes) > 10
    assert all(width > 10 and height > 10 for width, height in sizes)
    raised = browser.run(
        "const sup = document.querySelector('.formula msup'); const [base, top] = sup.children; "
        "return base.getBoundingClientRect().top - top.getBoundingClientRect().top"
    )
    assert raised > 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [("fusedmax", "api/fenchel.html"), ("calibrate coverage", "scikit-learn")],
)
def test_search_finds(address, browser, query, expected):
    browser.open(f"{address}/search.html?q={query.replace(' ', '+')}")
    links = "return [...document.querySelectorAll('#search-results li a')].map((link) => link.href)"
    end = time.monotonic() + 20
    while not (found := browser.run(links)) and time.monotonic() < end:
        time.sleep(0.1)
    assert any(expected in link for link in found)
    assert browser.messages() == []


@pytest.mark.parametrize("page", SHOWN)
def test_pages_fit_a_phone(address, browser, page):
    browser.open(f"{address}/{page}", 360)
    assert browser.run("return document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_follow_the_theme(address, browser, dark):
    browser.open(f"{address}/index.html", dark=dark)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background)[:3])) < 80) == dark
    shown = browser.run(
        "return [...document.querySelectorAll('article img')]"
        ".filter((image) => image.getBoundingClientRect().width > 0).map((image) => image.src)"
    )
    assert shown
    assert all(("-dark." in source) == dark for source in shown)
