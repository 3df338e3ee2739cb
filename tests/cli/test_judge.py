"""`mutagym judge`: a file of completions is labelled, and compared with people's labels if it has any."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import execute
from scorers.agreement import agreement
from scorers.labels import REFUSAL_LABELS, RefusalLabel, parse_label
from simulator.process import EmbeddedServer
from simulator.settings import Settings

REFUSAL, PART, ANSWER = (
    "I'm sorry, but I can't help with that.",
    "I can't discuss the violent scenes, but broadly, the novel is about two brothers who quarrel.",
    "To kill a Python process, find its number with ps and send it a signal with the kill command.",
)
KEYS = [
    *("n", "precision", "recall", "f1", "accuracy", "kappa", "confusion", "sensitivity", "specificity"),
    *("positives", "negatives", "unscored"),
]


def write_csv(path: Path, header: Sequence[str], *rows: Sequence[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    return write_csv(
        tmp_path / "labelled.csv",
        ("id", "Prompt", "completion", "annotation_1", "final_label"),
        ("1", "How?", REFUSAL, "x", "2_full_refusal"),
        ("2", "How?", PART, "x", "3_partial_refusal"),
        ("3", "How?", ANSWER, "x", "1_full_compliance"),
        ("4", "How?", ANSWER, "x", "2_full_refusal"),
        ("5", "How?", REFUSAL, "x", "1_full_compliance"),
    )


def test_the_agreement_with_people_is_written_down(labelled: Path, tmp_path: Path) -> None:
    assert execute(("judge", str(labelled), "--json", str(tmp_path / "a.json"))) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert found.pop("labels") == dict(zip((*REFUSAL_LABELS, "unscored"), (2, 1, 2, 0, 0), strict=True))
    assert list(found) == KEYS
    assert found["n"] == 5
    assert found["confusion"] == [[1, 1], [1, 2]]
    assert found["precision"] == found["recall"] == found["sensitivity"] == pytest.approx(2 / 3)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["specificity"] == pytest.approx(0.5)
    assert found["kappa"] == pytest.approx((0.6 - 0.52) / (1 - 0.52))
    assert (found["positives"], found["negatives"], found["unscored"]) == (3, 2, 0)


def test_it_is_shown_with_the_confusion_table(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(("judge", str(labelled))) == 0
    told = capsys.readouterr()
    assert "2 answered, 1 partly refused, 2 refused, 0 undetermined, 0 unscored" in told.out
    for word in ("precision", "recall", "f1", "accuracy", "kappa", "people said"):
        assert word in told.out


def test_without_labels_the_labels_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "plain.csv", ("question", "answer"), ("How?", REFUSAL), ("How?", ANSWER))
    assert execute(("judge", str(path))) == 0
    assert capsys.readouterr().out == "1 answered, 0 partly refused, 1 refused, 0 undetermined, 0 unscored\n"
    assert execute(("judge", str(path), "--json", "-", "--quiet")) == 0
    told = capsys.readouterr()
    counts = {"answered": 1, "partly_refused": 0, "refused": 1, "undetermined": 0, "unscored": 0}
    assert (json.loads(told.out), told.err) == ({"labels": counts}, "")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.tsv"])
def test_other_formats_are_read_and_columns_can_be_named(tmp_path: Path, name: str) -> None:
    path, out = tmp_path / name, tmp_path / "out.csv"
    if name.endswith("jsonl"):
        rows = [{"asked": "A?", "said": REFUSAL, "refuses": 1}, {"asked": "B?", "said": ANSWER, "refuses": 0}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(f"asked\tsaid\trefuses\nA?\t{REFUSAL}\t1\nB?\t{ANSWER}\t0\n")
    named = ("--prompt-column", "asked", "--completion-column", "SAID", "--label-column", "refuses")
    json_file = tmp_path / "a.json"
    flags = ("--out", str(out), "--json", str(json_file))
    assert execute(("judge", str(path), *named, *flags)) == 0
    with out.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert written == [
        {"prompt": "A?", "completion": REFUSAL, "machine_label": "refused", "human_label": "refused"},
        {"prompt": "B?", "completion": ANSWER, "machine_label": "answered", "human_label": "answered"},
    ]
    assert json.loads(json_file.read_text())["f1"] == 1


@pytest.mark.parametrize(
    ("header", "row", "flags", "says"),
    [
        (("prompt", "completion", "label"), ("How?", ANSWER, "maybe"), (), ["row 2", "'label'", "'maybe'"]),
        (("prompt", "completion", "label"), ("How?", ANSWER, ""), (), ["row 2", "''", "--label-column"]),
        (("prompt", "text"), ("How?", ANSWER), (), ["'prompt', 'text'", "--completion-column"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--label-column", "x"), ["--label-column", "'x'"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--json", "missing/a.json"), ["--json", "missing/a"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--out", "missing/a.csv"), ["--out", "missing/a.csv"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--json", "--out"), ["--json", "'--out'"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--reward", "jugde"), ["jugde", "judge"]),
        (("prompt", "completion"), ("How?", ANSWER), ("--reward", "exact"), ["exact", "expected refusal"]),
        (("completion",), (ANSWER,), ("--reward", "judge"), ["--prompt-column"]),
    ],
)
def test_a_users_error_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    header: Sequence[str],
    row: Sequence[str],
    flags: Sequence[str],
    says: Sequence[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "rows.csv", header, row)
    assert execute(("judge", "rows.csv", *flags)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert all(word in lines[0] for word in says), lines[0]


def test_the_file_that_is_read_is_not_written_over(labelled: Path) -> None:
    before = labelled.read_bytes()
    assert execute(("judge", str(labelled), "--out", str(labelled))) == 2
    assert labelled.read_bytes() == before


def test_thoughts_are_no_part_of_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [f"<think>{REFUSAL}</think>{ANSWER}", f"(hm){REFUSAL}(/hm){ANSWER}", f"<think>{REFUSAL}"]
    file = write_csv(tmp_path / "said.csv", ("completion",), *([each] for each in said))
    out = tmp_path / "out.csv"
    assert execute(("judge", str(file), "--thought-marks", "(hm)...(/hm)", "--out", str(out))) == 0
    with out.open(encoding="utf-8", newline="") as lines:
        rows = [(row["completion"], row["machine_label"]) for row in csv.DictReader(lines)]
    assert rows == list(zip(said, ("answered", "answered", "unscored"), strict=True))
    assert "1 of 3 completions are missing or end before an answer: unscored" in capsys.readouterr().err


def test_labels_that_it_wrote_itself_are_not_taken_for_peoples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "x.csv", ("prompt", "completion"), ("How?", ANSWER), ("Why?", REFUSAL))
    assert execute(("judge", str(path), "--out", str(tmp_path / "out.csv"))) == 0
    capsys.readouterr()
    assert execute(("judge", str(tmp_path / "out.csv"))) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 answered, 0 partly refused, 1 refused, 0 undetermined, 0 unscored"
    ]


def test_two_results_do_not_go_to_one_file(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by its place, whatever it is called."""
    one, same = labelled.with_name("x"), labelled.parent / "gone" / ".." / "x"
    (labelled.parent / "gone").mkdir()
    assert execute(("judge", str(labelled), "--json", str(one), "--out", str(same))) == 2
    assert "which --json names as well" in capsys.readouterr().err
    assert not one.exists()


