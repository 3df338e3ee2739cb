"""The simulator in the foreground: `python -m simulator --slots 8`.

When it listens it prints one line of JSON on stdout, whose `host` is what clients connect to.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from simulator.profiles import PROFILES
from simulator.settings import Settings, settings_from_environment

_USAGE_ERROR = 2
_HELP = {
    "slots": "calls that each model serves at once; OLLAMA_NUM_PARALLEL, or 1, when left out",
    "profile": f"the hardware whose speed is played: {', '.join(PROFILES)}",
    "max_queue": "requests that may wait for a model to load; OLLAMA_MAX_QUEUE, or 512, when left out",
    "max_loaded_models": "models in memory at once; OLLAMA_MAX_LOADED_MODELS, or what the profile keeps",
    "memory_gb": "gigabytes that the models in memory may take together; 0 sets no limit",
    "keep_alive": "how long an idle model stays in memory; OLLAMA_KEEP_ALIVE, or 5m, when left out",
    "persona": "a TOML file with the world of words; the shipped one when left out",
    "reply_tokens": "tokens of a reply: 64, or lognormal:mean=64,sigma=1.0",
    "time_scale": "every duration is multiplied by this; 0 answers at once",
    "seed": "goes into every draw: another seed is another server",
    "faults": "a JSON file with a list of faults to play, as POST /simulator/faults takes it",
    "port": "the port to listen on; 0 lets the system choose",
    "bind": "the address to listen on",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve with the settings on the command line; the exit status."""
    try:
        given = vars(_parser(settings_from_environment()).parse_args(argv))
        parent = given.pop("parent")
        if parent is not None:  # before the slow imports: Ctrl-C is the parent's, which ends this process
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        from simulator.app import run

        settings = Settings(**given)
        run(settings, lambda host: _announce(host, settings), parent=parent)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    return 0


def _parser(environment: dict[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    for item in fields(Settings):
        kind = str if item.default is None else type(item.default)
        flag = f"--{item.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=item.default, help=_HELP[item.name])
    parser.set_defaults(**environment)
    parser.add_argument("--parent", type=int, help="leave when this process is no longer the parent")
    return parser


def _announce(host: str, settings: Settings) -> None:
    sys.stdout.write(json.dumps({"host": host} | asdict(settings)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
