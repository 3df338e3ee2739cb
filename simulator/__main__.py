"""The simulator as a child process: `python -m simulator SETTINGS PORT PARENT`.

A person starts `mutagym serve`. SETTINGS is a JSON object of the fields of `Settings`; PORT takes the place
of theirs unless it is 0; the process leaves when PARENT, a process number, is no longer its parent. When it
listens it prints one line of JSON on stdout, whose `host` clients connect to.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, replace

from simulator.settings import Settings

_USAGE_ERROR = 2


def main(settings_json: str, port: str, parent: str) -> int:
    """Serve with these settings; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    from simulator.app import run

    try:
        settings = Settings(**json.loads(settings_json))
        settings = replace(settings, port=int(port) or settings.port)
        run(settings, lambda host: _announce(host, settings), parent=int(parent))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    return 0


def _announce(host: str, settings: Settings) -> None:
    sys.stdout.write(json.dumps({"host": host} | asdict(settings)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