def test_labels_that_mean_something_else_can_be_left_out(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", ("prompt", "completion", "label"), ("How?", ANSWER, "safe"))
    assert execute(("judge", str(path))) == 2
    assert execute(("judge", str(path), "--label-column", "none")) == 0


def test_labels_are_known_however_they_are_written() -> None:
    known: list[tuple[object, RefusalLabel]] = [
        ("1_full_compliance", "answered"),
        ("2_full_refusal", "refused"),
        ("3_partial_refusal", "partly_refused"),
        (" Full Refusal", "refused"),
        ("NON-REFUSAL", "answered"),
        ("Unclear", "undetermined"),
        *((label, label) for label in REFUSAL_LABELS),
        *((1, "refused"), (True, "refused"), (0, "answered"), ("0.0", "answered")),
    ]
    assert [parse_label(written) for written, _ in known] == [label for _, label in known]
    assert parse_label("2") is None


@pytest.mark.parametrize(
    ("reply", "is_"),
    [
        ({"role": "assistant", "content": REFUSAL}, "an object"),
        ([REFUSAL], "a list"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_a_reply_that_is_no_text_is_named_and_not_labelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: object, is_: str
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"prompt": "How?", "response": reply}))
    assert execute(("judge", str(path), "--out", str(tmp_path / "out.csv"))) == 2
    assert f"row 1, column 'response': expected text, got {is_}" in capsys.readouterr().err


def test_a_reply_that_is_missing_is_no_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat.jsonl"
    rows = [{"prompt": "How?", "response": None}, {"prompt": "How?"}, {"prompt": "How?", "response": ANSWER}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert execute(("judge", str(path))) == 0
    assert capsys.readouterr().out.startswith("1 answered, 0 partly refused, 0 refused, 0 undetermined, 2 ")


def test_a_language_that_nobody_reads_is_undetermined_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "x.csv", ("completion",), ("Tyvärr kan jag inte hjälpa dig med det där.",))
    assert execute(("judge", str(path))) == 0
    told = capsys.readouterr()
    assert "0 answered, 0 partly refused, 0 refused, 1 undetermined" in told.out
    assert "does not read" in told.err


LABELS = st.sampled_from(REFUSAL_LABELS)


@given(st.lists(st.tuples(LABELS, st.none() | LABELS)))
def test_every_row_is_counted_once_and_rates_are_shares_or_undefined(
    rows: list[tuple[RefusalLabel, RefusalLabel | None]],
) -> None:
    found = agreement([human for human, _ in rows], [label for _, label in rows])
    assert sum(map(sum, found.confusion)) == found.n == found.positives + found.negatives
    assert found.n + found.unscored == len(rows)
    (kept, alarms), (missed, hits) = found.confusion
    assert found.recall == (hits / (hits + missed) if hits + missed else None)
    assert found.precision == (hits / (hits + alarms) if hits + alarms else None)
    assert found.specificity == (kept / (kept + alarms) if kept + alarms else None)
    assert (found.f1 is None) == (hits + missed + alarms == 0)


@given(st.lists(st.tuples(LABELS, LABELS), min_size=1))
def test_a_partial_refusal_is_a_refusal(rows: list[tuple[RefusalLabel, RefusalLabel]]) -> None:
    full: dict[RefusalLabel, RefusalLabel] = {"partly_refused": "refused"}
    humans, labels = [a for a, _ in rows], [b for _, b in rows]
    found = agreement(humans, labels)
    assert agreement([full.get(a, a) for a in humans], [full.get(b, b) for b in labels]) == found


@pytest.fixture(scope="module")
def faulty() -> Iterator[EmbeddedServer]:
    """A simulator of this file's own, for faults and for waiting."""
    with EmbeddedServer(Settings(slots=8, time_scale=0.001)) as server:
        yield server


def test_a_language_model_can_judge(labelled: Path, faulty: EmbeddedServer, tmp_path: Path) -> None:
    faulty.set_faults([])
    flags = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", faulty.host)
    assert execute(("judge", str(labelled), *flags, "--json", str(tmp_path / "a.json"))) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["n"] + found["unscored"] == 5


def test_what_a_judge_said_before_is_not_asked_again(
    labelled: Path, faulty: EmbeddedServer, tmp_path: Path
) -> None:
    faulty.set_faults([])
    flags = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", faulty.host)
    told = []
    for name in ("first", "second"):
        more = ("--cache", str(tmp_path / "cache"), "--out", str(tmp_path / name))
        assert execute(("judge", str(labelled), *flags, *more)) == 0
        told.append(faulty.stats()["calls"])
    assert told[0] == told[1] > 0
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text()


def test_what_the_judge_cannot_say_is_unscored_and_in_no_rate(
    labelled: Path, faulty: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty.set_faults([{"kind": "status", "rate": 1}])
    flags = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", faulty.host)
    more = ("--call-attempts", "1", "--json", str(tmp_path / "a.json"))
    assert execute(("judge", str(labelled), *flags, *more)) == 1
    faulty.set_faults([])
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["n"], found["unscored"]) == (0, 5)
    assert [found[key] for key in ("precision", "recall", "f1", "accuracy", "kappa")] == [None] * 5
    assert "unscored: 'How?'" in capsys.readouterr().err


@pytest.mark.soak
def test_ctrl_c_is_one_line_and_130(tmp_path: Path) -> None:
    rows = [(f"How {n}?", ANSWER) for n in range(400)]
    path = write_csv(tmp_path / "many.csv", ("prompt", "completion"), *rows)
    with EmbeddedServer(Settings(slots=1, time_scale=1.0)) as slow:
        flags = ("--reward", "judge", "--judge-model", "sim-judge", "--ollama-host", slow.host)
        command = [sys.executable, "-m", "cli.launch", "judge", str(path), *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own command
        while not slow.stats()["calls"]:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    assert [line for line in told.splitlines() if line.startswith("mutagym:")] == [
        "mutagym: stopped by SIGINT"
    ]
