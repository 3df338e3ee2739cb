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
CODE = """
import pathlib
pathlib.Path({canary!r}).touch()
def f(*args):
    return 1.0
"""


class Trap:
    """What a stranger's run would make a command do."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "executed"
        self.code = folder / "stranger.py"
        self.code.write_text(CODE.format(canary=str(self.canary)))
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
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    made = Trap(tmp_path)
    yield made
    made.close()


@pytest.fixture
def theirs(trained_run: Path, tmp_path: Path) -> Path:
    """A training of somebody else."""
    return Path(shutil.copytree(trained_run, tmp_path / "theirs"))


@pytest.fixture(scope="session")
def evaluated(
    trained_run: Path, simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    few = ("--episodes", "3", "--baselines", "noop", "--save-transitions")
    host = ("--ollama-host", simulator.host)
    assert say("eval", "-m", trained_run, "--run-dir", folder, *host, *few) == 0
    return folder


@pytest.fixture
def their_evaluation(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "evaluation"))


def say(*arguments: str | Path) -> int:
    return execute([str(argument) for argument in arguments])


def change(folder: Path, key: str, value: object) -> None:
    """Set a key of config.toml."""
    folder.mkdir(exist_ok=True)
    config = folder / "config.toml"
    before = config.read_text().splitlines() if config.exists() else []
    kept = [line for line in before if line.partition(" = ")[0] != key]
    config.write_text("\n".join([*kept, f"{key} = {json.dumps(value)}", ""]))


FEW = ("--episodes", "2", "--fit-calls", "70")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "--resume", "RUN", "--ollama-host", "HOST"),
    "eval -p": ("eval", "-p", "RUN", "--ollama-host", "HOST", *FEW),
    "eval -m": ("eval", "-p", "noop", "-m", "RUN", "--ollama-host", "HOST", *FEW),
    "ask": ("ask", "--policy", "RUN", "--ollama-host", "HOST", QUERY),
    "proxy": ("proxy", "RUN", "--ollama-host", "HOST"),
    "replay": ("replay", "RUN"),
    "rescore": ("rescore", "RUN", "--reward", "keyword"),
    "report": ("report", "RUN", "-o", "page.html"),
}
"""What is done with a stranger's training, on a host of one's own."""


def attack(
    trap: Trap, run: Path, host: str, capsys: Capture, command: tuple[str, ...]
) -> tuple[int, str]:
    """Run a command on a run that is an attack; its exit code and its last line on stderr."""
    capsys.readouterr()
    code = say(*(part.replace("RUN", str(run)).replace("HOST", host) for part in command))
    lines = capsys.readouterr().err.splitlines()
    trap.check()
    assert code in {0, 2}
    assert sum(line.startswith("mutagym: ") for line in lines) == (code == 2)
    assert all(len(line) < 2000 for line in lines)
    return code, lines[-1] if lines else ""


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
OF_POLICY = ("mutators", "encoder", "world")
OF_MISSION = ("mutators", "encoder", "reward", "judge-rubric")
READ: Mapping[str, tuple[str, ...]] = {
    "train": tuple(SETTINGS),
    "eval -p": (*OF_MISSION, "world"),
    "eval -m": OF_MISSION,
    "ask": (*OF_MISSION, "world", "faults"),
    "proxy": OF_POLICY,
    "replay": OF_MISSION,
}
"""What each command takes over from a training."""


@pytest.mark.parametrize("command", READ)
def test_what_a_training_names_is_not_used(
    trap: Trap, theirs: Path, simulator: EmbeddedServer, capsys: Capture, command: str
) -> None:
    for key in READ[command]:
        change(theirs, key, trap.fill(SETTINGS[key]))
    code, line = attack(trap, theirs, simulator.host, capsys, COMMANDS[command])
    assert code == 2
    assert all(f"--{key} " in line for key in READ[command]), line
    assert "name each by a flag of your own" in line


@pytest.mark.parametrize("command", ["train", "eval -p", "ask", "proxy"])
def test_no_host_that_a_run_names_is_called_and_none_stands_in_for_it(
    trap: Trap, theirs: Path, capsys: Capture, command: str
) -> None:
    bare = tuple(part for part in COMMANDS[command] if part not in {"--ollama-host", "HOST"})
    for scheme in ("http://", "openai:http://"):
        change(theirs, "ollama-host", [f"{scheme}{trap.host}"])
        code, line = attack(trap, theirs, "", capsys, bare)
        assert (code, f"hosts (--ollama-host {scheme}{trap.host})" in line) == (2, True)


@pytest.mark.parametrize("command", ["train", "eval -p", "eval -m", "ask", "replay"])
def test_the_queries_of_a_run_are_those_in_its_folder(
    trap: Trap, theirs: Path, simulator: EmbeddedServer, capsys: Capture, command: str
) -> None:
    change(theirs, "queries", str(trap.file))
    change(theirs, "prompt-column", "there is none")
    if command == "train":
        change(theirs, "num-env-steps", 256)
    code, line = attack(trap, theirs, simulator.host, capsys, COMMANDS[command])
    assert code == 0, line


SEARCHES: list[tuple[str, dict[str, object]]] = [
    ("evolve", {"scorer": "{code}:f", "task": "{file}", "seed-prompt": ["{file}"]}),
    ("select", {"evaluate": "{code}:f", "mutators": ["{code}:shout"], "prompts": ["{file}"]}),
    ("optimize", {"encoder": "{code}", "ollama-host": ["http://{host}"]}),
    ("eval", {"policy": ["class={code}:P"], "baselines": ["{file}"], "faults": "{file}"}),
]


@pytest.mark.parametrize(("command", "settings"), SEARCHES)
def test_what_another_run_names_is_not_used(
    trap: Trap, tmp_path: Path, capsys: Capture, command: str, settings: dict[str, object]
) -> None:
    for key, value in settings.items():
        change(tmp_path / "theirs", key, trap.fill(value))
    code, line = attack(trap, tmp_path / "theirs", "", capsys, (command, "--resume", "RUN"))
    assert code == 2
    assert all(f"--{key} " in line for key in settings), line


def test_what_the_missions_of_an_evaluation_name_is_not_used(
    trap: Trap, their_evaluation: Path, simulator: EmbeddedServer, capsys: Capture
) -> None:
    path = their_evaluation / "missions.json"
    own = {key: trap.fill(SETTINGS[key]) for key in ("mutators", "reward", "judge-rubric")}
    own["queries"] = str(trap.file)
    missions = json.loads(path.read_text())
    path.write_text(json.dumps({name: mission | own for name, mission in missions.items()}))
    for key in ("guard-queries", "queries"):
        change(their_evaluation, key, str(trap.file))
    change(their_evaluation, "mission", [str(trap.file)])
    command = ("eval", "--resume", "RUN", "--ollama-host", "HOST")
    code, line = attack(trap, their_evaluation, simulator.host, capsys, command)
    assert code == 2
    assert all(f"--{key} " in line for key in ("mutators", "reward", "judge-rubric")), line


# --- what its files hold ------------------------------------------------------


class Touch:
    """What leaves the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.canary,)


