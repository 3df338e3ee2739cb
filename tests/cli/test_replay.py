"""A run is played again from its log of replies alone, bit for bit; where it is not, the line is named."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from simulator.process import EmbeddedServer
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import PASSES, WORLD, interrupted_at, lines, read, resume, summary, train

SHAPE = ("--num-processes", "4", "--num-steps", "8", *PASSES)
SMALL = (*WORLD, *SHAPE, "--encoder", "hashing:16", "--num-env-steps", "96")
HASHES = ("transitions_sha256", "weights_sha256")


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that asked for a server would ask there, where none is."""
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def whole(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run from start to end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(simulator.host, folder, *SMALL) == 0
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files below a folder: when they were written, and what they hold."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def replay(folder: Path, *flags: str) -> dict[str, Any]:
    """What is said of a replay that is equal, and leaves the run as it was."""
    before, said = contents(folder), folder.parent / "replay.json"
    assert execute(("replay", str(folder), "--json", str(said), *flags)) == 0
    assert contents(folder) == before
    found = read(said.parent, said.name)
    assert found["equal"]
    return found


def hashes(replayed: dict[str, Any]) -> list[str]:
    """Those of the replay, of one run."""
    return [each["replayed"] for each in replayed["compared"][:2]]


def of_run(folder: Path) -> list[str]:
    return [summary(folder)[name] for name in HASHES]


def differs(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    """The last line of a replay that comes out otherwise."""
    capsys.readouterr()
    assert execute(("replay", str(folder))) == 1
    return capsys.readouterr().err.strip().splitlines()[-1]


def edit(folder: Path, statement: str, values: Sequence[object] = ()) -> None:
    """Change the log of replies."""
    database = sqlite3.connect(folder / "replies.sqlite", isolation_level=None)
    database.execute(statement, values)
    database.close()


def test_a_run_is_replayed_without_a_server_and_the_replay_is_a_run_like_it(
    simulator: EmbeddedServer, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = simulator.stats()["calls"]
    (found,) = replay(whole, "--run-dir", str(tmp_path / "again"))["replays"]
    assert simulator.stats()["calls"] == asked
    assert hashes(found) == of_run(whole) == of_run(tmp_path / "again")
    assert "equal, bit for bit" in capsys.readouterr().out
    told = ("env_steps", "llm_calls", "completion_tokens", "success_rate_end", "simulated")
    assert [summary(tmp_path / "again")[name] for name in told] == [summary(whole)[name] for name in told]
    (again,) = replay(tmp_path / "again")["replays"]
    assert hashes(again) == of_run(whole)


FEW = "few.txt"
SHAPES = {
    "auto, with an audit and looks at kept queries": (
        *("--algorithm", "auto", "--bandit-env-steps", "32", "--kept", "0.2", "--num-env-steps", "64"),
        *("--queries", FEW, "--mutators", "paraphrase,noop"),
        *("--encoder", "hashing:16", "--audit-judge", "sim-judge", "--audit-sample", "4"),
    ),
    "a bandit, a judge, an encoder on the server, a warm target, one call at a time": (
        *("--algorithm", "thompson", "--encoder", "ollama:sim-embed", "--target-temperature", "0.7"),
        *("--reward", "judge", "--judge-model", "sim-judge", "--no-batching", "--num-env-steps", "48"),
    ),
}


@pytest.mark.parametrize("flags", SHAPES.values(), ids=SHAPES)
def test_runs_of_every_shape_are_replayed(
    simulator: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FEW).write_text("".join(f"How do I open a box of kind {kind}?\n" for kind in range(20)))
    assert train(simulator.host, tmp_path / "run", *WORLD, *SHAPE, *flags) == 0
    (found,) = replay(tmp_path / "run")["replays"]
    assert hashes(found) == of_run(tmp_path / "run")


def test_each_seed_is_replayed(simulator: EmbeddedServer, tmp_path: Path) -> None:
    assert train(simulator.host, tmp_path / "run", *SMALL, "--seeds", "2", "--seed", "3") == 0
    found = replay(tmp_path / "run", "--run-dir", str(tmp_path / "again"))["replays"]
    folders = [tmp_path / "run" / f"seed-{each['seed']}" for each in found]
    assert [folder.name for folder in folders] == ["seed-3", "seed-4"]
    assert [hashes(each) for each in found] == [of_run(folder) for folder in folders]
    assert of_run(tmp_path / "again" / "seed-4") == of_run(folders[1])


def test_steps_that_a_failed_call_made_unscored_come_out_so(
    simulator: EmbeddedServer, tmp_path: Path
) -> None:
    """Also where an equal call of another step has its reply in the log, and where the run was resumed."""
    folder = tmp_path / "run"
    simulator.set_faults([{"kind": "status", "rate": 0.3}])
    try:
        interrupted_at(simulator.host, folder, 44, *SMALL, "--call-attempts", "1")
    finally:
        simulator.set_faults([])
    assert any(line["unscored"] for line in lines(folder))
    (found,) = replay(folder)["replays"]
    assert hashes(found) == of_run(folder)
    assert found["unscored"] == sum(line["unscored"] for line in lines(folder))
    assert resume(folder) == 0
    (found,) = replay(folder)["replays"]
    assert hashes(found) == of_run(folder)
    assert found["steps"] == 96


def test_a_run_that_stopped_itself_is_replayed_to_there(simulator: EmbeddedServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulator.set_faults([{"kind": "status", "rate": 1.0}])
    try:
        assert train(simulator.host, folder, *SMALL, "--call-attempts", "1") == 1
    finally:
        simulator.set_faults([])
    (found,) = replay(folder)["replays"]
    assert hashes(found) == of_run(folder)


@pytest.mark.parametrize("kept", [32, 44, 64, 94])
def test_a_run_that_was_killed_is_replayed_as_far_as_its_whole_rows_go(copy: Path, kept: int) -> None:
    """There is no summary; here no checkpoint either, as after a kill in the first rollout."""
    written = (copy / "transitions.jsonl").read_text().splitlines(keepends=True)
    (copy / "transitions.jsonl").write_text("".join(written[:kept]) + written[kept][:50])
    for name in ("summary.json", "policy.safetensors", "checkpoints/last.pt"):
        (copy / name).unlink()
    (found,) = replay(copy)["replays"]
    assert found["steps"] == kept // 4 * 4
    assert [each["what"] for each in found["compared"]] == ["transitions_sha256"]


def test_a_run_on_a_server_that_never_answers_alike_is_replayed(tmp_path: Path) -> None:
    """Each reply holds the number of the call: an equal call would get another one."""
    numbers = count()

    def answers(body: dict[str, Any]) -> tuple[int, object]:
        if "model" not in body:
            return 200, {"models": [{"model": "m:latest", "name": "m:latest"}]}
        number = next(numbers)
        if "input" in body:
            rows = [[1.0, 1 / len(text), 1 / (number + 1)] for text in body["input"]]
            return 200, {"model": "m", "embeddings": rows}
        refusal = "I'm sorry, but I can't help with that."
        text = (
            f"Here is how it goes, number {number}: first open it, then read it." if number % 3 else refusal
        )
        message = {"role": "assistant", "content": text}
        return 200, SAID | ({"message": message} if "messages" in body else {"response": text})

    folder = tmp_path / "run"
    small = (*SHAPE, "--encoder", "ollama:m", "--num-env-steps", "64", "--intent-threshold", "0.1")
    with ScriptedServer(answers) as server:
        assert train(server.host, folder, "--target-model", "m", *small) == 0
        assert train(server.host, tmp_path / "other", "--target-model", "m", *small) == 0
    assert of_run(folder) != of_run(tmp_path / "other")
    (found,) = replay(folder)["replays"]
    assert hashes(found) == of_run(folder)


def test_a_reply_that_is_another_or_missing_is_named_by_the_first_line_that_differs(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number, line = next((k, each) for k, each in enumerate(lines(copy), 1) if k > 40)
    like = (f"%{json.dumps(line['reply'], ensure_ascii=False)[1:-1]}%",)
    edit(
        copy,
        "UPDATE replies SET reply = replace(reply, 'text\": \"', 'text\": \"So. ') WHERE reply LIKE ?",
        like,
    )
    said = differs(capsys, copy)
    first = next(k for k, each in enumerate(lines(copy), 1) if each["reply"] == line["reply"])
    assert first <= number
    assert f"line {first} of transitions.jsonl does not come out as it did: reply" in said
    edit(copy, "DELETE FROM replies WHERE reply LIKE ?", like)
    said = differs(capsys, copy)
    assert f"line {first} of transitions.jsonl cannot be played: " in said
    assert "NotInLogError: replies.sqlite has no reply to this call to model 'sim-target'" in said


def test_lines_and_weights_that_were_changed_are_told(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = summary(copy)
    (copy / "summary.json").write_text(json.dumps(told | {"weights_sha256": "0" * 64}))
    assert f"weights_sha256: the run has {'0' * 64}, the replay {told['weights_sha256']}" in differs(
        capsys, copy
    )
    written = lines(copy)
    written[50]["reward"] += 0.5
    (copy / "transitions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    assert "line 51 of transitions.jsonl does not come out as it did: reward changed" in differs(capsys, copy)


def test_a_policy_file_with_other_weights_is_told(
    simulator: EmbeddedServer, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is what `ask`, `proxy` and `eval -p` use."""
    assert train(simulator.host, tmp_path / "other", *SMALL, "--seed", "1") == 0
    shutil.copyfile(tmp_path / "other" / "policy.safetensors", copy / "policy.safetensors")
    theirs = summary(tmp_path / "other")["weights_sha256"]
    assert f"weights in policy.safetensors: the run has {theirs}, the replay " in differs(capsys, copy)


@pytest.mark.parametrize("torn", [False, True])
def test_lines_that_were_cut_off_are_told(
    copy: Path,
    torn: bool,  # noqa: FBT001
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = (copy / "transitions.jsonl").read_text().splitlines(keepends=True)
    (copy / "transitions.jsonl").write_text("".join(written[:64]) + (written[64][:50] if torn else ""))
    (copy / "checkpoints" / "last.pt").unlink()
    assert execute(("replay", str(copy))) == 2
    assert "has 64 whole lines, and summary.json counts 96" in capsys.readouterr().err


def test_a_summary_without_its_hashes_is_the_users_error(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = summary(copy)
    del told["weights_sha256"]
    (copy / "summary.json").write_text(json.dumps(told))
    assert execute(("replay", str(copy))) == 2
    assert "has no weights_sha256" in capsys.readouterr().err


def test_what_a_users_function_prints_does_not_spoil_json(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def said(query, reply):\n    print('mine')\n    return 'answered'\n")
    flags = (*WORLD, *SHAPE, "--encoder", "hashing:16", "--num-env-steps", "32", "--reward", f"{code}:said")
    assert train(simulator.host, tmp_path / "run", *flags) == 0
    capsys.readouterr()
    for command in ("replay", "rescore"):
        own = ("--reward", f"{code}:said")
        assert execute((command, str(tmp_path / "run"), *own, "--json", "-")) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["run"] == str(tmp_path / "run")
        assert "mine" in said.err


def test_what_cannot_be_replayed_is_the_users_error(
    whole: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        capsys.readouterr()
        assert execute(["replay", *map(str, arguments)]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        return said[-1]

    assert "RUN names" in refused(tmp_path / "nowhere")
    assert "not empty" in refused(whole, "--run-dir", copy)
    before = contents(whole)
    for flag, name in (("--run-dir", "again"), ("--json", "summary.json")):
        assert f"{flag} names" in (said := refused(whole, flag, whole / name))
        assert "in the folder of the run" in said
    assert contents(whole) == before
    with (whole / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use by another process" in refused(whole)
    (copy / "replies.sqlite").unlink()
    assert "without its replies" in refused(copy)
    (copy / "transitions.jsonl").write_text("")
    assert "no whole row of transitions" in refused(copy)
    (copy / "config.toml").write_text('selector = "grid"\n')
    assert "no run of `mutagym train`" in refused(copy)


def test_a_run_of_a_stranger_executes_nothing_unless_it_is_trusted(
    simulator: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, marker = tmp_path / "run", tmp_path / "executed"
    code = tmp_path / "theirs.py"
    code.write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nfrom mutators.registry import by_rule\n"
        "@by_rule\ndef shout(query, earlier, seed):\n    'Say it louder.'\n    return query.upper()\n"
    )
    flags = ("--mutators", f"paraphrase,{code}:shout", "--num-env-steps", "32", "--encoder", "hashing:16")
    assert train(simulator.host, folder, *WORLD, *SHAPE, *flags) == 0
    marker.unlink()
    assert execute(("replay", str(folder))) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "code (--mutators" in said
    assert simulator.host not in said  # nobody is called, so no host is in question
    assert not marker.exists()
    (found,) = replay(folder, "--trust-run", "--run-dir", str(tmp_path / "again"))["replays"]
    assert hashes(found) == of_run(folder)
    assert simulator.host not in (tmp_path / "again" / "config.toml").read_text()
