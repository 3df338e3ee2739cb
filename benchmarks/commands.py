"""What several benchmarks share: commands of mutagym in processes of their own, and their load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.reporting import made_here, processor

LOGNORMAL = "lognormal:mean=50,sigma=1.0"
"""Tokens of a reply: 200 ms in a slot on the mean, and some seconds for a few."""

_CODE = {".py", ".toml", ".json", ".csv"}


def run_mutagym(command: str, flags: Mapping[str, object], *more: str) -> None:
    """Run a command of mutagym; what it prints goes to stderr.

    Args:
        command: such as `eval`.
        flags: by name with their dashes, and their values.
        more: flags without a value.

    Raises:
        subprocess.CalledProcessError: it failed; its message stands on stderr.
    """
    pairs = [str(item) for pair in flags.items() for item in pair]
    arguments = [sys.executable, "-m", "mutagym", command, *pairs, *more]
    subprocess.run(arguments, check=True, stdout=sys.stderr)  # noqa: S603 - our own command, our own flags


def finish(command: str, result: Path, flags: Mapping[str, object], *more: str) -> None:
    """Run a command that ends with the file `result`, or resume it; nothing where it has ended already.

    Raises:
        subprocess.CalledProcessError: the command failed; its message stands on stderr.
    """
    if result.exists() and read_json(result).get("stopped") is None:
        return
    folder = result.parent
    where = "--resume" if (folder / "config.toml").exists() else "--run-dir"
    print(command, folder.name, "...", file=sys.stderr, flush=True)
    run_mutagym(command, {**flags, where: folder}, *more)


POLICY_FILES = ("config.toml", "queries.json", "policy.safetensors", "summary.json")
"""Of a training's folder: all that `eval -p` reads, and the summary."""


def train_in_stages(
    run: Path, stages: Mapping[int, int], flags: Mapping[str, object], *more: str
) -> Iterator[Path]:
    """Train to one number of steps, put the policy aside, and go on: the same as going there at once.

    Args:
        run: the folder of the training; one that is there already goes on.
        stages: by budget, rising, the steps that a training with that `--num-env-steps` takes.
        flags: as of `run_mutagym`.
        more: so, too.

    Yields:
        By budget the folder of its policy, `RUN-BUDGET`.

    Raises:
        subprocess.CalledProcessError: a training failed; its message stands on stderr.
    """
    for budget, steps in stages.items():
        kept = run.with_name(f"{run.name}-{budget}")
        if not kept.exists():
            if (
                not (run / "summary.json").exists()
                or read_json(run / "summary.json")["env_steps"] < steps
            ):
                where = "--resume" if (run / "config.toml").exists() else "--run-dir"
                run_mutagym("train", {**flags, "--num-env-steps": budget, where: run}, *more)
            part = kept.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for name in POLICY_FILES:
                shutil.copyfile(run / name, part / name)
            part.rename(kept)
        yield kept


def check_runs_of(work: Path, plan: Mapping[str, object]) -> str:
    """Check that the runs in a folder are of this code, plan and machine; write it down where there is none.

    Returns:
        The day and the machine of the first run.

    Raises:
        SystemExit: they are of others.
    """
    file = work / "made_of.json"
    here = {"code": _code(), "processor": processor(), "cores": os.cpu_count()}
    wanted = json.loads(json.dumps({**plan, **here}))
    if not file.exists() and not list(work.glob("*/config.toml")):
        work.mkdir(parents=True, exist_ok=True)
        file.write_text(
            json.dumps({**wanted, "made": made_here()}, indent=1) + "\n", encoding="utf-8"
        )
    found = read_json(file) if file.exists() else {}
    made = str(found.pop("made", ""))
    if found != wanted:
        raise SystemExit(
            f"the runs in {work} were made by other code, plan or machine: move them away"
        )
    return made


def _code() -> str:
    """A digest of all code and data of the project, its tests left out."""
    root = Path(__file__).resolve().parents[1]
    packages = [path.parent for path in root.glob("*/__init__.py") if path.parent.name != "tests"]
    files = [path for package in packages for path in package.rglob("*") if path.suffix in _CODE]
    return blake2b(
        b"".join(sorted(path.read_bytes() for path in files)), digest_size=16
    ).hexdigest()


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """What a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
