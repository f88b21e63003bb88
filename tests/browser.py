"""A headless browser for tests, driven by chromedriver over WebDriver's plain HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which WebDriver puts a reference
KEYS = {"Tab": "\ue004", "End": "\ue010", "Home": "\ue011", "ArrowLeft": "\ue012"}
KEYS |= {"ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
)

# Before it is drawn a page may miss keys.
DRAWN = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"


class Browser:
    """One window; `with Browser() as browser` closes it."""

    def __enter__(self) -> Browser:
        driver = shutil.which("chromedriver")
        browser = next(filter(None, map(shutil.which, NAMES)), None)
        if driver is None or browser is None:
            reason = "needs chromium and chromedriver: apt-get install chromium chromium-driver"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        self._driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if port := re.search(r"started successfully on port (\d+)", line):
                self._base = f"http://127.0.0.1:{port[1]}/session"
                break
        options = {"binary": browser, "args": list(FLAGS)}
        logs = {"browser": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        opened = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/{opened['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=10)
            self._driver.stdout.close()  # type: ignore[union-attr]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(
        self, page: Path | str, width: int = 1100, height: int = 900, dark: bool = False
    ) -> None:
        """Opens a file, or an address, in a window of that size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._command("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._ask("POST", "/url", {"url": page.as_uri() if isinstance(page, Path) else page})
        self.wait()

    def wait(self) -> None:
        """Waits until the page is drawn."""
        self._ask("POST", "/execute/async", {"script": DRAWN, "args": []})

    def _command(self, name: str, options: dict[str, Any]) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": options})

    def run(self, script: str, *arguments: Any) -> Any:
        """What JavaScript returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *names: str) -> None:
        """Presses keys, one after the other."""
        steps = [
            {"type": kind, "value": KEYS[name]} for name in names for kind in ("keyDown", "keyUp")
        ]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": steps}]})

    def focused(self) -> str:
        """The label of the element that has the focus."""
        return self.run("return document.activeElement.getAttribute('aria-label') || ''")

    def messages(self) -> list[str]:
        """What the browser complained of."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._ask("GET", "/screenshot"))
