"""Every command of the documentation runs, page by page, on the simulator: `make docs-test`."""

from __future__ import annotations

import io
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.main import ExitCode, execute
from simulator.process import EmbeddedServer
from tests.docs.reader import NOT_RUN, PAGES, ROOT, commands, shorten, snippets

GATES = {"--guard-queries", "--fail-under"}


def runs_here(words: list[str]) -> bool:
    """Whether it is a command of ours that ends, on this machine."""
    return words[0] == "mutagym" and not " ".join(words).startswith(NOT_RUN) and "ray" not in words


@pytest.mark.docs
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_one_after_another(
    page: Path,
    yours: EmbeddedServer,
    your_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(your_runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "stdin", io.StringIO("How do I kill a stuck process?"))
    monkeypatch.setenv("BROWSER", "true")  # of `report --open`: a program that does nothing
    number = 0
    for snippet in snippets(page):
        if snippet.title:
            Path(snippet.title).write_text(snippet.text, encoding="utf-8")
        for words in commands(snippet):
            if not runs_here(words):
                continue
            short, by_environment = shorten(words[1:], yours.host, number)
            number += 1
            with monkeypatch.context() as patch:
                patch.delenv("OLLAMA_HOST", raising=False)
                if by_environment:
                    patch.setenv("OLLAMA_HOST", yours.host)
                code = execute(short)
            may_be = {ExitCode.DONE} | ({ExitCode.GATE_NOT_MET} if GATES & set(words) else set())
            assert code in may_be, f"{words}\nran as {short}\n{capsys.readouterr().err}"


def test_commands_of_other_programs_are_there() -> None:
    makefile, project = (ROOT / name for name in ("Makefile", "pyproject.toml"))
    targets = re.findall(r"^([a-z-]+):", makefile.read_text("utf-8"), re.MULTILINE)
    extras = re.findall(r"^(\w+) = \[", project.read_text("utf-8"), re.MULTILINE)
    shown = [words for page in PAGES for snippet in snippets(page) for words in commands(snippet)]
    for words in shown:
        match words:
            case ["make", target]:
                assert target in targets
            case ["python", "-m", module, *_]:
                assert find_spec(module)
            case ["pip", "install", what]:
                assert what.removeprefix("mutagym[").removesuffix("]") in extras
            case _:
                assert words[0] in ("mutagym", *NOT_RUN), words
