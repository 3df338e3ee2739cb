"""Listening: the application on a port until a signal, or until stdin closes."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import threading
from collections.abc import Callable
from importlib.util import find_spec

from aiohttp import web

from ollama_utils.simulator.app import build_app
from ollama_utils.simulator.settings import Settings

_STDIN = 0
_SHUTDOWN_S = 1.0


def run(settings: Settings, announce: Callable[[str], None], *, until_stdin_closes: bool = False) -> None:
    """Serve until SIGINT or SIGTERM comes.

    Args:
        settings: what to serve.
        announce: is told the host (`http://address:port`) once the server listens.
        until_stdin_closes: also leave when stdin ends, as it does when a parent process dies.

    Raises:
        OSError: the address or port cannot be had.
        PersonaError: the persona's file cannot be used.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, announce, until_stdin_closes=until_stdin_closes))


async def _serve(settings: Settings, announce: Callable[[str], None], *, until_stdin_closes: bool) -> None:
    stop = _stop_on_signals()
    runner = web.AppRunner(build_app(settings), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(
            runner, settings.bind, settings.port, shutdown_timeout=_SHUTDOWN_S, backlog=1024
        ).start()
        announce(_host(runner.addresses[0]))
        if until_stdin_closes:
            _stop_at_end_of_stdin(stop)
        await stop.wait()
    finally:
        await runner.cleanup()


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    return stop


def _stop_at_end_of_stdin(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def watch() -> None:
        while os.read(_STDIN, 1024):
            pass
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, daemon=True, name="stdin").start()


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
