"""A run folder from a stranger executes nothing, and sends nothing to a host that the user did not name.

Each attack is harmless: code would touch a marker file, and a host would count the requests that it gets.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sqlite3
import threading
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.main import execute
from records.json_lines import LinesHash
from records.trust import MARK, is_made_here
from simulator.process import EmbeddedServer

QUERY = "How do I kill a stuck process?"


class Marked:
    """What leaves the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there once a stranger's code was run."""
    return tmp_path / "executed"


@pytest.fixture
def code(tmp_path: Path, marker: Path) -> Path:
    """A stranger's Python file."""
    path = tmp_path / "stranger.py"
    path.write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "def f(*args):\n    return 1.0\n"
        "from mutators.registry import by_rule\n"
        "@by_rule\ndef shout(query, earlier, seed):\n    'Say it louder.'\n    return query.upper()\n"
    )
    return path


class Listener:
    """A stranger's host: a real server on this machine that counts the requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(self.path)
                self.send_error(500)

            do_POST = do_HEAD = do_GET  # noqa: N815 - as http.server calls them

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


@pytest.fixture
def stranger(trained_run: Path, tmp_path: Path) -> Path:
    """A run that somebody else made."""
    folder = tmp_path / "theirs"
    shutil.copytree(trained_run, folder)
    (folder / MARK).unlink()
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A run of some command that somebody else made, of which there is the config.toml alone."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    return folder


def change(folder: Path, **settings: object) -> None:
    """Set keys of a config.toml, with another word before them where they are there."""
    config = folder / "config.toml"
    before = config.read_text().splitlines() if config.exists() else []
    named = {key.replace("_", "-"): json.dumps(value) for key, value in settings.items()}
    kept = [line for line in before if line.partition(" = ")[0] not in named]
    config.write_text("\n".join([*kept, *(f"{key} = {value}" for key, value in named.items()), ""]))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a command that refuses."""
    capsys.readouterr()
    code = execute([str(argument) for argument in arguments])
    out, errors = capsys.readouterr()
    assert (code, out) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("mutagym: ")
    return str(line)


# --- pickles -----------------------------------------------------------------


def pickled_checkpoint(marker: Path, *, zipped: bool) -> bytes:
    """A checkpoint with the right hash that would touch the marker."""
    content = io.BytesIO()
    torch.save({"format": 2, "learner": Marked(marker)}, content, _use_new_zipfile_serialization=zipped)
    return sha256(content.getvalue()).digest() + content.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_in_a_checkpoint_is_not_executed(
    stranger: Path,
    marker: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    *,
    zipped: bool,
) -> None:
    (stranger / "checkpoints" / "last.pt").write_bytes(pickled_checkpoint(marker, zipped=zipped))
    line = refused(capsys, "train", "--resume", stranger, "--ollama-host", simulator.host)
    assert "last.pt' is damaged" in line
    assert not marker.exists()


