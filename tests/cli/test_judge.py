"""`mutagym judge`: completions are labelled, and compared with people's labels, if any."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics  # type: ignore[import-untyped]  # no types

from cli.main import execute
from scorers.agreement import agreement
from scorers.labels import REFUSAL_LABELS, REFUSALS, RefusalLabel, parse_label
from simulator.process import EmbeddedServer
from tests.runs import faults, read

Capture = pytest.CaptureFixture[str]
Row = dict[str, Any]
REFUSAL = "I'm sorry, but I can't help with that."
PART = (
    "I can't discuss the violent scenes, but broadly, the novel is about two brothers who quarrel."
)
ANSWER = (
    "To kill a Python process, find its number with ps and send it a signal with the kill command."
)


def written(path: Path, *rows: Row) -> Path:
    """A .jsonl or .csv file of these rows."""
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def labels_of(path: Path, *flags: str) -> list[tuple[str, str, str]]:
    """What `--out` holds: prompts, completions and labels."""
    out = path.parent / "out.csv"
    assert execute(("judge", str(path), "--out", str(out), *flags)) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [(row["prompt"], row["completion"], row["machine_label"]) for row in rows]


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line of a user's error."""
    capsys.readouterr()
    assert execute(("judge", *arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    said = [
        *((REFUSAL, "2_full_refusal"), (PART, "3_partial_refusal"), (ANSWER, "1_full_compliance")),
        *((ANSWER, "2_full_refusal"), (REFUSAL, "1_full_compliance")),
    ]
    rows = ({"Prompt": "How?", "completion": a, "label": "x", "final_label": b} for a, b in said)
    return written(tmp_path / "labelled.csv", *rows)


def test_the_agreement_with_people_is_written_and_shown(labelled: Path, capsys: Capture) -> None:
    assert execute(("judge", str(labelled), "--json", str(labelled.with_name("a.json")))) == 0
    found = read(labelled.parent, "a.json")
    assert found["labels"] == dict(zip((*REFUSAL_LABELS, "unscored"), (2, 1, 2, 0, 0), strict=True))
    assert found["confusion"] == [[1, 1], [1, 2]]
    assert found["sensitivity"] == found["recall"] == pytest.approx(2 / 3)
    assert (found["positives"], found["negatives"], found["unscored"]) == (3, 2, 0)
    out = capsys.readouterr().out
    assert "2 answered, 1 partly refused, 2 refused, 0 undetermined, 0 unscored" in out
    numbers = [f"{found[name]:.3f}" for name in ("precision", "recall", "f1", "accuracy", "kappa")]
    for row in (numbers, ["answered", "1", "1"], ["refused", "1", "2"]):
        assert row in [line.split() for line in out.splitlines()]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_columns_can_be_named(tmp_path: Path, ending: str) -> None:
    """All kinds of files are read as for --queries, see tests/envs/test_queries.py."""
    rows = [("A?", REFUSAL, "1"), ("B?", ANSWER, "0")]
    objects = (dict(zip(("asked", "said", "refuses"), row, strict=True)) for row in rows)
    path = written(tmp_path / f"rows.{ending}", *objects)
    names = "--prompt-column asked --completion-column SAID --label-column refuses"
    columns = names.split()
    found = labels_of(path, *columns, "--json", str(tmp_path / "a.json"))
    assert found == [("A?", REFUSAL, "refused"), ("B?", ANSWER, "answered")]
    assert read(tmp_path, "a.json")["f1"] == 1


PLAIN = {"prompt": "How?", "completion": "So."}


@pytest.mark.parametrize(
    ("row", "flags", "says"),
    [
        (PLAIN | {"label": "maybe"}, "", ["row 2", "'label'", "'maybe'"]),
        ({"prompt": "How?", "text": "So."}, "", ["'prompt', 'text'", "--completion-column"]),
        (PLAIN, "--label-column x", ["--label-column", "'x'"]),
        (PLAIN, "--out missing/a.csv", ["--out", "missing/a.csv"]),
        (PLAIN, "--out rows.csv", ["rows.csv", "is named twice"]),
        (PLAIN, "--reward jugde", ["jugde", "judge"]),
        (PLAIN, "--reward exact", ["exact", "expected refusal"]),
        ({"completion": "So."}, "--reward judge", ["--prompt-column"]),
    ],
)
def test_a_users_error_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    row: Row,
    flags: str,
    says: Sequence[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = written(tmp_path / "rows.csv", row).read_bytes()
    line = refused(capsys, "rows.csv", *flags.split())
    assert all(word in line for word in says), line
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("rows.csv", before)]


ASKED = {"role": "user", "content": "How?"}
MESSAGE = {"role": "assistant", "content": REFUSAL}
PARTS = [{"type": "text", "text": REFUSAL[:9]}, {"type": "text", "text": REFUSAL[9:]}]
REPLIES: list[tuple[object, str]] = [
    # What stands in a cell, and what it is taken for; "": for the refusal.
    (MESSAGE, ""),
    (MESSAGE | {"content": PARTS}, ""),
    (PARTS, ""),
    ({"message": MESSAGE, "done": True}, ""),
    ({"response": REFUSAL, "done": True}, ""),
    ({"choices": [{"message": MESSAGE}]}, ""),
    ({"status_code": 200, "body": {"choices": [{"text": REFUSAL}]}}, ""),
    ([ASKED, MESSAGE], ""),
    ([{"from": "human", "value": "How?"}, {"from": "gpt", "value": REFUSAL}], ""),
    ({"choices": [{"message": MESSAGE}] * 2}, "an object"),
    ({"tool_calls": []}, "an object"),
    ([REFUSAL], "a list"),
    ([MESSAGE, ASKED], "a list"),
    ([*PARTS, {"type": "image_url"}], "a list"),
    ("\ud800", "half of a surrogate pair"),
]


def test_a_reply_is_read_out_of_what_is_around_it_or_refused_by_its_row(
    tmp_path: Path, capsys: Capture
) -> None:
    for number, (reply, is_) in enumerate(REPLIES):
        path = written(tmp_path / f"{number}.jsonl", {"prompt": [ASKED], "reply": reply})
        if not is_:
            assert labels_of(path) == [("How?", REFUSAL, "refused")]
        else:
            line = refused(capsys, str(path))
            assert "row 1, column 'reply': expected text" in line
            assert line.endswith(f"got {is_}")


def test_thoughts_are_no_part_of_an_answer_and_what_is_missing_is_unscored(
    tmp_path: Path, capsys: Capture
) -> None:
    said = [f"<think>{REFUSAL}</think>{ANSWER}", f"(hm){REFUSAL}(/hm){ANSWER}", f"<think>{REFUSAL}"]
    rows: list[Row] = [*({"reply": each} for each in said), {"reply": None}, {"prompt": "How?"}]
    found = labels_of(written(tmp_path / "x.jsonl", *rows), "--thought-marks", "(hm)...(/hm)")
    assert [label for *_, label in found] == [*["answered"] * 2, *["unscored"] * 3]
    assert [text for _, text, _ in found] == [*said, "", ""]
    assert (
        "3 of 5 completions are missing or end before an answer: unscored"
        in capsys.readouterr().err
    )


def test_without_peoples_labels_the_labels_are_counted(tmp_path: Path, capsys: Capture) -> None:
    """Neither those that it wrote itself nor those that mean something else are people's."""
    path = written(tmp_path / "x.csv", {"question": "How?", "answer": ANSWER, "label": "safe"})
    assert "'safe' is no label" in refused(capsys, str(path))
    labels_of(path, "--label-column", "none")
    assert execute(("judge", str(tmp_path / "out.csv"))) == 0
    counted = "1 answered, 0 partly refused, 0 refused, 0 undetermined, 0 unscored\n"
    assert capsys.readouterr().out == 2 * counted


def test_a_judge_is_asked_once_and_what_it_cannot_say_is_unscored_and_in_no_rate(
    labelled: Path, simulator: EmbeddedServer, capsys: Capture
) -> None:
    judge = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", simulator.host)
    place = labelled.parent
    with faults(simulator, {"kind": "status", "rate": 1}):
        more = ("--call-attempts", "1", "--json", str(place / "a.json"))
        assert execute(("judge", str(labelled), *judge, *more)) == 1
    found = read(place, "a.json")
    assert (found["n"], found["unscored"]) == (0, 5)
    assert [found[key] for key in ("precision", "recall", "f1", "accuracy", "kappa")] == [None] * 5
    assert "unscored: 'How?': ServerFaultError" in capsys.readouterr().err
    before, cache = simulator.stats()["calls"], ("--cache", str(place / "cache"))
    first = labels_of(labelled, *judge, *cache)
    between = simulator.stats()["calls"]
    assert labels_of(labelled, *judge, *cache) == first
    assert before < between == simulator.stats()["calls"]


def test_labels_are_known_however_they_are_written() -> None:
    known: dict[object, RefusalLabel] = {
        **{label: label for label in REFUSAL_LABELS},
        "1_full_compliance": "answered",
        " Full Refusal": "refused",
        "NON-REFUSAL": "answered",
        "Unclear": "undetermined",
        True: "refused",
        0: "answered",
        "1": "refused",
    }
    assert {written: parse_label(written) for written in known} == known
    assert parse_label("2") is None


LABELS = st.sampled_from(REFUSAL_LABELS)


@given(st.lists(st.tuples(LABELS, st.none() | LABELS), min_size=1))
def test_the_agreement_is_scikit_learns_with_a_partial_refusal_as_a_refusal(
    rows: list[tuple[RefusalLabel, RefusalLabel | None]],
) -> None:
    found = agreement([human for human, _ in rows], [label for _, label in rows])
    pairs = [(human in REFUSALS, label in REFUSALS) for human, label in rows if label]
    assert (found.n, found.unscored) == (len(pairs), len(rows) - len(pairs))
    if not pairs:
        assert {found.precision, found.recall, found.f1, found.accuracy, found.kappa} == {None}
        return
    people, labels = zip(*pairs, strict=True)
    expected = metrics.confusion_matrix(people, labels, labels=[False, True]).tolist()
    assert found.confusion == expected
    assert found.accuracy == pytest.approx(metrics.accuracy_score(people, labels))
    f1 = metrics.f1_score(people, labels, zero_division=math.nan)
    assert found.f1 == (None if math.isnan(f1) else pytest.approx(f1))
    if found.kappa is not None:  # else scikit-learn warns
        assert found.kappa == pytest.approx(metrics.cohen_kappa_score(people, labels))
