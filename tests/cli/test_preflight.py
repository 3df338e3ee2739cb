"""The preflight checks of a run: its own questions, and a line for what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from tests.content_filter import ANSWER, QUERIES, host_of, said, server_that

Capture = pytest.CaptureFixture[str]

LONG = "Here is a long text about gardens. " * 60 + "How do I water one?"


def flags(folder: Path, host: str, *more: str) -> tuple[str, ...]:
    """An evaluation of seven queries by `noop`, of which the first ones are asked at once."""
    (folder / "queries.txt").write_text("\n".join(QUERIES))
    return (
        *("eval", "--ollama-host", host, "--target-model", "m"),
        *("--queries", str(folder / "queries.txt")),
        *("--encoder", "hashing:64", "--held-out", "0.9", "--max-steps", "1", "--baselines="),
        *("--run-dir", str(folder / "run"), *more),
    )


@pytest.mark.parametrize("command", ["eval", "select"])
def test_what_keeps_all_calls_from_an_answer_ends_a_command_at_once(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    with server_that(lambda _: (401, {"error": {"message": "no key"}})) as server:
        words = flags(tmp_path, host_of(server, "openai"), "-p", "noop")
        if command == "select":
            alone = ("--models", "m", "--selector", "brute_force")
            words = ("select", *words[1:3], *alone, "--run-dir", str(tmp_path / "run"))
        assert execute(words) == 2
        assert len(server.bodies) == 1
    assert "OPENAI_API_KEY" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("", "exceeds the context of 'm' at {host} (600): raise --num-ctx, or lower --num-predict"),
        ("--think on", "first call to the target failed: BadRequestError: model 'm' at '{host}'"),
        (
            "-p fixed:paraphrase",
            "the first call to the mutator failed: CutReplyError: model 'm' at",
        ),
        ("--reward judge --judge-model m", "the first verdict failed: BadReplyError: the judge's"),
        ("-p fixed:shorten --intent-judge --judge-model m", "the first verdict failed: BadReply"),
        (
            "--mutators noop,add_politeness -p random --intent-judge --judge-model m",
            "the first verdict failed: BadReply",
        ),
    ],
)
def test_what_is_wrong_is_a_line_before_the_run_begins(
    more: str, line: str, tmp_path: Path, capsys: Capture
) -> None:
    """A model of a small context that cannot think, rewords in thoughts, and is no judge."""
    about = {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 600}]}

    thinks = "--intent-judge" not in more  # which is asked of rewordings

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("think"):
            return 400, {"error": "m does not support thinking"}
        return 200, said("<think>Hm" if thinks and len(body.get("messages", ())) > 1 else ANSWER)

    with server_that(lambda _: (200, {}), about=about, of_body=answer) as server:
        given = flags(tmp_path, server.host, "-p", "noop", *more.split())
        (tmp_path / "queries.txt").write_text("\n".join([*QUERIES, LONG]))
        execute(given)
        err = capsys.readouterr().err.splitlines()
    found = next(k for k, each in enumerate(err) if line.format(host=server.host) in each)
    begins = next(k for k, each in enumerate(err) if each.startswith("run folder"))
    assert found < begins


def test_what_is_learned_of_a_server_is_a_setting_of_the_run(
    tmp_path: Path, capsys: Capture
) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "seed" in body:
            return 400, {"error": {"message": "Unsupported parameter: 'seed'"}}
        if "max_tokens" in body:
            words = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": words}}
        return 200, said(ANSWER)

    with server_that(lambda _: (200, {}), of_body=answer) as server:
        assert execute(flags(tmp_path, host_of(server, "openai"), "-p", "noop")) == 0
        first = len(server.bodies)
        config = tmp_path / "run" / "config.toml"
        assert tomllib.loads(config.read_text())["request-field"] == [
            "max_tokens=max_completion_tokens",
            "seed=",
        ]
        assert (
            "refused seed (\"Unsupported parameter: 'seed'\"): mutagym leaves it out from now on"
            in capsys.readouterr().err
        )
        again = ("eval", "--config", str(config), "--run-dir", str(tmp_path / "again"))
        assert execute(again) == 0
        assert len(server.bodies) == 2 * first - 2