def test_pickles_in_policy_zip_are_never_read(
    stranger: Path, marker: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(stranger / "policy.zip", "w") as file:
        for name in ("data", "policy.pth", "pytorch_variables.pth", "policy.optimizer.pth"):
            file.writestr(name, pickle.dumps(Marked(marker)))
    assert execute(["ask", "--policy", str(stranger), "--ollama-host", simulator.host, QUERY]) == 0
    (stranger / "policy.safetensors").unlink()
    line = refused(capsys, "ask", "--policy", stranger, "--ollama-host", simulator.host, QUERY)
    assert "earlier version" in line
    assert not marker.exists()


@pytest.mark.parametrize("command", ["ask", "eval"])
def test_a_pickle_in_the_place_of_the_weights_is_not_executed(
    stranger: Path, marker: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    torch.save({"w": Marked(marker)}, stranger / "policy.safetensors")
    asked = [QUERY] if command == "ask" else ["--episodes", "2", "--run-dir", str(stranger.parent / "new")]
    flags = ("--policy", stranger, "--ollama-host", simulator.host, *asked)
    capsys.readouterr()
    assert execute([command, *map(str, flags)]) == 2
    assert "is damaged, or no policy of a run" in capsys.readouterr().err.splitlines()[-1]
    assert not marker.exists()


# --- code --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "setting", "value"),
    [
        (("train", "--resume"), "mutators", ["noop", "{code}:shout"]),
        (("train", "--resume"), "reward", "{code}:f"),
        (("ask", QUERY, "--policy"), "mutators", ["noop", "{code}:shout"]),
        (("ask", QUERY, "--policy"), "reward", "{code}:f"),
        (("ask", QUERY, "--policy"), "encoder", "{code}"),
        (("eval", "-p"), "mutators", ["noop", "{code}:shout"]),
        (("eval", "-p", "random", "-m"), "mutators", ["noop", "{code}:shout"]),
        (("eval", "-p", "random", "-m"), "reward", "{code}:f"),
    ],
)
def test_code_that_a_training_run_names_is_not_executed(
    stranger: Path,
    code: Path,
    marker: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    setting: str,
    value: object,
) -> None:
    change(stranger, **{setting: json.loads(json.dumps(value).replace("{code}", str(code)))})
    line = refused(capsys, *command, stranger, "--ollama-host", simulator.host)
    assert f"names code (--{setting} '{code}" in line
    assert "--trust-run" in line
    assert not marker.exists()


@pytest.mark.parametrize(
    ("command", "setting", "value"),
    [
        ("eval", "policy", ["class={code}:P"]),
        ("eval", "baselines", ["class={code}:P"]),
        ("eval", "mission", ["name=a,mutators={code}:shout"]),
        ("evolve", "scorer", "{code}:f"),
        ("select", "scorer", "{code}:f"),
        ("select", "evaluate", "{code}:f"),
        ("select", "mutators", ["{code}:shout"]),
        ("optimize", "scorer", "{code}:f"),
        ("optimize", "encoder", "{code}"),
    ],
)
def test_code_that_another_run_names_is_not_executed(
    bare: Path,
    code: Path,
    marker: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    setting: str,
    value: object,
) -> None:
    change(bare, **{setting: json.loads(json.dumps(value).replace("{code}", str(code)))})
    assert f"code (--{setting} " in refused(capsys, command, "--resume", bare)
    assert not marker.exists()


def test_a_setting_by_another_name_is_seen_too(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("dataset", "task", "Task"):
        (bare / "config.toml").write_text(f'{key} = "/secret.jsonl"\n')
        line = refused(capsys, "evolve", "--resume", bare)
        assert "files (--task '/secret.jsonl')" in line or "nknown option" in line
    (bare / "config.toml").write_text('ollama_host = ["http://127.0.0.1:1"]\n')
    assert "hosts (--ollama-host 'http://127.0.0.1:1')" in refused(capsys, "evolve", "--resume", bare)


# --- hosts -------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "openai:"])
@pytest.mark.parametrize("command", [("train", "--resume"), ("ask", QUERY, "--policy"), ("eval", "-p")])
def test_a_host_that_a_run_names_gets_no_request(
    stranger: Path,
    listener: Listener,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    scheme: str,
) -> None:
    change(stranger, ollama_host=[scheme + listener.host])
    assert f"hosts (--ollama-host '{scheme}{listener.host}')" in refused(capsys, *command, stranger)
    assert listener.requests == []


@pytest.mark.parametrize("command", ["eval", "evolve", "select", "optimize"])
def test_a_host_that_another_run_names_gets_no_request(
    bare: Path, listener: Listener, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    change(bare, ollama_host=[listener.host])
    assert "hosts (--ollama-host" in refused(capsys, command, "--resume", bare)
    assert listener.requests == []


def test_the_users_own_host_is_asked_in_the_place_of_the_runs(
    stranger: Path,
    listener: Listener,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    change(stranger, ollama_host=[listener.host])
    mine = tmp_path / "mine.toml"
    mine.write_text(f'ollama-host = ["{simulator.host}"]\n')
    asked = ["ask", "--policy", str(stranger), QUERY]
    assert execute([*asked, "--ollama-host", simulator.host]) == 0
    assert execute([*asked, "--config", str(mine)]) == 0
    assert all(line.startswith("each call has ") for line in capsys.readouterr().err.splitlines())
    monkeypatch.setenv("OLLAMA_HOST", simulator.host)
    assert execute(asked) == 0
    line, _ = capsys.readouterr().err.splitlines()
    assert line.startswith("note: OLLAMA_HOST is called, not the hosts of the run")
    assert listener.requests == []


# --- files -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (("train", "--resume"), "queries"),
        (("train", "--resume"), "judge-rubric"),
        (("train", "--resume"), "judge-accuracy"),
        (("train", "--resume"), "world"),
        (("train", "--resume"), "faults"),
        (("train", "--resume"), "cache"),
        (("train", "--resume"), "json"),
        (("train", "--resume"), "run-dir"),
        (("ask", QUERY, "--policy"), "judge-rubric"),
        (("ask", QUERY, "--policy"), "queries"),
        (("eval", "-p"), "queries"),
        (("eval", "-p", "random", "-m"), "judge-rubric"),
        (("evolve", "--resume"), "task"),
        (("evolve", "--resume"), "seed-prompt"),
        (("select", "--resume"), "prompts"),
        (("optimize", "--resume"), "seed-prompt"),
        (("eval", "--resume"), "policy"),
        (("eval", "--resume"), "mission"),
    ],
)
def test_a_file_that_a_run_names_is_neither_read_nor_written(
    stranger: Path,
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    setting: str,
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    if command[0] in {"evolve", "select", "optimize"} or command == ("eval", "--resume"):
        (stranger / "config.toml").unlink()
    many = setting in {"seed-prompt", "prompts", "policy", "mission"}
    change(stranger, **{setting: [str(secret)] if many else str(secret)})
    line = refused(capsys, *command, stranger, "--ollama-host", simulator.host)
    assert f"files (--{setting} '{secret}')" in line
    assert secret.read_text() == "x"


@pytest.mark.parametrize(
    ("setting", "value", "kind"),
    [
        ("encoder", "hashing ", "code"),
        ("encoder", "all-MiniLM-L6-v2\n", "code"),
        ("reward", " judge", "code"),
        ("ollama-host", [" embedded"], "hosts"),
    ],
)
def test_a_name_of_ours_with_a_blank_beside_it_is_not_ours(
    stranger: Path, capsys: pytest.CaptureFixture[str], setting: str, value: object, kind: str
) -> None:
    change(stranger, **{setting: value})
    assert f"{kind} (--{setting} " in refused(capsys, "ask", "--policy", stranger, QUERY)


def test_a_link_in_a_strangers_run_is_not_written_through(
    stranger: Path, simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("x\n" * 100)
    (stranger / "transitions.jsonl").unlink()
    (stranger / "transitions.jsonl").symlink_to(mine)
    line = refused(capsys, "train", "--resume", stranger, "--ollama-host", simulator.host)
    assert "transitions.jsonl -> " in line
    assert mine.read_text() == "x\n" * 100


# --- one's own runs, and those that are trusted ------------------------------


def test_ones_own_run_is_used_and_gone_on_with_without_a_question(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(trained_run, folder)
    new = tmp_path / "new"
    assert execute(["train", "--resume", str(folder)]) == 0
    assert execute(["ask", "--policy", str(folder), QUERY]) == 0
    few = ["--episodes", "2", "--baselines", "noop", "--run-dir", str(new)]
    assert execute(["eval", "-p", str(folder), "-m", str(folder), *few]) == 0
    assert execute(["eval", "--resume", str(new)]) == 0
    assert "trusted:" not in capsys.readouterr().err
    assert is_made_here(folder)
    assert is_made_here(new)


def test_ones_own_run_whose_config_was_changed_asks(
    trained_run: Path, tmp_path: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "edited"
    shutil.copytree(trained_run, folder)
    change(folder, call_attempts=2)
    line = refused(capsys, "ask", "--policy", folder, QUERY)
    assert "or its config.toml was changed since" in line
    assert simulator.host in line


def test_a_mark_that_is_copied_from_a_run_of_ones_own_fits_no_other(
    stranger: Path, trained_run: Path, listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    change(stranger, ollama_host=[listener.host])
    shutil.copy(trained_run / MARK, stranger / MARK)
    assert "was not made here" in refused(capsys, "ask", "--policy", stranger, QUERY)
    assert listener.requests == []


def test_a_strangers_config_as_one_of_ones_own_is_a_strangers(
    stranger: Path, listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    change(stranger, ollama_host=[listener.host])
    assert "was not made here" in refused(capsys, "train", "--config", stranger / "config.toml")
    assert listener.requests == []


def test_a_trusted_run_is_used_whole_and_the_first_line_says_what_of_it(
    stranger: Path, code: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(stranger, reward=f"{code}:f", judge_accuracy="/there.json", prompt_column="a\nb")
    asked = ("ask", "--policy", str(stranger), "--trust-run", QUERY, "--prompt-column", "prompt")
    assert execute(asked) == 0
    assert marker.exists()
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"trusted: the run '{stranger}' uses code (--reward '{code}:f') and hosts (")


def test_a_trusted_run_that_was_gone_on_with_is_ones_own(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["train", "--resume", str(stranger), "--trust-run"]) == 0
    assert capsys.readouterr().err.startswith("trusted: ")
    assert execute(["train", "--resume", str(stranger)]) == 0
    assert "trusted:" not in capsys.readouterr().err


def test_what_is_named_again_for_a_mission_of_a_strangers_is_used(
    stranger: Path, simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "q.csv"
    queries.write_text("\n".join(["prompt", *(f"How do I cut {k} loaves?" for k in range(8))]))
    change(stranger, queries=str(queries))
    flags = ["--ollama-host", simulator.host, "--baselines", "", "--episodes", "2"]
    evaluated = ["eval", "-p", "noop", "-m", str(stranger), *flags, "--run-dir", str(tmp_path / "new")]
    assert "files (--queries" in refused(capsys, *evaluated)
    assert execute([*evaluated, "--queries", str(queries), "--encoder", "hashing"]) == 0


def test_trust_can_stand_in_no_file(bare: Path, code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(bare, scorer=f"{code}:f", trust_run=True)
    assert "rust-run" in refused(capsys, "evolve", "--resume", bare)


@pytest.mark.parametrize("command", ["train", "ask", "judge"])
def test_trust_without_a_run_is_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert "none is named" in refused(capsys, command, "--trust-run")


# --- data that is poisoned ---------------------------------------------------

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "a = " + "[" * 10**5),
        ("config.toml", ".".join(["a"] * 10**5) + " = 1"),
        ("config.toml", f"lr = {HUGE}"),
        ("config.toml", "# " + "x" * 2**24),
        ("config.toml", "[train]\nlr = 1"),
        ("config.toml", "lr = 2020-01-01"),
        ("parts.json", "[]"),
        ("parts.json", "[" * 10**5),
        ("parts.json", f'{{"a": {HUGE}}}'),
        ("parts.json", '{"a": "' + "x" * 2**24 + '"}'),
        ("queries.json", "[]"),
        ("queries.json", '{"train_sha256": 1}'),
        ("queries.json", "[" * 10**5),
        ("replies.sqlite", "no database, but a text that is long enough to be one" * 100),
    ],
)
def test_a_poisoned_file_is_one_line_that_names_it(
    stranger: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
) -> None:
    for extra in ("-wal", "-shm"):
        (stranger / f"{name}{extra}").unlink(missing_ok=True)
    (stranger / name).write_text(content)
    line = refused(capsys, "train", "--resume", stranger, "--ollama-host", simulator.host)
    assert name in line or "the queries are not those" in line
    assert len(line) < 1000


def change_state(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a checkpoint anew, with its hash."""
    path = run / "checkpoints" / "last.pt"
    state = torch.load(io.BytesIO(path.read_bytes()[32:]), weights_only=True)
    change(state)
    content = io.BytesIO()
    torch.save(state, content)
    path.write_bytes(sha256(content.getvalue()).digest() + content.getvalue())


@pytest.mark.parametrize(
    "poison",
    [
        {"reward": 10**15, "lane": "a"},
        {"reward_parts": []},
        {"not_hashed": None},
        {"outcome": "won"},
        {"row": -1},
        {"reply": 1},
        {"original_query": ["a"]},
    ],
)
def test_a_poisoned_transition_is_one_line_that_names_it(
    stranger: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str], poison: dict[str, Any]
) -> None:
    path = stranger / "transitions.jsonl"
    first, *rest = map(json.loads, path.read_text().splitlines())
    poisoned = LinesHash()
    for each in (lines := [first | poison, *rest]):
        poisoned.update(each)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    change_state(stranger, lambda state: state["lines"].update(sha256=poisoned.hexdigest()))
    line = refused(capsys, "train", "--resume", stranger, "--ollama-host", simulator.host)
    assert "line 1 of" in line
    assert "transitions.jsonl" in line


@pytest.mark.parametrize(
    "poison",
    [
        lambda state: state["learner"]["counters"].update(policy="x"),
        lambda state: state["learner"]["counters"].update(num_timesteps=-1),
        lambda state: state["learner"]["policy"].clear(),
        lambda state: state["learner"].update(lanes=[]),
        lambda state: state["learner"].update(lanes=[{"episode": {}}] * 4),
        lambda state: state["recorder"].update(running=5),
        lambda state: state["recorder"].update(rows=10**30),
        lambda state: state["lines"].update(path="/etc/passwd"),
        lambda state: state.update(learner=[]),
        lambda state: state.update(format=torch.zeros(3)),
    ],
)
def test_a_poisoned_checkpoint_is_one_line_that_names_it(
    stranger: Path,
    simulator: EmbeddedServer,
    capsys: pytest.CaptureFixture[str],
    poison: Callable[[dict[str, Any]], object],
) -> None:
    change_state(stranger, poison)
    capsys.readouterr()
    assert execute(["train", "--resume", str(stranger), "--ollama-host", simulator.host]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "last.pt" in line


@pytest.mark.parametrize(
    ("command", "setting", "value", "says"),
    [
        ("ask", "encoder", "hashing:8", "trained on observations"),
        ("ask", "mutators", ["noop"], "chooses among 14 mutators"),
        ("eval", "mutators", ["noop"], "chooses among 14 mutators"),
    ],
)
def test_weights_that_are_of_another_config_are_one_line(
    stranger: Path,
    simulator: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    setting: str,
    value: object,
    says: str,
) -> None:
    change(stranger, **{setting: value})
    asked = [QUERY] if command == "ask" else ["--episodes", "2", "--run-dir", str(tmp_path / "new")]
    capsys.readouterr()
    assert execute([command, "--policy", str(stranger), "--ollama-host", simulator.host, *asked]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_log_of_replies_loads_no_extension_and_calls_nothing_unsafe(
    stranger: Path, simulator: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stranger / "replies.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE replies")
        database.execute("CREATE VIEW replies AS SELECT load_extension('/there') AS key, 1 AS rowid")
    database.close()
    line = refused(capsys, "train", "--resume", stranger, "--ollama-host", simulator.host)
    assert "replies.sqlite' cannot be used" in line
