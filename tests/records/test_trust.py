"""A run folder from a stranger is data: it runs no code, calls no host and opens no file elsewhere.

Each attack is harmless: its code would touch a canary, its host is a socket that listens, its file
a pipe that notices who opens it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from cli.evolve import EvolveConfig
from cli.main import execute
from cli.optimize import OptimizeConfig
from evaluation.config import EvalConfig
from records.errors import UserError
from records.settings import as_texts, flags_of, resolved
from records.trust import DATA, FILES, SAFE_VALUES, kind_of, untrusted_flags
from search.selection import SelectConfig
from simulator.process import EmbeddedServer
from train import load_policy
from train.config import TrainConfig

Capture = pytest.CaptureFixture[str]
QUERY = "How do I kill a stuck process?"


class Stranger:
    """A training of somebody else, the trap that it sets, and the user's commands on it."""

    def __init__(self, folder: Path, trained: Path, host: str, capsys: Capture) -> None:
        self.run = Path(shutil.copytree(trained, folder / "theirs"))
        self.user_host, self._capsys = host, capsys
        self.canary, self.code = folder / "executed", folder / "stranger.py"
        touch = f"import pathlib\npathlib.Path({str(self.canary)!r}).touch()\n"
        self.code.write_text(touch + "def f(*args):\n    return 1.0\n")
        self.file = folder / "secret.txt"
        os.mkfifo(self.file)
        self._opened = threading.Event()
        self._watch = threading.Thread(target=self._notice)
        self._watch.start()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _notice(self) -> None:
        with self.file.open("w"):
            self._opened.set()

    def fill(self, value: object) -> Any:
        """The value with the places of the trap in it."""
        text = json.dumps(value)
        for name, place in (("{code}", self.code), ("{file}", self.file), ("{host}", self.host)):
            text = text.replace(name, str(place))
        return json.loads(text)

    def name(self, settings: Mapping[str, object], *, alone: bool = False) -> None:
        """Set keys of config.toml; `alone`: it has no others."""
        config = self.run / "config.toml"
        lines = [] if alone else config.read_text().splitlines()
        kept = [line for line in lines if line.partition(" = ")[0] not in settings]
        named = [f"{key} = {json.dumps(self.fill(value))}" for key, value in settings.items()]
        config.write_text("\n".join([*kept, *named, ""]))

    def say(self, *words: str) -> tuple[int, list[str]]:
        """A command's exit code and its lines on stderr."""
        self._capsys.readouterr()
        words = tuple(
            word.replace("RUN", str(self.run)).replace("HOST", self.user_host) for word in words
        )
        return execute(words), self._capsys.readouterr().err.splitlines()

    def attack(self, *words: str) -> tuple[int, str]:
        """The exit code of a command that does nothing of it, and its last line on stderr."""
        code, lines = self.say(*words)
        self.check()
        assert code in {0, 2}
        assert sum(line.startswith("mutagym: ") for line in lines) == (code == 2)
        assert all(len(line) < 2000 for line in lines)
        return code, lines[-1] if lines else ""

    def check(self) -> None:
        """Nothing of it was done."""
        assert not self.canary.exists()
        assert not self._opened.is_set()
        with pytest.raises(BlockingIOError):
            self._socket.accept()

    def close(self) -> None:
        reader = os.open(self.file, os.O_RDONLY | os.O_NONBLOCK)  # ends the watch
        self._watch.join()
        os.close(reader)
        self._socket.close()


