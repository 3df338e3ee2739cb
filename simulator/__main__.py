"""The simulator as a child process: `python -m simulator SETTINGS PORT PARENT`.

SETTINGS is a JSON object of the fields of `Settings`. When it listens it prints one line of JSON,
whose `host` clients connect to. A person starts `mutagym serve`.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace

from simulator.app import run
from simulator.settings import Settings


def main(settings_json: str, port: str, parent: str) -> int:
    """Serve until SIGTERM, or until the process `parent` is gone; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    try:
        settings = Settings(**json.loads(settings_json))
        run(replace(settings, port=int(port) or settings.port), _announce, parent=int(parent))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _announce(host: str) -> None:
    sys.stdout.write(json.dumps({"host": host}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
