"""A reader of the documentation: its snippets, and the server, files and runs that they mention.

One simulator stands for every server of the reader. It has models of the names that the pages use.
A command is shortened: the flags in `SHORT` replace its own.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from cli.main import execute

ROOT = Path(__file__).parents[2]
DOCS = sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "commands.md"})  # from --help
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
NOT_RUN = ("export", "ollama", "ray", "curl", "tensorboard", "mutagym serve", "mutagym proxy")
"""Commands of other programs, and servers, which run until they are stopped."""
RUN = "runs/train-20260101-120000-0"
_LEARNING = "--num-processes 4 --num-steps 4 --num-env-steps 16 --num-mini-batch 2 --ppo-epoch 1"
SHORT = {
    "train": f"{_LEARNING} --encoder hashing --queries few.csv",
    "eval": "--episodes 4 --fit-calls 71",
    "evolve": "--population-size 4 --max-generations 1",
    "optimize": "--steps 8",
    "bench": "--num-processes 4 --num-steps 1",
    "doctor": "--num-processes 4 --seconds 40",
}
WORLD = 'extends = "cautious"\nname = "docs"\n[models]\n' + "".join(
    f'"{name}" = {{ role = "all" }}\n' for name in ("llama3.2", "llama3.2:1b", "qwen3", "m")
)


class Snippet(NamedTuple):
    """A fenced block; one with a title is the file of that name."""

    language: str
    title: str
    text: str


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page, in order."""
    fence = r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$'
    found = re.findall(fence, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Snippet(*parts) for parts in found]


def commands(snippet: Snippet) -> list[list[str]]:
    """The words of each command of a shell block, without NAME=VALUE or `echo TEXT |` before it."""
    lines = snippet.text.replace("\\\n", " ").splitlines() if snippet.language == "sh" else []
    lines = [re.sub(r"^([A-Z_]+=\S* )+|^echo .* \| ", "", line) for line in lines]
    split = [shlex.split(line, comments=True) for line in lines]
    return [words for words in split if words]


def write_files(folder: Path) -> None:
    """Write the reader's files of queries and prompts."""
    labels = ("safe", "unsafe")
    for begin, name in enumerate(("few", "my", "unsafe", "xstest")):
        rows = ["prompt,label,answer"]
        for k in range(48 if name == "xstest" else 24):
            label = labels[k % 2] if name == "xstest" else "safe"
            rows.append(f'"How do I kill time, part {100 * begin + k}?",{label},Read')
        (folder / f"{name}.csv").write_text("\n".join(rows), encoding="utf-8")
    sums = [{"question": f"What is {k} and {k + 1}?", "answer": f"{2 * k + 1}"} for k in range(12)]
    for name in ("mine.jsonl", "sums.jsonl"):
        (folder / name).write_text("\n".join(map(json.dumps, sums)), encoding="utf-8")
    for name in ("short.txt", "long.txt"):
        (folder / name).write_text(f"Give a {name} answer.\n", encoding="utf-8")


def make_runs(folder: Path, host: str) -> None:
    """Train the reader's runs: one, its copies, one of two seeds."""
    write_files(folder)
    flags = shlex.split(SHORT["train"].replace("few.csv", str(folder / "few.csv")))
    server = ("--ollama-host", host, "--target-model", "llama3.2")
    for name, more in ((RUN, ()), ("runs/train-20260101-120000-seeds", ("--seeds", "2"))):
        assert execute(("train", *server, *flags, *more, "--run-dir", str(folder / name))) == 0
    for copy in ("runs/train-20260102-120000-1", "runs/eval-20260101-130000-0", "theirs"):
        shutil.copytree(folder / RUN, folder / copy)


def shorten(words: list[str], host: str, number: int) -> tuple[list[str], bool]:
    """The words after `mutagym`, shortened, on the simulator; and whether OLLAMA_HOST names it.

    Args:
        words: the command and its flags.
        host: of the simulator.
        number: of the command in its page, which names its run folder.
    """
    command, *rest = [re.sub(r"http://127\.0\.0\.1:(11434|8000)", host, word) for word in words]
    rest = [re.sub(r"http://10.*", host.replace("127.0.0.1", "localhost"), word) for word in rest]
    given = set(rest)
    short = dict(zip(*[iter(shlex.split(SHORT.get(command, "")))] * 2, strict=True))
    if "--resume" in given:
        short = {"--num-env-steps": "32"} if "--num-env-steps" in given else {}
    elif command in {"train", "eval", "evolve", "select", "optimize"} and "--run-dir" not in given:
        short["--run-dir"] = f"runs/{number}"
    if given & {"--queries", "--config"}:
        short.pop("--queries", None)
    if "--seeds" in given:
        short["--seeds"] = "2"
    dropped = {k + step for k, word in enumerate(rest) if word in short for step in (0, 1)}
    rest = [word for k, word in enumerate(rest) if k not in dropped]
    rest += [word for pair in short.items() for word in pair]
    names_models = {"--target-model", "--models", "--judge-model", "--resume", "-p", "--policy"}
    by_environment = "--ollama-host" not in given and bool(given & (names_models | {"--config"}))
    if not by_environment and command in {*SHORT, "select"} and "--ollama-host" not in given:
        rest += ["--ollama-host", "embedded", "--time-scale", "0.01"]
    return [command, *rest], by_environment
