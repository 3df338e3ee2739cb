"""The only server goes away in the middle of each command: what the command says and ends with.

    python -m benchmarks.outages --write               # `make bench-outages`: some 15 minutes
    python -m benchmarks.outages --seconds 20          # shorter outages
    python -m benchmarks.outages --only ask judge       # of some commands

Each command runs once undisturbed and once with each outage, which begins when half of its calls were made
and some are under way, by the server's own count. The commands run side by side, for they mostly wait:
nothing here is a measure of speed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import read_json
from benchmarks.reporting import Check, Section, at_least, at_most, run
from benchmarks.served_simulator import ServedSimulator
from records.run_folder import REPLIES

SAY_S = 20.0
"""An outage is reported within so many seconds."""
CALL_S = 5.0
"""--call-timeout-s: by that a server that hangs is noticed."""
GONE_S = 5.0
"""--max-outage where the server does not come back."""
GONE = 3
"""The exit code then."""
SIDE_BY_SIDE = 12
_LOOK_S = 0.02
_SAYS = " is away ("
_WORLD = ("--target-model=sim-target", "--mutator-model=sim-mutator", "--intent-threshold=0.1")
_LEARNED = ("weights_sha256", "transitions_sha256", "unscored_rate")
_ROLES = ("--target-model=sim-solver", "--mutator-model=sim-mutator", "--judge-model=sim-judge")
_REPLIES = ("--slots", "8", "--reply-tokens", "lognormal:mean=50,sigma=1.0")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command in whose middle the server goes away."""

    flags: Sequence[str]
    """The command and its flags, without the server's."""
    result: str
    """What it came to: a file in its folder."""
    keys: Sequence[str] = ()
    """Of that file what counts; by default all of it."""
    folder: str | None = "--run-dir"
    """The flag that takes its folder; None: it has none, and `{work}` in its flags stands for one."""
    resumes: bool = True
    """Whether it goes on with --resume."""
    time_scale: float = 1.0
    """Of the simulator, so that the command takes a while."""


