"""The page in a real browser: what is clicked, typed and read; it asks nobody for anything.

Needs Debian's chromium and playwright, whose own download is never used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.made_runs import OLD, changed, copied, report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
MISSING = [
    what
    for what, there in (("chromium", CHROMIUM), ("playwright", importlib.util.find_spec("playwright")))
    if not there
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} is not installed")

SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
CONTROLS = "a\x00b\x1b[2Jc\u202egpj.exe\u2066d"
HEBREW = "שלום, מה שלומך?"
LONG = "word " * 20_000
REPLIES = [SCRIPT, CONTROLS, HEBREW, LONG]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of an odd training, of two runs, and of a run of each command."""
    folder = tmp_path_factory.mktemp("pages")

    def odd(number: int, line: dict[str, Any]) -> dict[str, Any]:
        return line | {"reply": REPLIES[number]} if number < len(REPLIES) else line

    run = changed(copied("train-finished", folder), odd)
    report(run, output=folder / "one.html")
    report(run, OLD / "train-seed-1", OLD / "eval-finished", output=folder / "several.html")
    for command in ("eval", "evolve", "select", "optimize"):
        report(OLD / f"{command}-finished", output=folder / f"{command}.html")
    return folder


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong, and which may ask nobody for anything."""
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda request: complaints.append(request.url) if "file:" not in request.url else None)
    yield page
    page.close()
    assert complaints == []


def opened(page: Page, file: Path, look_at: str) -> None:
    """Open a page and look at these parts of it, for what is not looked at is not drawn."""
    page.goto(file.as_uri())
    for part in page.locator(look_at).all():
        part.scroll_into_view_if_needed()
        part.locator("svg, table").first.wait_for()


@pytest.mark.parametrize("command", ["one", "eval", "evolve", "select", "optimize"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(
    page: Page, folder: Path, command: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, folder / f"{command}.html", "figure, [data-steps]")
    assert page.locator("figure .drawing svg.plot").count() >= page.locator("figure").count()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("svg.plot:not([aria-label])").count() == 0


def test_filters_and_search_narrow_the_transitions(page: Page, folder: Path) -> None:
    opened(page, folder / "one.html", "[data-steps]")
    told = page.locator("[data-steps] .hint[role=status]")
    assert "48 of 48" in told.inner_text()
    page.get_by_role("combobox", name="Mutator").select_option("noop")
    rows = page.locator(".listing tbody tr")
    assert set(rows.locator("td:nth-child(2)").all_inner_texts()) == {"noop"}
    page.get_by_role("combobox", name="Mutator").select_option("\u0000")
    page.get_by_role("combobox", name="Outcome").select_option("answered")
    assert set(rows.locator("td:nth-child(3)").all_inner_texts()) == {"answered"}
    page.get_by_role("combobox", name="Outcome").select_option("\u0000")
    page.get_by_role("searchbox").fill("שלומך")
    page.get_by_text("1 of 48 transitions, in 1 episodes").wait_for()
    page.get_by_role("searchbox").fill("nobody says this")
    page.get_by_text("No transition is like that.").wait_for()


def test_a_rewording_is_compared_with_the_original_word_by_word(page: Page, folder: Path) -> None:
    opened(page, folder / "one.html", "[data-steps]")
    page.get_by_role("searchbox").fill("May I ask you something? Why do recipes")
    page.get_by_text("1 of 48 transitions, in 1 episodes").wait_for()
    page.locator(".listing tbody tr").first.click()
    box = page.get_by_role("region", name="The rewording, compared with the original")
    box.locator("ins").first.wait_for()
    assert box.locator("ins").all_inner_texts() == ["May I ask you something? "]
    assert box.locator("del").count() == 0


def test_keys_step_through_results_and_episodes(page: Page, folder: Path) -> None:
    opened(page, folder / "one.html", "[data-steps]")
    detail = page.get_by_role("region", name="Transition", exact=True)
    page.locator(".listing tbody tr").nth(1).click()
    assert "step 1 (row" in detail.locator("h4").first.inner_text()
    page.keyboard.press("ArrowRight")
    assert "step 2 (row" in detail.locator("h4").first.inner_text()
    assert "step 2 (row" in page.locator(".unseen[role=status]").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("tr[aria-current=true] th").all_inner_texts() == ["2"]
    page.keyboard.press("j")
    assert page.locator("tr[aria-current] th").inner_text() == "3"
    page.keyboard.press("k")
    assert page.locator("tr[aria-current] th").inner_text() == "2"
    for _ in range(24):
        page.keyboard.press("j")
    assert page.locator("tr[aria-current] th").inner_text() == "26"
    page.locator(".episode button").first.click()
    first = int(page.locator("tr[aria-current] th").inner_text())
    page.keyboard.press("j")
    assert page.locator("tr[aria-current] th").inner_text() == str(first + 1)


@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_what_a_reply_holds_is_shown_whole_and_harmless(page: Page, folder: Path, number: int) -> None:
    opened(page, folder / "one.html", "[data-steps]")
    page.locator(".listing tbody tr").nth(number).click()
    reply = page.get_by_role("region", name="Reply", exact=True)
    text = REPLIES[number]
    expected = text.replace("\x00", r"\x00").replace("\x1b", r"\x1b")
    expected = expected.replace("\u202e", r"\u202e").replace("\u2066", r"\u2066")
    assert reply.evaluate("box => box.textContent") == expected
    assert reply.locator("script, img").count() == 0
    assert page.title() == "train-finished \N{EN DASH} mutagym report"
    if text == CONTROLS:
        assert reply.locator(".control").all_inner_texts() == [r"\x00", r"\x1b", r"\u202e", r"\u2066"]
    if text == HEBREW:
        assert reply.evaluate("box => getComputedStyle(box).direction") == "rtl"


def test_runs_are_compared_and_chosen(page: Page, folder: Path) -> None:
    opened(page, folder / "several.html", "#together figure")
    lines = page.locator("#together svg g.line path")
    assert lines.count() == 8
    page.get_by_role("checkbox", name="train-seed-1").uncheck()
    assert lines.count() == 4
    page.get_by_role("radio", name="target calls").first.check()
    assert "over target calls" in str(page.locator("#together svg").first.get_attribute("aria-label"))
    page.get_by_role("combobox", name="Details of run").select_option("eval-finished")
    assert page.locator("section.run:visible h2").all_inner_texts() == ["eval-finished"]
    page.get_by_role("link", name="train-seed-1").click()
    page.get_by_role("heading", name="train-seed-1", level=2).wait_for()
    assert page.locator("section.run:visible h2").all_inner_texts() == ["train-seed-1"]
    page.goto("about:blank")
    page.goto((folder / "several.html").as_uri() + "#run-2")
    assert page.locator("section.run:visible h2").all_inner_texts() == ["eval-finished"]


def test_the_calls_that_are_drawn_at_first_lie_within_the_run(page: Page, folder: Path) -> None:
    opened(page, folder / "one.html", "figure")
    told = page.get_by_role("status").filter(has_text="calls from").inner_text()
    begin, end = (float(each) for each in re.findall(r"([0-9.]+) s", told))
    span_s = page.evaluate(
        "JSON.parse(document.querySelector('script[type=\"application/json\"]').textContent)"
        ".runs[0].charts.find((chart) => chart.kind === 'slots').span_s"
    )
    assert 0 <= begin < end <= span_s + 0.005


def test_what_was_not_looked_at_is_printed(page: Page, folder: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 100})
    page.goto((folder / "one.html").as_uri())
    assert page.locator("figure .drawing:empty").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("figure .drawing:empty").count() == 0
    assert page.locator("figure .drawing svg.plot").count() >= page.locator("figure").count()


def test_the_theme_follows_the_system_and_the_button(page: Page, folder: Path) -> None:
    page.emulate_media(color_scheme="dark")
    opened(page, folder / "one.html", "figure >> nth=0")
    shade = "getComputedStyle(document.body).backgroundColor"
    dark, button = page.evaluate(shade), page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate(shade) != dark


def test_a_chart_can_be_read_as_a_table(page: Page, folder: Path) -> None:
    opened(page, folder / "one.html", "figure >> nth=0")
    figure = page.locator("figure").first
    figure.get_by_text("The same as a table").click()
    table = figure.get_by_role("table")
    table.locator("tbody tr").first.wait_for()
    assert table.locator("thead th").all_inner_texts()[:3] == ["panel", "series", "env steps"]
    assert table.locator("tbody tr").count() == 12
