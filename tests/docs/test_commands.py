"""Every command of the documents runs, page by page, against the simulator: `make docs-test`."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.main import ExitCode, execute
from simulator.process import EmbeddedServer
from tests.docs.snippets import DOCUMENTS, ROOT, Command, commands, snippets
from tests.docs.stand_ins import CANNOT_RUN, put_files, short

GATES = {"--guard-queries", "--fail-under"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(
    re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
TOLD = {
    page: [each for found in snippets(page) if found.language == "sh" for each in commands(found)]
    for page in DOCUMENTS
}


def cannot_run(command: Command) -> list[str]:
    """What CANNOT_RUN calls this command."""
    return [begin for begin in CANNOT_RUN if f"{' '.join(command.words)} ".startswith(f"{begin} ")]


def runs_here(command: Command) -> bool:
    """Whether it is a command of ours that can run."""
    return command.words[0] == "mutagym" and not cannot_run(command)


PAGES = [page for page, told in TOLD.items() if any(map(runs_here, told))]


@pytest.mark.docs
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
    put_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("BROWSER", "true")  # of `report --open`: a program that does nothing
    number = 0
    for snippet in snippets(page):
        if snippet.title:
            Path(snippet.title).write_text(snippet.text, encoding="utf-8")
        for command in commands(snippet) if snippet.language == "sh" else ():
            if not runs_here(command):
                continue
            words, environment = short(command.words[1:], yours.host, number)
            number += 1
            with monkeypatch.context() as patch:
                patch.delenv("OLLAMA_HOST", raising=False)
                for name, value in environment.items():
                    patch.setenv(name, value)
                patch.setattr(sys, "stdin", io.StringIO(command.piped or ""))
                code = execute(words)
            may_be = {ExitCode.DONE} | ({ExitCode.GATE_NOT_MET} if GATES & set(words) else set())
            assert code in may_be, f"{command.text}\nran as {words}\n{capsys.readouterr().err}"


def test_a_command_of_another_program_is_there() -> None:
    for command in (each for told in TOLD.values() for each in told):
        program, *rest = command.words
        if program == "mutagym" or cannot_run(command):
            continue
        match program, rest:
            case "make", [target, *_]:
                assert target in TARGETS, command.text
            case "python", ["-m", module, *_]:
                assert find_spec(module), command.text
            case "pip", ["install", what]:
                assert (
                    what.removeprefix("mutagym[").removesuffix("]")
                    in PROJECT["project"]["optional-dependencies"]
                )
            case _:
                pytest.fail(f"nothing says how to check this command: {command.text}")


def test_what_cannot_run_stands_in_the_documents() -> None:
    met = {begin for told in TOLD.values() for each in told for begin in cannot_run(each)}
    assert met == set(CANNOT_RUN)
