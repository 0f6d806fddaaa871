"""A real browser for the tests of pages: Debian's chromium, steered through chromedriver (the WebDriver protocol)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STARTS_WITHIN = 60
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
"""Without a sandbox, which needs rights that containers lack; and without a word to anybody's servers."""


class Page:
    """One page in the browser."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        options = {"args": [*QUIET, f"--user-data-dir={folder}"], "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def open(self, file: Path) -> None:
        self._command("POST", "url", {"url": file.absolute().as_uri()})

    def visit(self, address: str) -> None:
        self._command("POST", "url", {"url": address})

    def choose_files(self, selector: str, *files: Path) -> None:
        """Put files into a file input, as its dialog would."""
        found = self._command("POST", "element", {"using": "css selector", "value": selector})
        (element,) = found.values()
        self._command("POST", f"element/{element}/value", {"text": "\n".join(map(str, files))})

    def until(self, script: str, seconds: float = 60) -> None:
        """Wait until a script returns something true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"still not so: {script}; the console: {self.complaints()}"
            time.sleep(0.1)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self._command("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def complaints(self) -> list[str]:
        """What the console says since the last call, errors and warnings."""
        entries = self._command("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def emulate(self, width: int, height: int = 900, scheme: str = "light", media: str = "screen") -> None:
        """A screen of this width, light or dark, or paper."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def point_at(self, selector: str) -> None:
        """Move the mouse over an element, as a person would."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        middle = "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        x, y = self.run(f"{middle} return [b.x + b.width / 2, b.y + b.height / 2]", selector)
        self._devtools("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def screenshot(self, path: Path, whole: bool = True) -> None:
        taken = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": whole, "format": "png"})
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self._call("DELETE", f"/session/{self._session}", None)

    def _devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._command("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def _command(self, verb: str, name: str, body: dict[str, Any]) -> Any:
        return self._call(verb, f"/session/{self._session}/{name}", body)

    def _call(self, verb: str, path: str, body: dict[str, Any] | None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, content, method=verb)
        try:
            with _direct.open(request, timeout=300) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{verb} {path}: {error.read().decode(errors='replace')[:500]}") from None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The driver is on this machine: no proxy is asked."""


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own in `folder`; skips where there is none, and fails there with CI=true."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        message = f"needs a browser: {' and '.join(missing)} not found (Debian: apt install chromium chromium-driver)"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(message)
        pytest.skip(message)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "driver.log"
    with open(log, "w") as output:
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=output, stderr=subprocess.STDOUT)
    try:
        page = Page(f"http://127.0.0.1:{_port(log, driver)}", folder / "profile")
        try:
            yield page
        finally:
            page.close()
    finally:
        driver.terminate()
        driver.wait(30)


def _port(log: Path, driver: subprocess.Popen[bytes]) -> int:
    """The port that the driver chose."""
    told = "started successfully on port "
    end = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < end and driver.poll() is None:
        if told in (text := log.read_text()):
            return int("".join(c for c in text.split(told)[1].split()[0] if c.isdigit()))
        time.sleep(0.1)
    raise AssertionError(f"chromedriver did not start: {log.read_text()[:500]}")
