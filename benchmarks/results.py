"""What a benchmark measures: tables and checks, printed and written to `results/NAME.json`.

    python -m benchmarks.NAME            # measure, print, write results and docs/measured.md
    python -m benchmarks.NAME --quick    # small and fast, to try it out: prints, and writes nothing

The exit status is 1 where a check is not met. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import measured
from cli.main import execute

PACKAGES = ("gymnasium", "httpx", "numpy", "ollama", "scikit-learn", "stable-baselines3", "torch")
MODEL = "sim-model"
"""The simulator's model that plays every part."""
LOGNORMAL = "lognormal:mean=50,sigma=1.0"
"""Tokens of a reply: 200 ms in a slot on average, and some seconds for a few."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What was measured; the keys of the rows are the headings."""

    title: str
    about: str
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measured figure and the bound that it is to keep."""

    what: str
    target: float
    sense: str
    measured: float
    met: bool


def at_least(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be large."""
    return _check(what, target, "at least", measured, met=measured >= target)


def at_most(what: str, target: float, measured: float) -> Check:
    """A check of a figure that is to be small."""
    return _check(what, target, "at most", measured, met=measured <= target)


def _check(what: str, target: float, sense: str, measured: float, *, met: bool) -> Check:
    measured = float(measured)
    return Check(what=what, target=target, sense=sense, measured=measured, met=bool(met))


Measure = Callable[..., Iterator[Table | Check]]
"""Yields tables and checks, given `quick: bool` and what was added to the command line."""


def run(
    name: str,
    about: str,
    measure: Measure,
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
    argv: Sequence[str] | None = None,
) -> int:
    """Measure, print, and write what was measured unless it is a quick run; the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="small and fast, to try it out")
    add_arguments(parser)
    given = parser.parse_args(argv)
    result: dict[str, Any] = {"benchmark": name, "about": about, **_here()}
    began_s = time.perf_counter()
    tables, checks = [], []
    for part in measure(**vars(given)):
        if isinstance(part, Table):
            tables.append(asdict(part))
            print(f"### {part.title}\n\n{measured.table(part.rows)}\n", flush=True)
        else:
            checks.append(asdict(part))
            state = "met" if part.met else "NOT MET"
            print(f"{state}: {part.what} {part.sense} {part.target:g}: {part.measured:.4g}")
    result |= {"seconds": round(time.perf_counter() - began_s), "tables": tables, "checks": checks}
    print(f"{result['seconds']} s")
    if given.quick:
        return 0
    write(result)
    measured.main()
    return 0 if all(check["met"] for check in checks) else 1


def write(result: Mapping[str, Any]) -> None:
    """Write a result to its file."""
    text = json.dumps(result, indent=1, ensure_ascii=False, default=lambda each: each.item())
    measured.RESULTS.mkdir(exist_ok=True)
    (measured.RESULTS / f"{result['benchmark']}.json").write_text(text + "\n", encoding="utf-8")


def mutagym(command: str, **options: object) -> Any:  # noqa: ANN401 - whatever the command reports
    """Run a command in this process; what it writes to `--json`.

    Args:
        command: such as `eval`. Without `run_dir` or `resume` its run folder is thrown away.
        options: by the flag's name; a list repeats the flag, True is a flag without a value.

    Raises:
        RuntimeError: it failed, with all that it printed.
    """
    printed = io.StringIO()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options["json"] = report
        if command not in {"bench", "headroom"} and not {"run_dir", "resume"} & options.keys():
            options["run_dir"] = Path(folder) / "run"
        words = [command]
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            for each in value if isinstance(value, list) else [value]:
                words += [flag] if each is True else [flag, str(each)]
        with redirect_stdout(printed), redirect_stderr(printed):
            code = execute(words)
        if code:
            raise RuntimeError(f"exit code {code}: mutagym {' '.join(words)}\n{printed.getvalue()}")
        return json.loads(report.read_text(encoding="utf-8"))


def _here() -> dict[str, str]:
    """The machine, the versions and the day."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],  # noqa: S607 - the user's git
        cwd=measured.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"{platform.system()}, load average {os.getloadavg()[0]:.1f} at the start",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "commit": commit.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """The processor's name where the system has it, else its kind."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