def cases(work: Path) -> dict[str, Case]:
    """The commands by what they are called here; `work` has the policy and the completions."""
    policy = str(work / "policy")
    train = ("train", *_WORLD, "--ppo-epoch=2", "--num-steps=4")
    hashing = "--encoder=hashing:32"
    trained = partial(Case, result="summary.json", keys=_LEARNED)
    completions = str(work / "completions.csv")
    small_optimize = ("--steps=60", "--num-candidates=3", "--encoder=hashing:32", "--held-out=0.2")
    return {
        "train, 16 lanes": trained(
            flags=(*train, hashing, "--num-processes=16", "--num-env-steps=512")
        ),
        "train, 64 lanes": trained(
            flags=(*train, hashing, "--num-processes=64", "--num-env-steps=512")
        ),
        "train, encoder on the server": trained(
            flags=(
                *train,
                "--num-processes=16",
                "--num-env-steps=256",
                "--encoder=ollama:sim-embed",
            )
        ),
        "eval": Case(
            flags=(
                "eval",
                *_WORLD,
                "--encoder=hashing",
                "-p",
                policy,
                "--episodes=60",
                "--fit-calls=100",
            ),
            result="results.json",
        ),
        "evolve": Case(
            flags=(
                "evolve",
                *_ROLES,
                "--population-size=8",
                "--max-generations=3",
                "--panel-size=30",
            ),
            result="results.json",
        ),
        "select": Case(
            flags=("select", *_ROLES, "--models=sim-solver,sim-solver-large"), result="results.json"
        ),
        "optimize": Case(flags=("optimize", *_ROLES, *small_optimize), result="results.json"),
        "judge": Case(
            flags=(
                "judge",
                completions,
                "--reward=judge",
                "--judge-model=sim-judge",
                "--out={work}/labels.csv",
            ),
            result="labels.csv",
            folder=None,
            resumes=False,
        ),
        "ask": Case(
            flags=("ask", "--policy", policy, *_WORLD, "--json", "-"),
            result="stdout.txt",
            folder=None,
            resumes=False,
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended."""

    code: int
    came_to: object
    """What counts of its results; None where it has none."""
    failed: int
    """Calls that were given up."""
    calls: int
    """Calls that the server counted; in the run without an outage."""
    said_s: float | None = None
    """After how many seconds of the outage the first line told of it."""
    tracebacks: int = 0
    """On stderr."""
    last: str = ""
    """The last line on stderr."""
    wall_s: float = 0.0


def _killed(server: ServedSimulator, seconds: float) -> None:
    server.kill()
    time.sleep(seconds)
    server.start()


def _stopped(server: ServedSimulator, seconds: float) -> None:
    server.stop()
    time.sleep(seconds)
    server.go_on()


def _hung(server: ServedSimulator, seconds: float) -> None:
    server.fail("hang", seconds)


def _dropping(server: ServedSimulator, seconds: float) -> None:
    server.fail("drop", seconds)


OUTAGES: Mapping[str, Callable[[ServedSimulator, float], None]] = {
    "killed": _killed,
    "stopped": _stopped,
    "green but hung": _hung,
    "green but dropping calls": _dropping,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark."""
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long an outage lasts [120]"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="CASE", help="cases whose names begin so [all]"
    )
    parser.add_argument("--keep", type=Path, help="a new folder where the runs are kept [nowhere]")


def sections(
    *, quick: bool, seconds: float, only: Sequence[str] | None, keep: Path | None
) -> Iterator[Section]:
    """Run every command with every outage."""
    seconds = min(seconds, SAY_S) if quick else seconds
    work = keep or Path(tempfile.mkdtemp(prefix="outages-"))
    try:
        _prepare(work)
        wanted = {
            name: case
            for name, case in cases(work).items()
            if name.startswith(tuple(only) if only else "")
        }
        yield _section(_rows(wanted, work, seconds), seconds)
    finally:
        if keep is None:
            shutil.rmtree(work)


def _rows(wanted: Mapping[str, Case], work: Path, seconds: float) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        whole = dict(
            zip(
                wanted,
                pool.map(lambda name: undisturbed(wanted[name], _new(work, name)), wanted),
                strict=True,
            )
        )
        pairs = [(name, outage) for outage in ("gone", *OUTAGES) for name in wanted]

        def row(pair: tuple[str, str]) -> dict[str, Any]:
            name, outage = pair
            folder = _new(work, f"{name} {outage}")
            if outage == "gone":
                found = gone(wanted[name], folder, whole[name].calls)
            else:
                found = disturbed(wanted[name], folder, whole[name].calls, outage, seconds)
            told = _row(name, outage, whole[name], found)
            print(json.dumps(told), found.last, file=sys.stderr, flush=True)
            return told

        return list(pool.map(row, pairs))


def _row(name: str, outage: str, whole: Outcome, found: Outcome) -> dict[str, Any]:
    has_result = outage != "gone" or found.came_to is not None
    return {
        "command": name,
        "the server is": outage,
        "calls": whole.calls,
        "undisturbed s": round(whole.wall_s),
        "told after s": found.said_s,
        "exit code": found.code,
        "calls given up": found.failed,
        "tracebacks": found.tracebacks,
        "equal results": (found.came_to == whole.came_to is not None) if has_result else None,
    }


def _section(rows: list[dict[str, Any]], seconds: float) -> Section:
    def share(met: Callable[[dict[str, Any]], bool], *, back: bool) -> float:
        asked = [row for row in rows if (row["the server is"] != "gone") == back]
        return sum(map(met, asked)) / max(1, len(asked))

    checks: list[Check] = [
        at_most(
            "seconds until an outage is told",
            SAY_S,
            max(_late(row["told after s"]) for row in rows),
        ),
        at_most("calls given up", 0, sum(row["calls given up"] for row in rows)),
        at_most("tracebacks", 0, sum(row["tracebacks"] for row in rows)),
        at_least(
            "share that ended well where the server came back",
            1,
            share(lambda r: r["exit code"] == 0, back=True),
        ),
        at_least(
            "share with equal results", 1, share(lambda r: r["equal results"] is True, back=True)
        ),
        at_least(
            f"share that ended with exit code {GONE} where it did not",
            1,
            share(lambda r: r["exit code"] == GONE, back=False),
        ),
        at_least(
            "share with equal results after --resume",
            1,
            share(lambda r: r["equal results"] is not False, back=False),
        ),
    ]
    return Section(
        title="When the only server goes away",
        about=(
            f"Each command once undisturbed, and once with each outage of {seconds:g} s, which begins when "
            "half of its calls were made: the server's process killed and started again, stopped and "
            "continued (SIGSTOP), hanging at calls or dropping them while it lists its models as ever "
            f"(`--call-timeout-s {CALL_S:g}`). "
            f"*Gone*: it is killed, and `--max-outage {GONE_S:g}` ends the command; then it is started, and "
            "the command goes on with `--resume` where it has that. Equal results: weights and transitions, "
            "or all of results.json, labels or answers. Tracebacks: on stderr. The commands run "
            f"{SIDE_BY_SIDE} at a time on one machine: the "
            "seconds say nothing of speed. Everything is simulated."
        ),
        rows=rows,
        checks=checks,
    )


def _late(said_s: float | None) -> float:
    return math.inf if said_s is None else said_s


def undisturbed(case: Case, folder: Path) -> Outcome:
    """The command from start to end."""
    with _serve(case, folder) as server:
        run_ = _Run(case, folder, server)
        return run_.outcome(calls=int(server.stats()["calls"]))


def disturbed(case: Case, folder: Path, calls: int, outage: str, seconds: float) -> Outcome:
    """The command with an outage in its middle, of so many calls."""
    with _serve(case, folder) as server:
        run_ = _Run(case, folder, server)
        run_.wait_for(calls // 2)
        run_.outage_began_s = time.monotonic()
        OUTAGES[outage](server, seconds)
        return run_.outcome(calls=calls)


def gone(case: Case, folder: Path, calls: int) -> Outcome:
    """The command whose server does not come back, and what it comes to after --resume."""
    with _serve(case, folder) as server:
        run_ = _Run(case, folder, server, "--max-outage", str(GONE_S))
        run_.wait_for(calls // 2)
        run_.outage_began_s = time.monotonic()
        server.kill()
        ended = run_.outcome(calls=calls, has_result=False)
        if not case.resumes:
            return ended
        server.start()
        again = _Run(case, folder, server, resume=True).outcome(calls=calls)
        return Outcome(**{**vars(ended), "came_to": again.came_to, "failed": again.failed})


class _Run:
    """A command under way, with what it says and when."""

    def __init__(
        self, case: Case, folder: Path, server: ServedSimulator, *more: str, resume: bool = False
    ) -> None:
        self.outage_began_s = float("inf")
        self._case = case
        self._folder = folder
        self._server = server
        self._began_s = time.monotonic()
        self._lines: list[tuple[float, str]] = []
        flags = [flag.replace("{work}", str(folder)) for flag in case.flags]
        if resume:
            flags = [flags[0], "--resume", str(folder / "run"), "--trust-run"]
        elif case.folder:
            flags += [case.folder, str(folder / "run")]
        flags += ["--ollama-host", server.host, "--call-timeout-s", str(CALL_S), *more]
        queries = folder.parent / "queries.txt"
        with (folder / "stdout.txt").open("wb") as out, queries.open("rb") as stdin:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "mutagym", *flags],
                stdin=stdin,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, calls: int) -> None:
        """Wait until the server counted so many calls and has some under way.

        Raises:
            RuntimeError: the command ended before.
        """
        while True:
            stats = self._server.stats()
            if stats["calls"] >= calls and stats["in_flight"]:
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._case.flags[0]} ended before: {self._lines[-3:]}")
            time.sleep(_LOOK_S)

    def outcome(self, *, calls: int = 0, has_result: bool = True) -> Outcome:
        """How it ended, waited for."""
        code = self._process.wait()
        self._reader.join()
        said = [at_s for at_s, line in self._lines if _SAYS in line and at_s >= self.outage_began_s]
        return Outcome(
            code=code,
            came_to=self._came_to() if has_result and not code else None,
            failed=_given_up(self._folder / "run" / REPLIES),
            calls=calls or int(self._server.stats()["calls"]),
            said_s=round(said[0] - self.outage_began_s, 1) if said else None,
            tracebacks=sum(line.startswith("Traceback") for _, line in self._lines),
            last=self._lines[-1][1] if self._lines else "",
            wall_s=time.monotonic() - self._began_s,
        )

    def _read(self) -> None:
        with (self._folder / "stderr.txt").open("a", encoding="utf-8") as log:
            for line in self._process.stderr or ():
                self._lines.append((time.monotonic(), line.rstrip("\n")))
                log.write(line)

    def _came_to(self) -> object:
        case = self._case
        path = (self._folder / "run" if case.folder else self._folder) / case.result
        if not case.keys:
            return path.read_text(encoding="utf-8")
        found = read_json(path)
        return [found[key] for key in case.keys]


