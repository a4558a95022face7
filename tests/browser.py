"""One Chromium for all tests of a process that look at pages, and a page for figures that move.

A test asks for ``page_with``, ``new_page`` or ``chromium``.

Where there is no Chromium the tests are skipped with the cure, and fail instead under ``CI=true``,
where it can be installed.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
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


#: A page that holds nothing but figures; its heading's colours must not reach into them.
PAGE = """<!doctype html><html lang="en" data-theme="{theme}"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Figures</title>
<style>body {{ margin: 12px }} [data-theme="dark"] {{ background: #14181e }}</style>
<main><h1 style="color: gray; background: black">Figures</h1>{body}</main></html>"""


@pytest.fixture(autouse=True)
def loop_out_of_the_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide the browser's event loop, which waits in this thread, from tests that start one of their own."""
    waiting = None if "chromium" in request.fixturenames else asyncio._get_running_loop()
    if waiting is None:
        yield
        return
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(waiting)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, one per process of tests."""
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


@pytest.fixture
def page_with(new_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Open a page that holds the given figures; motion is reduced unless asked for.

    With ``clock`` the page's time stands still until ``page.clock.run_for`` moves it.
    """

    def open_with(
        *figures: Any,
        theme: str = "light",
        width: int = 1400,
        reduced_motion: str = "reduce",
        clock: bool = False,
        **options: Any,
    ) -> Any:
        path = tmp_path / f"page-{len(list(tmp_path.iterdir()))}.html"
        body = "".join(figure._repr_html_() for figure in figures)
        path.write_text(PAGE.format(theme=theme, body=body), encoding="utf-8")
        page = new_page(width, reduced_motion=reduced_motion, **options)
        if clock:
            page.clock.install(time=0)
            page.clock.pause_at(1)
        page.goto(path.as_uri())
        return page

    return open_with


def figure(page: Any, number: int = 0) -> Any:
    """The figure of this number on a page."""
    return page.locator(".ac-explorable").nth(number)
