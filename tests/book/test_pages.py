"""The built pages in Chromium: offline, without errors, on a phone, accessible in light and dark.

The pages are those that ``make book`` left in ``_build/html``: found, not listed.
"""

import functools
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from attention_course.lab.page.claims import Checked, Claim

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
START = HTML / "index.html"  # leads on to book/index.html
PAGES = sorted(
    path.relative_to(HTML).as_posix()
    for path in HTML.rglob("*.html")
    if "_static" not in path.relative_to(HTML).parts and path != START
)
CHAPTERS = [page for page in PAGES if (ROOT / page).with_suffix(".ipynb").exists()]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
REPOSITORY = CONFIG["repository"]["url"]
BRANCH = CONFIG["repository"]["branch"]

#: A finding in the theme's own element, which the book cannot cure: rule -> where it may occur.
KNOWN = {"region": re.compile(r'^<div class="sidebar-primary-item">\s*<a class="navbar-brand')}

#: Text that only unrendered maths or MyST leaves behind. Code and formulas are looked past.
RAW_TEXT = r"""
() => {
  const maths = /\\[([]|\\begin\{|\\(frac|sqrt|text|mathrm|cdot|alpha|top)\b|\$[^$\s][^$]*\$/;
  const myst = /\{[a-z]+(:[a-z]+)?\}`|^:::/m;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest("pre, code, script, style, svg, mjx-container")) continue;
    if (maths.test(node.data) || myst.test(node.data)) found.push(node.data.trim().slice(0, 80));
  }
  return found;
}
"""

#: What sticks out to the right of the window without a scrolling box around it.
STICKING_OUT = r"""
() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => {
    for (let box = element.parentElement; box; box = box.parentElement) {
      if (box.matches(".bd-article")) return false;
      if (getComputedStyle(box).overflowX !== "visible") return true;
    }
    return false;
  };
  const found = [];
  for (const element of document.querySelectorAll(".bd-article *")) {
    const box = element.getBoundingClientRect();
    if (box.width > 1 && box.right > width + 1 && !scrolls(element)) {
      const name = `${element.tagName.toLowerCase()}.${element.getAttribute("class")}`;
      found.push(`${name} ends at ${Math.round(box.right)} px`);
    }
  }
  const page = document.documentElement.scrollWidth;
  if (page > width) found.push(`the page is ${page} px wide in a window of ${width} px`);
  return found;
}
"""


#: How bright the sheet under each figure is, from 0 to 255: its own or that of the nearest element with one.
SHEETS = r"""
() => [...document.querySelectorAll(".ac-figure, .ac-explorable")].map((figure) => {
  for (let box = figure; box; box = box.parentElement) {
    const [red, green, blue, alpha = 1] = getComputedStyle(box).backgroundColor.match(/[\d.]+/g).map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue;
  }
  return 255;
})
"""


#: Words of code that look like one met before, in colour, size, weight and ground, become plain text:
#: axe measures each look once, not thousands of times, which is most of what these pages cost it.
EACH_LOOK_ONCE = r"""
() => {
  const met = new Set();
  const words = [...document.querySelectorAll(".bd-article :is(.highlight, dt.sig, code) :is(span, em)")];
  for (const word of words.reverse()) {  // the inner ones first
    if (word.childElementCount) continue;
    let sheet = word;
    const ground = () => getComputedStyle(sheet).backgroundColor;
    while (sheet.parentElement && /, 0\)$/.test(ground())) sheet = sheet.parentElement;
    const { color, fontSize, fontWeight, opacity } = getComputedStyle(word);
    const look = [color, fontSize, fontWeight, opacity, ground()].join();
    if (met.has(look)) word.replaceWith(word.textContent);
    met.add(look);
  }
}
"""


def skip_or_fail(reason: str) -> None:
    """Skip on a reader's machine; fail under ``CI=true``, where what lacks can be installed."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, str]]:
    """The book's address by scheme: opened from its folder, and served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=HTML))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"file": HTML.as_uri() + "/", "http": f"http://127.0.0.1:{server.server_port}/"}
    server.shutdown()
    server.server_close()
    thread.join()