@pytest.fixture
def stranger(
    trained_run: Path,
    simulator: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> Iterator[Stranger]:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    made = Stranger(tmp_path, trained_run, simulator.host, capsys)
    yield made
    made.close()


FEW = "--ollama-host HOST --episodes 2 --fit-calls 71"
COMMANDS = {
    "train": "train --resume RUN --ollama-host HOST",
    "eval -p": f"eval -p RUN {FEW}",
    "eval -m": f"eval -p noop -m RUN {FEW}",
    "ask": "ask --policy RUN why? --ollama-host HOST",
    "proxy": "proxy RUN --ollama-host HOST",
    "replay": "replay RUN",
    "rescore": "rescore RUN --reward keyword",
    "report": "report RUN -o page.html",
}
"""What is done with a stranger's training, on a host of one's own."""

# --- what config.toml names ---------------------------------------------------

SETTINGS: Mapping[str, object] = {
    "mutators": ["noop", "{code}:shout"],
    "encoder": "{code}",
    "reward": "{code}:f",
    "judge-rubric": "{file}",
    "world": "{file}",
    "faults": "{file}",
    "judge-accuracy": "{file}",
    "ray-address": "{host}",
    "cache": "{file}",
    "json": "{file}",
}
OF_MISSION = ("mutators", "encoder", "reward", "judge-rubric")
READ: Mapping[str, tuple[str, ...]] = {
    "train": tuple(SETTINGS),
    "eval -p": (*OF_MISSION, "world"),
    "eval -m": OF_MISSION,
    "ask": (*OF_MISSION, "world", "faults"),
    "proxy": ("mutators", "encoder", "world"),
    "replay": OF_MISSION,
}
"""What each command takes over from a training."""


@pytest.mark.parametrize("command", READ)
def test_what_a_training_names_is_not_used(stranger: Stranger, command: str) -> None:
    stranger.name({key: SETTINGS[key] for key in READ[command]})
    code, line = stranger.attack(*COMMANDS[command].split())
    assert code == 2
    assert all(f"--{key} " in line for key in READ[command]), line
    assert "name each by a flag of your own" in line


@pytest.mark.parametrize("command", ["train", "eval -p", "ask", "proxy"])
def test_no_host_that_a_run_names_is_called_and_none_stands_in_for_it(
    stranger: Stranger, command: str
) -> None:
    for scheme in ("http://", "openai:http://"):
        stranger.name({"ollama-host": [f"{scheme}{stranger.host}"]})
        code, line = stranger.attack(*COMMANDS[command].replace("--ollama-host HOST", "").split())
        assert (code, f"hosts (--ollama-host {scheme}{stranger.host})" in line) == (2, True)


@pytest.mark.parametrize("command", ["train", "eval -p", "eval -m", "ask", "replay"])
def test_the_queries_of_a_run_are_those_in_its_folder(stranger: Stranger, command: str) -> None:
    stranger.name({"queries": "{file}", "prompt-column": "there is none"})
    code, line = stranger.attack(*COMMANDS[command].split())
    assert code == 0, line


SEARCHES: list[tuple[str, dict[str, object]]] = [
    ("evolve", {"scorer": "{code}:f", "task": "{file}", "seed-prompt": ["{file}"]}),
    ("select", {"evaluate": "{code}:f", "mutators": ["{code}:shout"], "prompts": ["{file}"]}),
    ("optimize", {"encoder": "{code}", "ollama-host": ["http://{host}"]}),
    ("eval", {"policy": ["class={code}:P"], "baselines": ["{file}"], "faults": "{file}"}),
]


@pytest.mark.parametrize(("command", "settings"), SEARCHES)
def test_what_another_run_names_is_not_used(
    stranger: Stranger, command: str, settings: dict[str, object]
) -> None:
    stranger.name(settings, alone=True)
    code, line = stranger.attack(command, "--resume", "RUN")
    assert code == 2
    assert all(f"--{key} " in line for key in settings), line


def test_what_the_missions_of_an_evaluation_name_is_not_used(
    stranger: Stranger, tmp_path: Path
) -> None:
    few = "--episodes 3 --baselines noop --ollama-host HOST"
    code, _ = stranger.say(*f"eval -m RUN --run-dir {tmp_path}/evaluation {few}".split())
    assert code == 0
    stranger.run = tmp_path / "evaluation"
    again = ("eval", "--resume", "RUN", "--ollama-host", "HOST")
    path = stranger.run / "missions.json"
    own = {key: SETTINGS[key] for key in ("mutators", "reward", "judge-rubric")}
    missions = json.loads(path.read_text())
    named = {name: each | own | {"queries": "{file}"} for name, each in missions.items()}
    path.write_text(json.dumps(stranger.fill(named)))
    stranger.name({"guard-queries": "{file}", "queries": "{file}", "mission": ["{file}"]})
    code, line = stranger.attack(*again)
    assert code == 2
    assert all(f"--{key} " in line for key in own), line
    for damage in ('{"small": 1}', '{"s": {"where": {"a": 1}}}', '{"s": {"there-is-none": "x"}}'):
        path.write_text(damage)
        code, line = stranger.attack(*again)
        assert (code, "missions.json" in line or "there-is-none" in line) == (2, True)


# --- what its files hold ------------------------------------------------------


class Touch:
    """What leaves the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.canary,)


def pickled_checkpoint(theirs: Stranger) -> None:
    content = io.BytesIO()
    torch.save({"format": 3, "learner": Touch(theirs.canary)}, content)
    whole = sha256(content.getvalue()).digest() + content.getvalue()
    (theirs.run / "checkpoints" / "last.pt").write_bytes(whole)


def pickled_weights(theirs: Stranger) -> None:
    torch.save({"w": Touch(theirs.canary)}, theirs.run / "policy.safetensors")


def huge_header(theirs: Stranger) -> None:
    (theirs.run / "policy.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def triggers(theirs: Stranger) -> None:
    database = sqlite3.connect(theirs.run / "replies.sqlite")
    with contextlib.closing(database), database:
        database.execute(
            "CREATE TRIGGER evil AFTER INSERT ON replies BEGIN "
            f"SELECT writefile('{theirs.canary}', 'x'), load_extension('{theirs.code}'); END"
        )


def brackets(name: str) -> Callable[[Stranger], object]:
    return lambda theirs: (theirs.run / name).write_text("[" * 10**5)


def link(name: str) -> Callable[[Stranger], None]:
    def replace(theirs: Stranger) -> None:
        (theirs.run / name).unlink(missing_ok=True)
        (theirs.run / name).symlink_to(theirs.file)

    return replace


def pipe(name: str) -> Callable[[Stranger], None]:
    def replace(theirs: Stranger) -> None:
        (theirs.run / name).unlink()
        os.mkfifo(theirs.run / name)

    return replace


ATTACKS: Mapping[str, tuple[Callable[[Stranger], object], tuple[str, ...]]] = {
    "pickled checkpoint": (pickled_checkpoint, ("train", "replay")),
    "pickled weights": (pickled_weights, ("ask", "replay")),
    "huge header": (huge_header, ("ask", "replay")),
    "triggers": (triggers, ("train", "replay", "report")),
    "brackets in queries": (brackets("queries.json"), ("eval -p", "replay", "rescore", "report")),
    "brackets in parts": (brackets("parts.json"), ("train",)),
    "link for transitions": (link("transitions.jsonl"), ("train", "replay", "rescore", "report")),
    "link for checkpoint": (link("checkpoints/last.pt"), ("train",)),
    "link for page": (link("report.html"), ("report",)),
    "pipe for replies": (pipe("replies.sqlite"), ("eval -p", "replay", "report")),
    "pipe for config": (pipe("config.toml"), ("ask",)),
}
"""What is done to files, and the commands that read them."""


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name, (_, commands) in ATTACKS.items() for command in commands],
)
def test_a_file_of_a_run_is_read_as_data_or_refused_in_one_line(
    stranger: Stranger, name: str, command: str
) -> None:
    ATTACKS[name][0](stranger)
    stranger.attack(*COMMANDS[command].split())
    with contextlib.suppress(UserError):
        load_policy(stranger.run).choose(QUERY)
    stranger.check()


def test_an_encoder_that_a_run_names_is_not_loaded_by_its_word(
    stranger: Stranger, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    stranger.name({"encoder": str(tmp_path / "model")})
    with pytest.raises(UserError, match="which may hold code: pass encoder="):
        load_policy(stranger.run)
    with pytest.raises(UserError, match="holds no sentence-transformers model"):
        load_policy(stranger.run, trusted=True)
    stranger.check()


# --- what the user names, or trusts -------------------------------------------


def test_what_is_named_again_is_used_and_with_trust_the_first_line_says_what(
    stranger: Stranger, tmp_path: Path
) -> None:
    stranger.name({"reward": "{code}:f"})
    own = ("--reward", f"{stranger.code}:f")
    asked = ("ask", "--policy", "RUN", QUERY)
    code, lines = stranger.say(*asked, "--trust-run")
    names = f"code (--reward {stranger.code}:f) and hosts (--ollama-host {stranger.user_host})"
    assert (code, lines[0]) == (0, f"trusted: the run '{stranger.run}' uses {names}")
    assert stranger.canary.exists()
    config = tmp_path / "mine.toml"
    config.write_text(f'ollama-host = ["{stranger.user_host}"]\n')
    code, lines = stranger.say(*asked, *own, "--config", str(config))
    brings = f"config: '{config}' brings hosts (--ollama-host {stranger.user_host})"
    assert (code, lines[0]) == (0, brings)


def test_ollama_host_is_called_in_place_of_a_runs_host(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger.name({"ollama-host": ["{host}"]})
    monkeypatch.setenv("OLLAMA_HOST", stranger.user_host)
    code, lines = stranger.say("ask", "--policy", "RUN", QUERY)
    note = f"note: OLLAMA_HOST is called, not the hosts of the run '{stranger.run}'"
    assert (code, note in lines) == (0, True)
    stranger.check()


@pytest.mark.parametrize("again", ["--reward", "-m"])
def test_the_code_of_a_mission_is_used_where_a_flag_or_a_file_of_ones_own_says_the_same(
    stranger: Stranger, tmp_path: Path, again: str
) -> None:
    mission = tmp_path / "mine.toml"
    mission.write_text(f'name = "mine"\nencoder = "hashing"\nreward = "{stranger.code}:f"\n')
    own = ["--reward", f"{stranger.code}:f"] if again == "--reward" else ["-m", str(mission)]
    first = f"eval -m {mission} -p noop --episodes 2 --target-model sim-target --run-dir new"
    few = [*first.split(), "--baselines", "", "--ollama-host", "HOST"]
    assert stranger.say(*few, *(own if again == "--reward" else ()))[0] == 0
    stranger.canary.unlink()
    resumed = ("eval", "--resume", "new", "--ollama-host", "HOST")
    assert stranger.attack(*resumed)[0] == 2
    if again == "--reward":
        mission.unlink()
    assert stranger.say(*resumed, *own)[0] == 0


def test_trust_is_a_flag_for_a_run_alone(stranger: Stranger) -> None:
    stranger.name({"scorer": "{code}:f", "trust-run": True}, alone=True)
    code, line = stranger.attack("evolve", "--resume", "RUN")
    assert (code, "rust-run" in line) == (2, True)
    code, line = stranger.attack("train", "--trust-run")
    assert (code, "none is named" in line) == (2, True)


# --- the table ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "value", "kind"),
    [
        ("mutators", "mine:shout", "code"),
        ("encoder", "someone/a-model", "code"),
        ("encoder", "hashing/../there", "code"),
        ("encoder", "all-MiniLM-L6-v2\n", "code"),
        ("policy", "llm:hf.co/some/model", None),
        ("policy", "class=os.system", "code"),
        ("policy", "run=there", "files"),
        ("ollama-host", "", "hosts"),
        ("ollama-host", "smollm2", None),
        ("seed-prompt", "Answer in one word.", None),
        ("seed-prompt", "notes.txt", "files"),
        ("queries", "5", "files"),
        ("lr", "0.5", None),
        ("target-system", "You are /etc/passwd.", None),
        ("a-flag-of-the-future", "text", "files"),
    ],
)
def test_what_a_setting_is(flag: str, value: str, kind: str | None) -> None:
    assert kind_of(flag, value) == kind


def flags(config: type) -> Iterator[tuple[str, Any]]:
    """The flags of a config and of those in it, with their types."""
    hints, names = get_type_hints(config), flags_of(config)
    for field in fields(config):
        if is_dataclass(hints[field.name]):
            yield from flags(hints[field.name])
        elif field.name in names:
            yield names[field.name], hints[field.name]


def takes_text(hint: Any) -> bool:
    return hint in {str, Path} or any(map(takes_text, get_args(hint)))


@pytest.mark.parametrize(
    "config", [TrainConfig, EvalConfig, EvolveConfig, SelectConfig, OptimizeConfig]
)
def test_every_flag_that_takes_a_text_is_in_the_table_and_no_default_is_code(config: type) -> None:
    known = DATA | FILES | SAFE_VALUES.keys() | {"seed-prompt"}
    assert {flag for flag, hint in flags(config) if takes_text(hint)} <= known
    defaults = {flag: as_texts(value) for flag, value in resolved(config()).items()}
    assert untrusted_flags(defaults) == ""