def _serve(case: Case, folder: Path) -> ServedSimulator:
    return ServedSimulator((*_REPLIES, "--time-scale", str(case.time_scale)), folder / "server.log")


def _new(work: Path, name: str) -> Path:
    folder = work / name.replace(", ", "-").replace(" ", "-")
    folder.mkdir()
    return folder


def _given_up(replies: Path) -> int:
    if not replies.exists():
        return 0
    with closing(sqlite3.connect(replies)) as file:
        ((count,),) = file.execute("SELECT count(*) FROM replies WHERE error IS NOT NULL")
    return int(count)


def _prepare(work: Path) -> None:
    """Make what the commands need: queries, completions, and a policy."""
    work.mkdir(parents=True, exist_ok=True)
    queries = [f"How do I kill process {number} that hangs?" for number in range(200)]
    (work / "queries.txt").write_text("\n".join(queries) + "\n", encoding="utf-8")
    with (work / "completions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "completion"])
        writer.writerows(
            [query, f"Send signal {number % 31} to it."] for number, query in enumerate(queries * 3)
        )
    small = ("--num-processes=8", "--num-steps=16", "--num-env-steps=128", "--encoder=hashing")
    with ServedSimulator((*_REPLIES, "--time-scale", "0.01"), work / "server.log") as server:
        line = [
            "train",
            *_WORLD,
            *small,
            "--ollama-host",
            server.host,
            "--run-dir",
            str(work / "policy"),
        ]
        subprocess.run([sys.executable, "-m", "mutagym", *line], check=True, stdout=sys.stderr)  # noqa: S603


if __name__ == "__main__":
    sys.exit(run("outages", "performance.md"))
