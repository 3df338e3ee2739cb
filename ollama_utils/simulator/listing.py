"""The endpoints that tell of the server and its models, and plain words for those that are not played."""

from __future__ import annotations

from aiohttp import web

from ollama_utils.simulator.calls import find_model, require_name
from ollama_utils.simulator.catalogue import VERSION
from ollama_utils.simulator.delivery import json_reply
from ollama_utils.simulator.names import is_name
from ollama_utils.simulator.requests import parse_body
from ollama_utils.simulator.state import STATE
from ollama_utils.simulator.wire import ApiError, dumps

_NOT_PLAYED = (
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/push",
    "/api/blobs/{digest}",
    "/api/status",
    "/api/me",
    "/api/signout",
    "/api/user/keys/{key}",
    "/api/experimental/{rest:.*}",
    "/v1/{rest:.*}",
)
"""What Ollama serves beside its models' time: making models, its cloud, and the APIs of others."""
_NO_MANIFEST = "pull model manifest: file does not exist"


def listing_routes() -> list[web.RouteDef]:
    """The routes, to be added to the application."""
    return [
        web.get("/", get_root),
        web.get("/api/version", get_version),
        web.get("/api/tags", get_tags),
        web.get("/api/ps", get_ps),
        web.post("/api/show", post_show),
        web.post("/api/pull", post_pull),
        *(web.route("*", path, refuse) for path in _NOT_PLAYED),
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
    return json_reply(state.catalogue.running(state.engine.residents()))


async def post_show(request: web.Request) -> web.Response:
    """One model in detail."""
    state = request.app[STATE]
    body = parse_body(await request.read(), "ShowRequest")
    model = find_model(state, require_name(body.get("model") or body.get("name")))
    return json_reply(state.catalogue.show(model))


async def post_pull(request: web.Request) -> web.StreamResponse:
    """The steps of fetching a model: the persona's are all here, and no other can be had."""
    state = request.app[STATE]
    body = parse_body(await request.read(), "PullRequest")
    name = body.get("model") or body.get("name") or ""
    if not is_name(name):
        raise ApiError(400, "invalid model name")
    model = state.catalogue.find(name)
    if body.get("stream") is False:
        if model is None:
            raise ApiError(500, _NO_MANIFEST)
        return json_reply({"status": "success"})
    failing = [{"status": "pulling manifest"}, {"error": _NO_MANIFEST}]
    steps = failing if model is None else state.catalogue.pull_steps(model)
    lines = b"".join(dumps(step) + b"\n" for step in steps)
    return web.Response(body=lines, content_type="application/x-ndjson")


async def refuse(request: web.Request) -> web.Response:
    """Say plainly that the endpoint is Ollama's, but not played here."""
    raise ApiError(501, f"the simulator does not play {request.path}; docs/simulator.md says what it plays")
