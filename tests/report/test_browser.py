"""The page in a real browser: what is clicked, typed and read; it asks nobody for anything.

Needs Debian's chromium and playwright, whose own download is never used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.made_runs import changed, report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
FOUND = {"chromium": CHROMIUM, "playwright": importlib.util.find_spec("playwright")}
MISSING = [what for what, found in FOUND.items() if not found]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} is not installed")

SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
CONTROLS = "a\x00b\x1b[2Jc\u202egpj.exe\u2066d"
HEBREW = "שלום, מה שלומך?"
LONG = "word " * 20_000
REPLIES = [SCRIPT, CONTROLS, HEBREW, LONG]
CUT = "cut: 100,000 characters, line 4 of transitions.jsonl"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of an odd training, of two with an evaluation, and of a run of each other command."""
    folder = tmp_path_factory.mktemp("pages0", numbered=False)

    def odd(number: int, line: dict[str, Any]) -> dict[str, Any]:
        """Episodes of two steps, two lanes side by side."""
        row, lane = divmod(number, 2)
        reply = {"reply": REPLIES[number]} if number < len(REPLIES) else {}
        if number == 5:
            reply = {"mutated_query": f"May I ask you? {line['original_query']}"}
        place = {"row": row, "lane": lane, "episode_number": row // 2, "step_number": row % 2}
        return line | place | reply | {"mutator": ("noop", "shorten")[lane]}

    report(changed(runs / "train" / "seed-0", folder, odd), output=folder / "one.html")
    report(runs / "train", runs / "eval", output=folder / "several.html")
    for command in ("eval", "evolve", "select", "optimize"):
        report(runs / command, output=folder / f"{command}.html")
    return folder


@contextmanager
def opened(browser: Browser, url: str, seen: str) -> Iterator[Page]:
    """A page, scrolled to these parts of it, for what is not on the screen is not drawn.

    Nothing may go wrong on it, and it may ask nobody for anything.
    """
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: complaints.append(request.url) if "file:" not in request.url else None,
    )
    page.goto(url)
    for part in page.locator(seen).all():
        part.scroll_into_view_if_needed()
        part.locator("svg, table").first.wait_for()
    yield page
    page.close()
    assert complaints == []


@pytest.fixture(scope="module")
def steps(browser: Browser, folder: Path) -> Iterator[Page]:
    """The page of the odd training, which no test leaves with a filter."""
    with opened(browser, (folder / "one.html").as_uri(), "[data-steps]") as page:
        yield page


@pytest.mark.parametrize("command", ["one", "eval", "evolve", "select", "optimize"])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(
    browser: Browser, folder: Path, command: str
) -> None:
    url = (folder / f"{command}.html").as_uri()
    with opened(browser, url, "figure, [data-steps]") as page:
        assert page.locator("figure .drawing svg.plot").count() >= page.locator("figure").count()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("w => document.documentElement.scrollWidth === w", arg=width)
        assert page.locator("svg.plot:not([aria-label])").count() == 0


def test_filters_and_search_narrow_the_transitions(steps: Page) -> None:
    assert "48 of 48" in steps.locator("[data-steps] .hint[role=status]").inner_text()
    rows = steps.locator(".listing tbody tr")
    for name, place, value in (("Mutator", 2, "noop"), ("Outcome", 3, "answered")):
        steps.get_by_role("combobox", name=name).select_option(value)
        assert set(rows.locator(f"td:nth-child({place})").all_inner_texts()) == {value}
        steps.get_by_role("combobox", name=name).select_option("\u0000")
    for words, found in (
        ("שלומך", "1 of 48 transitions, in 1 episodes"),
        ("nobody says this", "No transition is like that."),
        ("", "48 of 48"),
    ):
        steps.get_by_role("searchbox").fill(words)
        steps.get_by_text(found).wait_for()


def test_a_rewording_is_compared_with_the_original_word_by_word(steps: Page) -> None:
    steps.locator(".listing tbody tr").nth(5).click()
    box = steps.get_by_role("region", name="The rewording, compared with the original")
    assert "".join(box.locator("ins").all_inner_texts()).strip() == "May I ask you?"
    assert box.locator("del").count() == 0


def test_what_a_reply_holds_is_harmless_and_whole_or_its_rest_is_named(steps: Page) -> None:
    reply = steps.get_by_role("region", name="Reply", exact=True)
    for number, text in enumerate(REPLIES):
        steps.locator(".listing tbody tr").nth(number).click()
        expected = text[:2_000] + (CUT if text == LONG else "")
        expected = re.sub("[\x00\x1b\u202e\u2066]", lambda found: ascii(found[0])[1:-1], expected)
        assert reply.evaluate("box => box.textContent") == expected
        assert reply.locator("script, img").count() == 0
        direction = reply.evaluate("box => getComputedStyle(box).direction")
        assert (direction == "rtl") == (text == HEBREW)
    assert steps.title() == "pages0/seed-0 \N{EN DASH} mutagym report"
    assert reply.get_by_role("link").get_attribute("href") == "seed-0/transitions.jsonl"


def test_keys_step_through_results_and_episodes(steps: Page) -> None:
    current = steps.locator("tr[aria-current=true] th")
    steps.locator(".listing tbody tr").nth(1).click()
    for key, number, step in (
        *(("ArrowRight", "4", "2 (row 1)"), ("ArrowLeft", "2", "1 (row 0)")),
        *(("j", "3", "2 (row 1)"), ("k", "2", "1 (row 0)")),
    ):
        steps.keyboard.press(key)
        assert current.inner_text() == number
        for place in (".detail h4 >> nth=0", ".unseen[role=status]"):
            assert f"step {step}" in steps.locator(place).inner_text()
    for _ in range(24):
        steps.keyboard.press("j")
    assert current.inner_text() == "26"
    steps.locator(".episode button").last.click()
    steps.keyboard.press("j")
    assert current.inner_text() == "29"


def test_runs_are_compared_and_chosen(browser: Browser, folder: Path) -> None:
    url = (folder / "several.html").as_uri()
    with opened(browser, url, "#together figure >> nth=0") as page:
        picture = page.locator("#together svg").first
        labels = " ".join(picture.locator("text").all_text_contents())
        for name in ("noop", "best_fixed", "cascade", "train/seed-1", "train/seed-1, held-out"):
            assert re.search(rf"{name} \d+%", labels)
        lines = page.locator("#together svg g.line path")
        count = lines.count()
        page.get_by_role("checkbox", name="train/seed-1", exact=True).first.uncheck()
        assert lines.count() == count - 1
        page.get_by_role("radio", name="target calls").first.check()
        assert "over target calls" in str(picture.get_attribute("aria-label"))
        shown = page.locator("section.run:visible h2")
        assert shown.all_inner_texts() == ["train/seed-0"]
        page.get_by_role("link", name="train/seed-1").click()
        page.get_by_role("heading", name="train/seed-1", level=2).wait_for()
        assert shown.all_inner_texts() == ["train/seed-1"]
        page.goto("about:blank")
        page.goto(f"{url}#run-2")
        assert shown.all_inner_texts() == ["eval"]
