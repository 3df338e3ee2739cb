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


UNUSABLE = {
    "ALL_PROXY": "socks5h://127.0.0.1:1080",
    "OLLAMA_HOST": "localhost:many",
    "SSL_CERT_FILE": "/gone.pem",
    "SSLKEYLOGFILE": "/gone/keys",
}
ALONE = [*({name: value} for name, value in UNUSABLE.items()), {"OLLAMA_HOST": "192.168.1.300"}]


@pytest.mark.parametrize(
    "variables",
    [UNUSABLE, *(pytest.param(each, marks=pytest.mark.soak) for each in ALONE)],
    ids="-".join,
)
def test_variables_that_cannot_be_used_spoil_no_call_to_this_machine(
    server: EmbeddedServer, variables: dict[str, str]
) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", ASK, server.host],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")
