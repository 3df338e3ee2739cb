"""The official `ollama` package: import it from here.

At its import it builds a client of its own from the environment, and raises when OLLAMA_HOST cannot be
read, OLLAMA_API_KEY not be sent, a proxy's library is missing or a file of TLS cannot be used: even in a run
that needs none of them. So these variables are set aside while it is imported. Our clients lose nothing: they
are given their host and their transport, and read the key anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_READ_AT_IMPORT = frozenset(
    {"OLLAMA_HOST", "OLLAMA_API_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"}
)


@contextmanager
def _set_aside() -> Iterator[None]:
    """An environment without the variables that the package's own client is built from."""
    names = [name for name in os.environ if name in _READ_AT_IMPORT or name.lower().endswith("_proxy")]
    values = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(values)


with _set_aside():
    import ollama

__all__ = ["ollama"]
