"""One Chromium for all tests that look at pages.

Say ``pytest_plugins = ["browser"]`` and ask for ``new_page`` or ``chromium``.

Where there is no Chromium the tests are skipped with the cure, and fail instead under ``CI=true``,
where it can be installed.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HERE = ("file:", "data:", "blob:", "http://localhost:", "http://127.0.0.1:")
CURE = (
    "No Chromium found, so no page was looked at: install it "
    "(Debian, Ubuntu: apt-get install chromium) or set CHROMIUM to its path."
)


def find_chromium() -> str | None:
    """Return the path of the Chromium or Chrome of this machine, or ``None``."""
    candidates = (os.environ.get("CHROMIUM"), *NAMES)
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, one per file of tests: its event loop would be in the way of other tests."""
    path = find_chromium()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(CURE)
    from playwright.sync_api import sync_playwright  # only here: it is not needed to skip

    with sync_playwright() as playwright:  # each launch has a new, empty profile
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages; at the end, fail on every request that left this machine and every console error."""
    contexts, complaints = [], []

    def complain_of(request: Any) -> None:
        if not request.url.startswith(HERE):
            complaints.append(f"asked the network for {request.url}")

    def open_page(width: int = 1400, height: int = 900, **options: Any) -> Any:
        viewport = {"width": width, "height": height}
        context = chromium.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", complain_of)
        page.on("pageerror", lambda error: complaints.append(f"script error: {error}"))
        page.on(
            "console",
            lambda message: message.type == "error" and complaints.append(message.text),
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