def pickled_checkpoint(run: Path, trap: Trap) -> None:
    content = io.BytesIO()
    torch.save({"format": 3, "learner": Touch(trap.canary)}, content)
    whole = sha256(content.getvalue()).digest() + content.getvalue()
    (run / "checkpoints" / "last.pt").write_bytes(whole)


def pickled_weights(run: Path, trap: Trap) -> None:
    torch.save({"w": Touch(trap.canary)}, run / "policy.safetensors")


def huge_header(run: Path, _trap: Trap) -> None:
    (run / "policy.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def triggers(run: Path, trap: Trap) -> None:
    with contextlib.closing(sqlite3.connect(run / "replies.sqlite")) as database, database:
        database.execute(
            "CREATE TRIGGER evil AFTER INSERT ON replies BEGIN "
            f"SELECT writefile('{trap.canary}', 'x'), load_extension('{trap.code}'); END"
        )


def brackets(name: str) -> Callable[[Path, Trap], None]:
    def replace(run: Path, _trap: Trap) -> None:
        (run / name).write_text("[" * 10**5)

    return replace


def link(name: str) -> Callable[[Path, Trap], None]:
    def replace(run: Path, trap: Trap) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(trap.file)

    return replace


def pipe(name: str) -> Callable[[Path, Trap], None]:
    def replace(run: Path, _trap: Trap) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return replace


EACH = ("train", "eval -p", "replay", "rescore", "report")
FILES_THAT_ATTACK: Mapping[str, tuple[Callable[[Path, Trap], None], tuple[str, ...]]] = {
    "pickled checkpoint": (pickled_checkpoint, ("train", "replay")),
    "pickled weights": (pickled_weights, ("ask", "replay")),
    "huge header": (huge_header, ("ask", "replay")),
    "triggers": (triggers, ("train", "replay", "report")),
    "brackets in queries": (brackets("queries.json"), EACH),
    "brackets in parts": (brackets("parts.json"), ("train", "replay")),
    "link for transitions": (link("transitions.jsonl"), EACH),
    "link for checkpoint": (link("checkpoints/last.pt"), ("train", "replay")),
    "link for page": (link("report.html"), ("report",)),
    "pipe for replies": (pipe("replies.sqlite"), EACH),
    "pipe for config": (pipe("config.toml"), ("ask",)),
    "pipe for summary": (pipe("summary.json"), ("rescore", "report", "replay")),
}


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name, (_, commands) in FILES_THAT_ATTACK.items() for command in commands],
)
def test_a_file_of_a_run_is_read_as_data_or_refused_in_one_line(
    trap: Trap, theirs: Path, simulator: EmbeddedServer, capsys: Capture, name: str, command: str
) -> None:
    FILES_THAT_ATTACK[name][0](theirs, trap)
    attack(trap, theirs, simulator.host, capsys, COMMANDS[command])
    with contextlib.suppress(UserError):
        load_policy(theirs).choose(QUERY)
    trap.check()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("queries.json", '{"sets": [{"train": 1}], "missions": {"small": 0}}'),
        ("missions.json", '{"small": 1}'),
        ("missions.json", '{"small": {"where": {"a": 1}}}'),
        ("missions.json", '{"small": {"there-is-none": "x"}}'),
    ],
)
def test_a_damaged_copy_of_an_evaluation_is_one_line(
    trap: Trap,
    their_evaluation: Path,
    simulator: EmbeddedServer,
    capsys: Capture,
    name: str,
    content: str,
) -> None:
    (their_evaluation / name).write_text(content)
    command = ("eval", "--resume", "RUN", "--ollama-host", "HOST")
    code, line = attack(trap, their_evaluation, simulator.host, capsys, command)
    assert (code, name in line or "there-is-none" in line) == (2, True)


