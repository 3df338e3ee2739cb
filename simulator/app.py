"""The application: its routes, those that control it, and how it is served.

As a child process: `python -m simulator.app SETTINGS PORT PARENT`. SETTINGS is a JSON object of the
fields of `Settings`. When it listens it prints one line of JSON, whose `host` clients connect to. A
person starts `mutagym serve`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler

from simulator import ollama, openai
from simulator.engine import Engine
from simulator.faults import Fault, FaultPlan, Outage, Outages, parse, read_faults
from simulator.replies import ApiError, Composer
from simulator.serving import STATE, State
from simulator.settings import Settings, reply_length
from simulator.world import load_world

logger = logging.getLogger(__name__)

_CONTROL = "/simulator/"
_MOST_BODY_BYTES = 2**22
_NO_ENDPOINT = {404: "404 page not found", 405: "405 method not allowed"}
_SHUTDOWN_S, _WATCH_S = 1.0, 0.2


def build_app(settings: Settings) -> web.Application:
    """The application; raises ValueError where the world's file or that of faults is no good."""
    world = load_world(settings.world)
    models = {ollama.full_name(name).lower(): model for name, model in world.file.models.items()}
    one_slot = frozenset(name for name, model in models.items() if model.role == "embedding")
    faults = FaultPlan(settings.seed, read_faults(settings.faults) if settings.faults else [])
    composer = Composer(
        world=world,
        models=models,
        seed=settings.seed,
        reply_length=reply_length(settings.reply_tokens),
    )

    async def hold_state(app: web.Application) -> AsyncIterator[None]:
        """Inside the event loop, whose clock is the server's."""
        engine = Engine(settings, asyncio.get_running_loop().time, one_slot)
        app[STATE] = State(
            settings=settings,
            models=models,
            composer=composer,
            engine=engine,
            faults=faults,
            outages=Outages(engine.answers),
        )
        yield

    app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[_errors_as_json, _guard])
    app.cleanup_ctx.append(hold_state)
    app.add_routes([*ollama.routes(), *openai.routes()])
    app.add_routes([web.route("*", f"{_CONTROL}{{what}}", _control)])
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the API's words: JSON from its endpoints, plain text where there is none."""
    try:
        return await handler(request)
    except ApiError as error:
        return _error(request, error)
    except web.HTTPException as error:
        error.text = _NO_ENDPOINT.get(error.status, error.reason)
        raise
    except ConnectionError:
        return web.Response()  # nobody is there to read it
    except Exception as error:
        logger.exception("%s %s", request.method, request.path)
        return _error(request, ApiError(500, f"{type(error).__name__}: {error}"))


def _error(request: web.Request, error: ApiError) -> web.Response:
    body = openai.error_body(error)
    if not request.path.startswith(openai.PATHS):  # Ollama passes llama.cpp's own errors on
        body = {"error": json.dumps(body) if error.more else str(error)}
    return web.json_response(body, status=error.status)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse control routes to other machines; hold or drop all other requests in an outage."""
    if not request.path.startswith(_CONTROL):
        await request.app[STATE].outages.wait(request, is_call=False)
    elif not ip_address(request.remote or "::").is_loopback:
        raise ApiError(403, f"routes under {_CONTROL} are for programs on the server's machine")
    return await handler(request)


async def _control(request: web.Request) -> web.Response:
    """What the server saw, and what is to go wrong from now on."""
    state, raw, reply = request.app[STATE], await request.read(), {}
    try:
        match request.method, request.match_info["what"]:
            case ("GET" | "DELETE") as method, "stats":
                reply = state.stats()
                if method == "DELETE":
                    state.reset()
            case "POST", "faults":
                state.faults = FaultPlan(state.settings.seed, parse(list[Fault], raw))
            case "POST", "outage":
                state.outages.set(parse(Outage, raw) if raw else None)
            case method, what:
                raise ApiError(404, f"expected stats, faults or outage, got {method} {what}")
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return web.json_response(reply)


def run(settings: Settings, announce: Callable[[str], None], *, parent: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM comes; `announce` is called with the host once it listens.

    With the process number of a parent: until SIGTERM (Ctrl-C is the parent's), or until the
    process of this number is not the parent any more.

    Raises:
        OSError: the address or port cannot be had.
        ValueError: the world's file or that of the faults cannot be used.
    """
    asyncio.run(_serve(settings, announce, parent))


async def _serve(settings: Settings, announce: Callable[[str], None], parent: int | None) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM,) if parent is not None else (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    runner = web.AppRunner(
        build_app(settings),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.bind, settings.port, backlog=1024).start()
        address, port = runner.addresses[0][:2]
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared
        announce(f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}")
        while not stop.is_set() and parent in {None, os.getppid()}:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), None if parent is None else _WATCH_S)
    finally:
        await runner.cleanup()


def main(settings_json: str, port: str, parent: str) -> int:
    """Serve as a child process, see `run`; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    try:
        settings = Settings(**json.loads(settings_json))
        run(replace(settings, port=int(port) or settings.port), _announce, parent=int(parent))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _announce(host: str) -> None:
    sys.stdout.write(json.dumps({"host": host}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
