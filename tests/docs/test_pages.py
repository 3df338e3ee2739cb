"""What the pages show is well formed, works and is there: code, data, files, links, flags."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cli.reference import reference
from evaluation.specs import NAMES
from simulator.process import EmbeddedServer
from tests.docs.reader import PAGES, ROOT, RUN, Snippet, snippets

EVERY = [snippet for page in PAGES for snippet in snippets(page)]
WITH_CODE = [page for page in PAGES if any(each.language == "python" for each in snippets(page))]
OF_OTHER_TOOLS = {"--strict", "--kv-unified", "--address", "--head", "--logdir", "--help", "--cogs"}


@pytest.fixture(scope="module")
def commands_page() -> str:
    """Every command with every flag."""
    return reference()


def data_of(snippet: Snippet) -> object:
    """The data that a block shows."""
    if snippet.title.endswith(".jsonl"):
        return [json.loads(line) for line in snippet.text.splitlines()]
    if snippet.language == "json":
        return json.loads(snippet.text)
    if snippet.language == "toml":
        return tomllib.loads(snippet.text)
    rows = list(csv.reader(snippet.text.splitlines()))
    assert len({len(row) for row in rows}) == 1
    return rows


def test_every_block_has_a_language_and_data_can_be_read() -> None:
    fences = sum(page.read_text(encoding="utf-8").count("```") for page in PAGES)
    assert fences == 2 * len(EVERY), "a block is indented, or has more than a title"
    data = [each for each in EVERY if each.language not in {"sh", "python", "text", "console"}]
    assert all(map(data_of, data))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(
    page: Path,
    yours: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(trained_run, tmp_path / RUN)
    monkeypatch.chdir(tmp_path)
    code = "".join(each.text for each in snippets(page) if each.language == "python")
    code = code.replace("http://127.0.0.1:11434", yours.host)
    exec(compile(code, page.name, "exec"), {})  # noqa: S102 - our own page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_links_and_flags_that_a_page_names_are_there(page: Path, commands_page: str) -> None:
    text = page.read_text(encoding="utf-8")
    ours = "|".join(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())
    named = re.findall(rf"(?<![/\w])(?:{ours}|docs)/(?:[\w/]*/|[\w/]*\.\w+)?(?!\w)", text)
    linked = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    assert [str(path) for path in (*map(ROOT.joinpath, named), *linked) if not path.exists()] == []
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    assert flags <= set(re.findall(r"--[a-z][\w-]*", commands_page)) | OF_OTHER_TOOLS


def test_the_site_builds_without_a_warning_and_has_every_page(
    tmp_path: Path, commands_page: str
) -> None:
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    (docs / "commands.md").write_text(commands_page, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.stem for path in docs.glob("*.md")}
    in_navigation = re.findall(r'"([\w-]+)\.md"', (ROOT / "zensical.toml").read_text("utf-8"))
    assert {*in_navigation} == pages
    assert pages <= {path.stem for path in (tmp_path / "site").glob("*.html")}


def test_every_kind_of_policy_is_named_and_every_import_in_the_table_of_names_works() -> None:
    text = (ROOT / "docs/evaluating.md").read_text(encoding="utf-8")
    assert [kind for kind in NAMES if not re.search(rf"`{kind}[`:]", text)] == []
    lines = re.findall(r"`(from \w+ import [\w, ]+)`", (ROOT / "docs/names.md").read_text("utf-8"))
    assert lines
    for line in lines:
        exec(line, {})  # noqa: S102 - our own page


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {f'title: "{project["name"]}"', f"version: {project['version']}"} <= {*citation}