def test_an_encoder_that_a_run_names_is_not_loaded_by_its_word(trap: Trap, theirs: Path) -> None:
    (theirs.parent / "model").mkdir()
    change(theirs, "encoder", str(theirs.parent / "model"))
    with pytest.raises(UserError, match="which may hold code: pass encoder="):
        load_policy(theirs)
    with pytest.raises(UserError, match="holds no sentence-transformers model"):
        load_policy(theirs, trusted=True)
    trap.check()


# --- what the user names, or trusts -------------------------------------------


def test_what_is_named_again_is_used_and_with_trust_the_first_line_says_what(
    trap: Trap, theirs: Path, simulator: EmbeddedServer, capsys: Capture
) -> None:
    change(theirs, "reward", f"{trap.code}:f")
    asked = ("ask", "--policy", theirs, QUERY)
    capsys.readouterr()
    assert say(*asked, "--trust-run") == 0
    first, *_ = capsys.readouterr().err.splitlines()
    names = f"code (--reward {trap.code}:f) and hosts (--ollama-host {simulator.host})"
    assert first == f"trusted: the run '{theirs}' uses {names}"
    assert trap.canary.exists()
    config = theirs.parent / "mine.toml"
    config.write_text(f'ollama-host = ["{simulator.host}"]\n')
    assert say(*asked, "--reward", f"{trap.code}:f", "--config", config) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"config: '{config}' brings hosts (--ollama-host {simulator.host})"


def test_ollama_host_is_called_in_place_of_a_runs_host(
    trap: Trap,
    theirs: Path,
    simulator: EmbeddedServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(theirs, "ollama-host", [trap.host])
    monkeypatch.setenv("OLLAMA_HOST", simulator.host)
    capsys.readouterr()
    assert say("ask", "--policy", theirs, QUERY) == 0
    note = f"note: OLLAMA_HOST is called, not the hosts of the run '{theirs}'"
    assert note in capsys.readouterr().err.splitlines()
    trap.check()


@pytest.mark.parametrize("again", ["--reward", "-m"])
def test_the_code_of_a_mission_is_used_where_a_flag_or_a_file_of_ones_own_says_the_same(
    trap: Trap, simulator: EmbeddedServer, tmp_path: Path, again: str
) -> None:
    mission = tmp_path / "mine.toml"
    mission.write_text(f'name = "mine"\nencoder = "hashing"\nreward = "{trap.code}:f"\n')
    named = ("--reward", f"{trap.code}:f") if again == "--reward" else ()
    few = ("-p", "noop", "--baselines", "", "--episodes", "2", "--target-model", "sim-target")
    host = ("--ollama-host", simulator.host)
    assert say("eval", "-m", mission, *few, *host, *named, "--run-dir", tmp_path / "new") == 0
    trap.canary.unlink()
    resumed = ("eval", "--resume", tmp_path / "new", *host)
    assert say(*resumed) == 2
    trap.check()
    if again == "--reward":
        mission.unlink()
    assert say(*resumed, *(named or ("-m", mission))) == 0


def test_trust_is_a_flag_for_a_run_alone(trap: Trap, tmp_path: Path, capsys: Capture) -> None:
    change(tmp_path / "theirs", "scorer", f"{trap.code}:f")
    change(tmp_path / "theirs", "trust-run", value=True)
    code, line = attack(trap, tmp_path / "theirs", "", capsys, ("evolve", "--resume", "RUN"))
    assert (code, "rust-run" in line) == (2, True)
    assert say("train", "--trust-run") == 2
    assert "none is named" in capsys.readouterr().err


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