class Visit:
    """A page in a window of its own, with everything it complained about or asked elsewhere for."""

    def __init__(self, browser: Browser, site: str, *, width: int = 1400, theme: str = "light"):
        self.site = site
        self.external: list[str] = []
        self.errors: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.context.route("**/*", self._route)
        self.context.add_init_script(
            f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}');"
        )
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda line: line.type == "error" and self.errors.append(line.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("response", self._note)

    def _route(self, route) -> None:
        url = route.request.url
        if url.startswith((self.site, "data:", "blob:")):
            route.continue_()
        else:
            self.external.append(url)
            route.abort()

    def _note(self, response) -> None:
        if response.status >= 400:
            self.errors.append(f"{response.status} {response.url}")

    def open(self, path: str) -> Page:
        self.page.goto(self.site + path)
        self.page.evaluate("window.MathJax ? MathJax.startup.promise.then(() => true) : true")
        return self.page

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def unfold(page: Page) -> None:
    """Open every folded solution and hidden cell, so that what is in them is looked at, too."""
    page.evaluate(
        """() => {
          document.querySelectorAll("details").forEach((box) => { box.open = true; });
          document.getAnimations().forEach((animation) => animation.finish());  // no half-faded text
        }"""
    )


def test_the_book_is_built():
    if not PAGES:
        skip_or_fail("the book is not built: run make book first")
    assert "book/index.html" in PAGES
    assert CHAPTERS


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_the_folder_opens_at_the_start_page(chromium, sites, scheme):
    if not PAGES:
        skip_or_fail("the book is not built: run make book first")
    with Visit(chromium, sites[scheme]) as visit:
        visit.page.goto(sites[scheme] + "index.html")
        visit.page.wait_for_url(sites[scheme] + "book/index.html")


@pytest.mark.parametrize("scheme", ["file", "http"])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_whole_without_a_network(chromium, sites, path, scheme):
    with Visit(chromium, sites[scheme]) as visit:
        page = visit.open(path)
        unfold(page)
        assert visit.external == [], "asked for something outside the book"
        assert visit.errors == [], "reported errors"
        assert page.locator("mjx-merror").count() == 0, "has a formula that MathJax cannot read"
        unknown = page.locator("mjx-mtext[style*=red]").count()
        assert unknown == 0, "has a command that MathJax does not know"
        assert page.evaluate(RAW_TEXT) == [], "shows maths or MyST as raw text"


@pytest.mark.parametrize("path", PAGES)
def test_page_fits_a_phone(chromium, sites, path):
    with Visit(chromium, sites["file"], width=390) as visit:
        page = visit.open(path)
        unfold(page)
        assert page.evaluate(STICKING_OUT) == []
        page.evaluate(Axe().axe_script)
        result = page.evaluate("axe.run({runOnly: ['scrollable-region-focusable']})")
        unreachable = [node["html"][:200] for v in result["violations"] for node in v["nodes"]]
        assert unreachable == [], "scrolls, but not by keyboard"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(chromium, sites, path, theme):
    with Visit(chromium, sites["file"], theme=theme) as visit:
        page = visit.open(path)
        unfold(page)
        assert page.locator("html").get_attribute("data-theme") in {theme, None}
        sheets = page.evaluate(SHEETS)
        assert all(sheet > 200 if theme == "light" else sheet < 60 for sheet in sheets), sheets
        page.evaluate(EACH_LOOK_ONCE)
        page.evaluate(Axe().axe_script)
        # what does not depend on colours is the same in the dark
        only = "" if theme == "light" else ", runOnly: ['color-contrast', 'link-in-text-block']"
        result = page.evaluate(f"axe.run({{resultTypes: ['violations']{only}}})")
        found = [
            f"{violation['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for violation in result["violations"]
            for node in violation["nodes"]
            if not (violation["id"] in KNOWN and KNOWN[violation["id"]].search(node["html"]))
        ]
        if found:
            pytest.fail(f"{len(found)} findings, the first ones:\n" + "\n".join(found[:5]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_one_pale_word_among_the_code_is_found(chromium, sites, theme):
    """Words that look alike are measured once; one that looks otherwise is measured, too."""
    if not PAGES:
        skip_or_fail("the book is not built: run make book first")
    with Visit(chromium, sites["file"], theme=theme) as visit:
        page = visit.open("book/03_scaled_dot_product.html")
        unfold(page)
        page.locator(".bd-article .highlight .k").nth(7).evaluate("word => { word.style.color = '#7777'; }")
        page.evaluate(EACH_LOOK_ONCE)
        page.evaluate(Axe().axe_script)
        result = page.evaluate("axe.run({runOnly: ['color-contrast']})")
        assert "#7777" in str(result["violations"]) or "rgba(119, 119, 119" in str(result["violations"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_claims_are_quiet_lines_and_those_that_broke_stand_out(chromium, sites, theme):
    """A page where something came out otherwise may not be among those built here, so it is made up."""
    if not PAGES:
        skip_or_fail("the book is not built: run make book first")
    statements = (Claim("A is ahead", 0.95, at_least=0.9), Claim("B is behind", 0.6, at_most=0.5))
    with Visit(chromium, sites["file"], theme=theme) as visit:
        page = visit.open("book/timings.html")
        page.locator(".bd-article table").first.evaluate(
            "(e, html) => e.insertAdjacentHTML('afterend', html)", Checked(statements)._repr_html_()
        )
        line, note = page.locator("details.claims"), page.locator(".claim-otherwise")
        size = "e => parseFloat(getComputedStyle(e).fontSize)"
        assert line.evaluate(size) < note.evaluate(size)
        assert line.locator("li").first.is_hidden() and note.is_visible()
        unfold(page)
        page.evaluate(Axe().axe_script)
        for part in ("details.claims", ".claim-otherwise"):
            assert page.evaluate(f"axe.run('{part}')")["violations"] == []


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_search_finds_a_word_with_the_keyboard_alone(chromium, sites, scheme):
    if not PAGES:
        skip_or_fail("the book is not built: run make book first")
    with Visit(chromium, sites[scheme]) as visit:
        page = visit.open("book/index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("equivariant")
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-results li a")
        results = page.locator("#search-results li a").evaluate_all("links => links.map(a => a.href)")
        assert any("glossary.html" in result for result in results)
        assert visit.errors == []
        assert visit.external == []


@pytest.mark.parametrize("path", CHAPTERS)
def test_chapter_opens_in_colab_and_downloads(chromium, sites, path):
    notebook = Path(path).with_suffix(".ipynb")
    with Visit(chromium, sites["file"]) as visit:
        page = visit.open(path)
        addresses = page.locator("a").evaluate_all("links => links.map(a => a.href)")
        slug = REPOSITORY.removeprefix("https://github.com/")
        colab = f"https://colab.research.google.com/github/{slug}/blob/{BRANCH}/{notebook.as_posix()}"
        assert colab in addresses
        assert REPOSITORY in addresses
        sources = sites["file"] + "_sources/"
        download = next(a for a in addresses if a.startswith(sources) and a.endswith(".ipynb"))
        copy = HTML / download.removeprefix(sites["file"])
        assert copy.read_bytes() == (ROOT / notebook).read_bytes()
