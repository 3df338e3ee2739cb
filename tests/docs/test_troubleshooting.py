"""Every message of docs/troubleshooting.md is printed where the page says so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from cli.main import execute
from records.run_folder import RunFolder
from simulator.process import EmbeddedServer
from simulator.settings import Settings
from tests.docs.reader import ROOT

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))
MESSAGES = {
    title: "".join(re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).splitlines()
    for title, text in SECTIONS.items()
}
TRAIN = "train --ollama-host HOST --encoder hashing --num-steps 8 --num-env-steps 128 --run-dir new"
MODEL = f"{TRAIN} --target-model sim-model"
ASK = "ask --policy mine --ollama-host HOST --mutator-model sim-mutator --num-ctx 4096 kill"
ERROR = {"kind": "status", "rate": 1.0}
CASES: dict[str, tuple[str, ...]] = {
    "Connection refused": (MODEL.replace("HOST", "http://127.0.0.1:9"),),
    "The model is not pulled": (f"{TRAIN} --target-model llama3.2",),
    "No model is named": (TRAIN,),
    "An unknown flag or key": (f"{MODEL} --num-stepz 3",),
    "A query file without a column of prompts": (f"{MODEL} --queries odd.csv",),
    "The folder is in use": (MODEL.replace("new", "busy"),),
    "The run names a host, code or a file": ("ask --policy mine kill",),
    "Only one slot": (
        MODEL.replace("HOST", "openai:HOST/v1").replace("8 --num-env", "2 --num-env"),
    ),
    "The server is busy": (f"{ASK} --call-attempts 1",),
    "The server fails, or is out of memory": (f"{ASK} --call-attempts 1",),
    "A call takes too long": (f"{MODEL} --call-timeout-s 0.5",),
    "The server went away": (f"{MODEL} --max-outage 1",),
    "Many steps are unscored": (f"{MODEL} --call-attempts 1 --always-reword",),
    "A reply is cut": (
        f"{ASK} --target-model sim-target --num-predict 3",
        f"{ASK} --target-model sim-thinker --num-predict 3 --think on --think-budget 1",
    ),
    "A prompt is too long": (f"{ASK.replace('4096', '2')} --target-model sim-target",),
}
"""The commands that print the messages under a heading."""
FAULTS = {
    "The server is busy": {"status": 503},
    "The server fails, or is out of memory": {"status": 500},
    "Many steps are unscored": {"status": 500},
}
OUTAGES: dict[str, tuple[Literal["hang", "drop"], Literal["all", "calls"]]] = {
    "A call takes too long": ("hang", "all"),
    "The server went away": ("drop", "calls"),
}


@pytest.fixture(scope="module")
def one_slot() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(Settings(slots=1, time_scale=0.02)) as server:
        yield server


@pytest.mark.parametrize("title", list(CASES))
def test_a_message_is_what_is_printed(
    title: str,
    one_slot: EmbeddedServer,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run, "mine")
    Path("odd.csv").write_text("number,colour\n1,red\n", encoding="utf-8")
    one_slot.set_faults([ERROR | FAULTS[title]] if title in FAULTS else [])
    if title in OUTAGES:
        mode, at = OUTAGES[title]
        one_slot.set_outage(mode, at=at)
    with RunFolder(Path("busy")):
        for command in CASES[title]:
            execute(command.replace("HOST", one_slot.host).split())
    one_slot.end_outage()
    out = "".join(capsys.readouterr())
    for message in MESSAGES[title]:
        assert re.search(".*".join(map(re.escape, message.split("…"))), out), f"{message}\n{out}"


def test_every_message_is_provoked() -> None:
    assert {title for title, messages in MESSAGES.items() if messages} == set(CASES)
