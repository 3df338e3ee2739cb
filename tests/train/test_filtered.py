"""A training on a server whose content filter ends some of the replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import execute
from tests.content_filter import ANSWER, QUERIES, host_of, said, server_that
from tests.runs import PASSES, lines, read, summary, train

STEPS = ("--num-processes", "2", "--num-steps", "16", "--num-env-steps", "64", *PASSES)


def test_filtered_replies_are_counted_apart_and_come_again_when_the_run_is_replayed_or_rescored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(text: str) -> tuple[int, Any]:
        return 200, said(ANSWER, "content_filter" if "garlic" in text or "whip" in text else "stop")

    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    run = tmp_path / "run"
    flags = ("--target-model", "m", "--encoder", "hashing:64", "--queries", str(tmp_path / "queries.txt"))
    with server_that(answer) as server:
        assert train(host_of(server, "ollama"), run, *flags, *STEPS) == 0
    outcomes = [line["outcome"] for line in lines(run)]
    filtered = outcomes.count("filtered")
    assert 0 < filtered == summary(run)["filtered_steps"] < len(outcomes)
    assert f"{filtered} replies were ended by a content filter" in capsys.readouterr().out
    last = lines(run, "metrics.jsonl")[-1]
    assert last["outcome/filtered_rate"] == outcomes[32:].count("filtered") / 32
    assert last["outcome/filtered_rate"] + last["outcome/answered_rate"] == 1

    assert execute(("replay", str(run))) == 0
    assert execute(("rescore", str(run), "--json", str(tmp_path / "rescored.json"))) == 0
    told = read(tmp_path, "rescored.json")
    for rates in (told["in_the_run"], told["rescored"]):
        assert rates["refusal"]["rate"] == 0
        assert rates["success"]["rate"] == pytest.approx(outcomes.count("answered") / len(outcomes))
    assert execute(("report", str(run), "-o", str(tmp_path / "page.html"))) == 0
    assert "Ended by a content filter" in (tmp_path / "page.html").read_text()
