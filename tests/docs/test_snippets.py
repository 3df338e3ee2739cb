"""What the documents show is well formed and works: code, data and flags."""

from __future__ import annotations

import csv
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.reference import PAGE, reference
from simulator.process import EmbeddedServer
from tests.docs.snippets import DOCUMENTS, LANGUAGES, ROOT, Snippet, snippets

ALL = [each for page in DOCUMENTS for each in snippets(page)]
LIBRARY = ROOT / "docs" / "library.md"
WITH_CODE = sorted({each.page for each in ALL if each.language == "python"} - {LIBRARY})
EARLIER = ROOT / "docs" / "names.md"
"""It names the flags of other systems."""
OF_OTHER_TOOLS = {
    "--all",
    "--strict",
    "--kv-unified",
    "--no-deps",
    "--parallel",
    "--quick",
    "--write",
    "--address",
    "--head",
    "--logdir",
}
"""Flags that are not ours."""


@pytest.fixture(scope="module")
def help_texts() -> str:
    """The reference as the program tells it now."""
    return reference()


def test_every_fenced_block_has_a_language_that_is_tested() -> None:
    assert {each.language for each in ALL} <= LANGUAGES
    fences = sum(page.read_text(encoding="utf-8").count("```") for page in DOCUMENTS)
    assert fences == 2 * len(ALL), "a block is not read: it is indented, or has more than a title"


def run_python(page: Path, host: str) -> dict[str, Any]:
    """Run the Python of a page from top to bottom, on this server; the names it leaves behind."""
    names: dict[str, Any] = {}
    for snippet in snippets(page):
        if snippet.language == "python":
            code = snippet.text.replace("http://127.0.0.1:11434", host)
            exec(compile(code, f"{page.name} {snippet.title}", "exec"), names)  # noqa: S102 - our own document
    return names


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(
    page: Path,
    yours: EmbeddedServer,
    your_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(your_runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert run_python(page, yours.host)


def test_the_library_does_what_its_page_says(
    yours: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_python(LIBRARY, yours.host)
    shown = capsys.readouterr().out.splitlines()
    assert names["rewards"].shape == (8,)
    assert names["flow"].rewarded_steps == 50
    assert "\n".join(shown).startswith(tuple(names["flow"].population.prompts))
    assert names["controller"].results["best_prompt"] in "\n".join(shown)
    assert shown[-1] == "{'model': 'b'}"
    assert names["model"].num_timesteps == 1024
    names["vec"].close()


def _read(snippet: Snippet) -> object:
    if snippet.title.endswith(".jsonl"):
        return [json.loads(line) for line in snippet.text.splitlines()]
    if snippet.language == "json":
        return json.loads(snippet.text)
    if snippet.language == "toml":
        return tomllib.loads(snippet.text)
    rows = list(csv.reader(snippet.text.splitlines()))
    assert len({len(row) for row in rows}) == 1
    return rows


def test_data_can_be_read() -> None:
    data = [each for each in ALL if each.language in {"csv", "json", "toml"}]
    assert all(_read(each) for each in data)
    assert {each.language for each in data} == {"csv", "json", "toml"}


def test_the_reference_of_all_flags_is_up_to_date(help_texts: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == help_texts, "run python -m cli.reference"


def test_every_flag_that_a_document_names_is_there(help_texts: str) -> None:
    known = set(re.findall(r"--[a-z][\w-]*", help_texts)) | OF_OTHER_TOOLS | {"--help"}
    for page in set(DOCUMENTS) - {EARLIER}:
        named = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page.read_text(encoding="utf-8"))
        assert set(named) - known == set(), page.name


def test_every_page_is_in_the_navigation_once() -> None:
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert sorted(re.findall(r'"([\w-]+\.md)"', settings)) == sorted(
        p.name for p in (ROOT / "docs").glob("*.md")
    )
