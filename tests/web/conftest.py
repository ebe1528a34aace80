"""The page of web/ in a real browser: Chromium of the system, driven by Playwright."""

from __future__ import annotations

import fcntl
import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "web"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def vendored() -> None:
    """What `make web` brings; skips where npm is missing or reaches no registry."""
    made, locked = WEB / "vendor", WEB / "package-lock.json"
    with (WEB / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest's workers are processes
        if made.is_dir() and made.stat().st_mtime > locked.stat().st_mtime:
            return
        if shutil.which("npm") is None:
            pytest.skip(
                "web/vendor is not made, and there is no npm to make it: install Node.js, then `make web`"
            )
        done = subprocess.run([WEB / "vendor.sh"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"`make web` failed, so the page's parts are missing: {done.stderr[-300:]}")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def address(vendored: None) -> Iterator[str]:
    """Of the page, from a plain file server."""
    handler = functools.partial(_Quiet, directory=WEB)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(
    scope="module"
)  # Playwright keeps an event loop: other modules of the same process want their own
def browser(vendored: None) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[dev]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page, with its demo model loaded, in a context of its own; at the end its console must be empty."""
    said: list[str] = []
    contexts = []

    def open_it(**options: Any) -> Any:
        from playwright.sync_api import expect

        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.goto(address)
        expect(page.locator("#status")).to_have_text("demo.onnx is loaded.", timeout=60_000)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


@pytest.fixture(scope="module")
def ask(browser: Any, address: str) -> Iterator[Ask]:
    """Calls a function of the page's modules, written in JavaScript, with one argument; gives what it returns."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}style.css")  # of the page's origin, without the page

    def call(function: str, argument: Any = None) -> Any:
        return page.evaluate(function, argument)

    yield call
    context.close()
