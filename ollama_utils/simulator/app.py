"""Routes: Ollama's HTTP API over a persona's words and an engine's time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from ollama_utils.simulator import wire
from ollama_utils.simulator.calls import call_routes, find_named_model
from ollama_utils.simulator.catalogue import VERSION
from ollama_utils.simulator.control import control_routes, json_reply
from ollama_utils.simulator.settings import Settings
from ollama_utils.simulator.state import STATE, make_state

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 2**28
_NO_ENDPOINT = {404: "404 page not found", 405: "405 method not allowed"}


def build_app(settings: Settings) -> web.Application:
    """The application; its state is made when it starts, inside the event loop."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_speak_as_ollama])

    async def hold_state(app: web.Application) -> AsyncIterator[None]:
        app[STATE] = make_state(settings)
        yield

    app.cleanup_ctx.append(hold_state)
    app.add_routes([*_listing_routes(), *call_routes(), *control_routes()])
    return app


@web.middleware
async def _speak_as_ollama(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in Ollama's words: JSON from its endpoints, plain text where there is none."""
    try:
        return await handler(request)
    except wire.ApiError as error:
        return json_reply({"error": error.text}, error.status)
    except web.HTTPException as error:
        error.text = _NO_ENDPOINT.get(error.status, error.reason)
        raise
    except ConnectionError:
        raise
    except Exception as error:
        logger.exception("%s %s", request.method, request.path)
        return json_reply({"error": f"{type(error).__name__}: {error}"}, 500)


def _listing_routes() -> list[web.RouteDef]:
    return [
        web.get("/", get_root),
        web.get("/api/version", get_version),
        web.get("/api/tags", get_tags),
        web.get("/api/ps", get_ps),
        web.post("/api/show", post_show),
    ]


async def get_root(request: web.Request) -> web.Response:
    """The greeting by which clients tell that a server is there."""
    del request
    return web.Response(text="Ollama is running")


async def get_version(request: web.Request) -> web.Response:
    """The version of Ollama that is played."""
    del request
    return json_reply({"version": VERSION})


async def get_tags(request: web.Request) -> web.Response:
    """The models that are here."""
    return json_reply(request.app[STATE].catalogue.tags())


async def get_ps(request: web.Request) -> web.Response:
    """The models that were called."""
    state = request.app[STATE]
    return json_reply(state.catalogue.running(state.engine.models()))


async def post_show(request: web.Request) -> web.Response:
    """One model in detail."""
    state = request.app[STATE]
    body = wire.parse_body(await request.read(), "ShowRequest")
    return json_reply(state.catalogue.show(find_named_model(state, body.get("model") or body.get("name"))))
