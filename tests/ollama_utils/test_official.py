"""The official package: an environment that it cannot use breaks no run that does not need it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.process import EmbeddedServer

ASK = """
import os, sys
before = dict(os.environ)
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.types import Call
assert dict(os.environ) == before
with Dispatcher([sys.argv[1]]) as dispatcher:
    print(dispatcher.generate(Call(model="sim-target", prompt="p")).error)
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5h://127.0.0.1:1080"),
        ("OLLAMA_HOST", "localhost:many"),
        ("OLLAMA_HOST", "192.168.1.300"),
        ("SSL_CERT_FILE", "/gone.pem"),
        ("SSLKEYLOGFILE", "/gone/keys"),
    ],
)
def test_a_variable_that_cannot_be_used_spoils_no_call_to_this_machine(
    server: EmbeddedServer, name: str, value: str
) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", ASK, server.host],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")
