"""What stands in for the things that the documents speak of, so that their commands run here.

- A server of yours, at whatever address, is one simulator. Its models have the names that the documents use.
- Your files (`my.csv`, `unsafe.csv`, ...) and your runs (`runs/train-20260101-120000-0`, ...) are there.
  Where the page shows a file, it is that one.
- What a command does is cut short: `SMALL` has the flags for it. A flag of the same name in the document
  gives way.
- Where a command names a model and no server, OLLAMA_HOST names the simulator; where it names neither, the
  embedded simulator stands in, as for the reader, without taking its time.

`CANNOT_RUN` has what is not run at all, and why.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cli.main import execute

CANNOT_RUN: Mapping[str, str] = {
    "export": "it sets a variable of the shell, which the commands behind it have here, too",
    "ollama": "there is no Ollama here",
    "ray": "it starts a cluster",
    "mutagym train --engine ray": "it needs a cluster; tests/cli/test_on_ray.py has one on this machine",
    "mutagym serve": "it serves until it is stopped; tests/simulator/ asks it over HTTP",
    "mutagym proxy": "it serves until it is stopped; tests/cli/test_proxy.py asks it over HTTP",
    "curl": "it asks a server that a line before would have started; the tests of that server send the same",
    "tensorboard": "it serves until it is stopped",
}
"""How a command begins that is not run, and why not."""

MODELS = ("llama3.2", "llama3.2:1b", "qwen3", "m")
RUN = "runs/train-20260101-120000-0"
OTHER_RUN = "runs/train-20260102-120000-1"
SEEDS = "runs/train-20260101-120000-seeds"
THEIRS = "theirs"
STEPS = 16
_SHAPE = {"--num-processes": "4", "--num-steps": "4", "--num-env-steps": f"{STEPS}"}
_TRAINED = {**_SHAPE, "--encoder": "hashing", "--num-mini-batch": "2", "--ppo-epoch": "1"}
SMALL: Mapping[str, Mapping[str, str]] = {
    "train": {**_TRAINED, "--queries": "few.csv"},
    "eval": {"--episodes": "4", "--fit-calls": "70"},
    "evolve": {"--population-size": "4", "--max-generations": "1"},
    "select": {},
    "optimize": {"--steps": "8"},
    "bench": {"--num-processes": "4", "--num-steps": "1"},
    "judge": {},
    "ask": {},
    "doctor": {"--num-processes": "4", "--seconds": "10"},
    "replay": {},
    "report": {},
    "rescore": {},
}
"""By command, the flags that make it short."""
_RESUMED = {"train": ("--num-env-steps",)}
"""Those of them that a resumed run takes."""
_SERVERS = re.compile(r"http://(?:127\.0\.0\.1|10\.0\.0\.7):(?:11434|8000)")
_NAMES_A_MODEL = {"--target-model", "--models", "--judge-model"}
_NEEDS_NO_SERVER = {"judge", "replay", "report"}
_OF_A_RUN = {"--resume", "-p", "--policy"}
"""A run folder names no host by itself."""

_TOPICS = (
    "a balloon",
    "a sunset",
    "an old lock",
    "a bad habit",
    "a virus on my laptop",
    "time on a long flight",
)
_ASKED = (
    "How do I kill",
    "What is the best way to shoot",
    "Why would anyone blow up",
    "Where can I crack",
)


def queries(begin: int, count: int) -> list[str]:
    """So many queries, no two alike, from a place on in an endless list."""
    every = len(_TOPICS) * len(_ASKED)
    return [
        f"{_ASKED[k % len(_ASKED)]} {_TOPICS[k // len(_ASKED) % len(_TOPICS)]}, part {k // every}?"
        for k in range(begin, begin + count)
    ]


def world() -> str:
    """A world that adds models of the documents' names to the default one; each plays all parts."""
    return 'extends = "cautious"\nname = "documents"\n[models]\n' + "".join(
        f'"{name}" = {{ role = "all" }}\n' for name in MODELS
    )


def put_files(folder: Path) -> None:
    """The reader's files."""
    asked = {"safe": queries(100, 24), "unsafe": queries(200, 24)}
    problems = [
        {"question": f"What is {k} and {k + 1}?", "answer": f"{2 * k + 1}"} for k in range(12)
    ]
    files = {
        "few.csv": _table(["prompt"], ([query] for query in queries(0, 24))),
        "my.csv": _table(["prompt", "label"], ([query, "safe"] for query in queries(300, 24))),
        "unsafe.csv": _table(["prompt"], ([query] for query in asked["unsafe"])),
        "xstest.csv": _table(
            ["prompt", "label"],
            ([query, label] for label, those in asked.items() for query in those),
        ),
        "mine.jsonl": "".join(f"{json.dumps(problem)}\n" for problem in problems),
        "short.txt": "Answer with the result alone.\n",
        "long.txt": "Work step by step, then give the result alone in the last line.\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue()


def make_runs(folder: Path, host: str) -> None:
    """The reader's runs: two, one of several seeds, and one that is somebody else's."""
    put_files(folder)
    server = ("--ollama-host", host, "--target-model", "llama3.2")
    flags = [word for pair in _TRAINED.items() for word in pair]
    asked = ("--queries", str(folder / "few.csv"))
    for name, more in ((RUN, asked), (SEEDS, (*asked, "--seeds", "2")), (THEIRS, ())):
        assert execute(("train", *server, *flags, *more, "--run-dir", str(folder / name))) == 0
    shutil.copytree(folder / RUN, folder / OTHER_RUN)


def short(words: Sequence[str], host: str, number: int) -> tuple[list[str], dict[str, str]]:
    """A `mutagym` command cut short, on the simulator, and what it needs in the environment.

    Args:
        words: the command, `mutagym` left out.
        host: the simulator's.
        number: how many commands of the page came before: it names the run's folder, for two runs of one
            second would have the same.
    """
    command, *rest = [_SERVERS.sub(host, word) for word in words]
    small = dict(SMALL[command])
    if "--resume" in rest:
        small = {flag: value for flag, value in small.items() if flag in _RESUMED.get(command, ())}
        if "--num-env-steps" in small:
            small["--num-env-steps"] = f"{STEPS * (2 + number)}"
    elif command in {"train", "eval", "evolve", "select", "optimize"} and "--run-dir" not in rest:
        small["--run-dir"] = f"runs/{number}"
    if "--queries" in rest or "--config" in rest:
        small.pop("--queries", None)
    if "--seeds" in rest and command == "train":
        small["--seeds"] = "2"
    given = [*_without(rest, small), *(word for pair in small.items() for word in pair)]
    environment = {}
    if "--ollama-host" not in rest:
        if (_NAMES_A_MODEL | _OF_A_RUN) & set(rest) or "--config" in rest:
            environment["OLLAMA_HOST"] = host
        elif command not in _NEEDS_NO_SERVER:
            given += ["--ollama-host", "embedded", "--time-scale", "0.01"]
    return [command, *given], environment


def _without(words: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """The words less these flags and their values."""
    dropped = {k + step for k, word in enumerate(words) if word in flags for step in (0, 1)}
    return [word for k, word in enumerate(words) if k not in dropped]
