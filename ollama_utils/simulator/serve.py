"""Listening: the application on a port until a signal, or until the parent process is gone."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec

from aiohttp import web

from ollama_utils.simulator.app import build_app
from ollama_utils.simulator.settings import Settings

_SHUTDOWN_S = 1.0
_WATCH_S = 0.2


def run(settings: Settings, announce: Callable[[str], None], *, parent: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM comes; with a parent, until SIGTERM: Ctrl-C is the parent's.

    Args:
        settings: what to serve.
        announce: is told the host (`http://address:port`) once the server listens.
        parent: also leave when the process of this number is no longer the parent, as when it has died;
            SIGINT is left as it is, for the caller to ignore.

    Raises:
        OSError: the address or port cannot be had.
        PersonaError: the persona's file cannot be used.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, announce, parent))


async def _serve(settings: Settings, announce: Callable[[str], None], parent: int | None) -> None:
    stop = _stop_on((signal.SIGINT, signal.SIGTERM) if parent is None else (signal.SIGTERM,))
    runner = web.AppRunner(
        build_app(settings),
        handler_cancellation=True,
        access_log=None,
        logger=_http_logger(),
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.bind, settings.port, backlog=1024).start()
        announce(_host(runner.addresses[0]))
        await _stopped_or_orphaned(stop, parent)
    finally:
        await runner.cleanup()


def _http_logger() -> logging.Logger:
    """Says nothing of requests that are no HTTP: their clients are told. The application logs our errors."""
    logger = logging.getLogger("ollama_utils.simulator.http")
    logger.setLevel(logging.CRITICAL)
    return logger


def _stop_on(signals: Sequence[signal.Signals]) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in signals:
        loop.add_signal_handler(name, stop.set)
    return stop


async def _stopped_or_orphaned(stop: asyncio.Event, parent: int | None) -> None:
    """Return at `stop`, or when another process has taken the place of `parent`."""
    while not stop.is_set() and parent in {None, os.getppid()}:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else _WATCH_S)


def _host(address: tuple[str, int]) -> str:
    name, port = address[:2]
    if name == "0.0.0.0":  # noqa: S104 - compared, not bound
        name = "127.0.0.1"
    return f"http://[{'::1' if name == '::' else name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop where it is installed, else the standard one."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
