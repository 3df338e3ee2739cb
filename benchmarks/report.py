"""How long the report of a run of 10,000 transitions takes to make, and to open in a browser.

python -m benchmarks.report

Needs Debian's chromium and playwright. The run is a real one on the simulator, whose time does not count.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

from benchmarks.reporting import Section, at_most, run
from cli.main import execute

STEPS = 10_000
"""Transitions, rounded up to whole rollouts."""
REPEATS = 5
MOST_S = 2.0
"""Seconds in which the page is to be open."""
LISTED = """() => new Promise((done) => {
  const section = document.querySelector("[data-steps]");
  section.scrollIntoView();
  const look = () => {
    if (section.querySelector(".listing tbody tr")) done(performance.now() / 1000);
    else requestAnimationFrame(look);
  };
  look();
})"""
"""Seconds since the page was asked for until its transitions are listed."""
FOUND = """() => new Promise((done) => {
  const told = document.querySelector("[data-steps] [role=status]");
  const [before, began] = [told.textContent, performance.now()];
  const box = document.querySelector("[data-steps] input");
  box.value = "why";
  box.dispatchEvent(new Event("input"));
  const look = () => {
    if (told.textContent !== before) done((performance.now() - began) / 1000);
    else requestAnimationFrame(look);
  };
  look();
})"""
"""Seconds from a word that is typed to what is found, of which the page waits 0.12 for further letters."""


def sections(*, quick: bool) -> Iterator[Section]:
    """The section: making the page, opening it, searching it."""
    steps = 512 if quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        trained, page = Path(folder) / "run", Path(folder) / "report.html"
        train = (
            "--ollama-host",
            "embedded",
            "--time-scale",
            "0",
            "--encoder",
            "hashing",
            "--slots",
            "16",
        )
        _do("train", *train, "--num-env-steps", str(steps), "--run-dir", str(trained))
        began_s = time.perf_counter()
        _do("report", str(trained), "-o", str(page))
        made_s = time.perf_counter() - began_s
        opened = [_opened(page) for _ in range(1 if quick else REPEATS)]
        lines = (trained / "transitions.jsonl").read_bytes().count(b"\n")
        listed_s, found_s = (median(each[k] for each in opened) for k in (0, 1))
        yield Section(
            title="The report of a run",
            about=f"`mutagym report` of a training of {lines:,} transitions, opened in a fresh headless "
            f"Chromium that scrolls to the transitions; the median of {len(opened)}. The page waits 0.12 s "
            "for further letters before it searches.",
            rows=[
                {
                    "transitions": lines,
                    "MB": page.stat().st_size / 1e6,
                    "made, s": made_s,
                    "opened and listed, s": listed_s,
                    "searched, s": found_s,
                }
            ],
            checks=[at_most(f"seconds to open {lines:,} transitions", MOST_S, listed_s)],
        )


def _do(*arguments: str) -> None:
    with redirect_stdout(sys.stderr):
        code = execute(arguments)
    if code:
        raise SystemExit(f"mutagym {arguments[0]} failed")


def _opened(page: Path) -> tuple[float, float]:
    """The seconds until the transitions are listed, and until a word is found in them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(page.as_uri())
        seconds = float(tab.evaluate(LISTED)), float(tab.evaluate(FOUND))
        browser.close()
    return seconds


if __name__ == "__main__":
    sys.exit(run("report", "performance.md"))
