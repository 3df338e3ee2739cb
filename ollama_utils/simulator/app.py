"""Routes: Ollama's HTTP API over a persona's words and an engine's time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from ollama_utils.simulator.calls import call_routes
from ollama_utils.simulator.control import control_routes
from ollama_utils.simulator.delivery import json_reply
from ollama_utils.simulator.listing import listing_routes
from ollama_utils.simulator.settings import Settings
from ollama_utils.simulator.state import STATE, make_state
from ollama_utils.simulator.wire import ApiError

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
    app.add_routes([*listing_routes(), *call_routes(), *control_routes()])
    return app


@web.middleware
async def _speak_as_ollama(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in Ollama's words: JSON from its endpoints, plain text where there is none."""
    try:
        return await handler(request)
    except ApiError as error:
        return json_reply({"error": error.text}, error.status)
    except web.HTTPException as error:
        error.text = _NO_ENDPOINT.get(error.status, error.reason)
        raise
    except web.RequestPayloadError as error:
        return json_reply({"error": " ".join(str(error).split())}, 400)
    except ConnectionError:
        raise
    except Exception as error:
        logger.exception("%s %s", request.method, request.path)
        return json_reply({"error": f"{type(error).__name__}: {error}"}, 500)
