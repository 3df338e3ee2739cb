"""The application with its routes, and how it is served: until a signal, or until its parent is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from simulator import openai_api
from simulator.control import control_routes
from simulator.guard import CONTROL, guard
from simulator.routes import call_routes, listing_routes
from simulator.settings import Settings
from simulator.state import STATE, make_state
from simulator.wire import ApiError, json_reply

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 2**22
_TOO_LARGE = f"the simulator reads request bodies of at most {_MAX_BODY_BYTES >> 20} MiB"
_TOO_DEEP = "the request is nested too deeply"
_NO_ENDPOINT = {404: "404 page not found", 405: "405 method not allowed"}


def build_app(settings: Settings) -> web.Application:
    """The application; its state is made when it starts, inside the event loop."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[guard, _speak, _hold])

    async def hold_state(app: web.Application) -> AsyncIterator[None]:
        app[STATE] = make_state(settings)
        yield

    app.cleanup_ctx.append(hold_state)
    app.add_routes([*listing_routes(), *call_routes(), *control_routes()])
    return app


@web.middleware
async def _speak(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the API's words: JSON from its endpoints, plain text where there is none."""
    try:
        return await handler(request)
    except ApiError as error:
        return _error(request, error.status, error.text)
    except web.HTTPRequestEntityTooLarge:
        return _error(request, 413, _TOO_LARGE)
    except RecursionError:
        return _error(request, 400, _TOO_DEEP)
    except web.HTTPException as error:
        error.text = _NO_ENDPOINT.get(error.status, error.reason)
        raise
    except web.RequestPayloadError as error:
        return _error(request, 400, " ".join(str(error).split()))
    except ConnectionError:
        raise
    except Exception as error:
        logger.exception("%s %s", request.method, request.path)
        return _error(request, 500, f"{type(error).__name__}: {error}")


@web.middleware
async def _hold(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let requests in when the server answers any; its control routes are always answered."""
    if not request.path.startswith(CONTROL):
        await request.app[STATE].outages.passed(request, "all")
    return await handler(request)


def _error(request: web.Request, status: int, text: str) -> web.Response:
    """An error in the form of the API that was asked."""
    is_openai = request.path.startswith(openai_api.PATHS)
    return json_reply(openai_api.error_body(status, text) if is_openai else {"error": text}, status)


_SHUTDOWN_S = 1.0
_WATCH_S = 0.2


def run(settings: Settings, announce: Callable[[str], None], *, parent: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM comes; with a parent, until SIGTERM: Ctrl-C is the parent's.

    Args:
        settings: what to serve.
        announce: is called with the host (`http://address:port`) once the server listens.
        parent: also leave when the process of this number is no longer the parent, as when it has died;
            SIGINT is left as it is, for the caller to ignore.

    Raises:
        OSError: the address or port cannot be had.
        PersonaError: the persona file cannot be used.
    """
    asyncio.run(_serve(settings, announce, parent))


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
    """Logs nothing of requests that are not HTTP: their clients get an error. Our errors are logged above."""
    logger = logging.getLogger("simulator.http")
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
