"""The official client, whose requests take a short way through httpx.

To each request httpx joins its URL, headers, cookies and authentication anew, and looks for cookies in the
reply: half of the CPU time of a call. Ours to one path of one server differ in nothing but their JSON.
"""

from __future__ import annotations

from typing import Any

import httpx

from ollama_utils.official import ollama


class OfficialClient(ollama.Client):
    """`ollama.Client` on a transport.

    Args:
        host: the server's base URL.
        transport: reads replies whole.
        given: what else `httpx.Client` is given.
    """

    def __init__(self, host: str, *, transport: httpx.BaseTransport, **given: Any) -> None:  # noqa: ANN401 - httpx's
        # ollama.Client would name httpx.Client here, and does nothing else.
        super(ollama.Client, self).__init__(HttpClient, host, transport=transport, **given)


class HttpClient(httpx.Client):
    """`httpx.Client` with a short way for a request that is only JSON and is not redirected."""

    def __init__(self, *, transport: httpx.BaseTransport, **given: Any) -> None:  # noqa: ANN401 - httpx's
        super().__init__(transport=transport, **given)
        self._way = transport
        self._patterns: dict[httpx.URL | str, httpx.Request] = {}

    def request(self, method: str, url: httpx.URL | str, **given: Any) -> httpx.Response:  # noqa: ANN401 - httpx's
        """The reply to a request, which is httpx's own to any other than these."""
        if given.keys() <= {"json"} and not self.is_closed:
            response = self._ask(method, url, given.get("json"))
            if not response.has_redirect_location:
                return response
        return super().request(method, url, **given)

    def _ask(self, method: str, url: httpx.URL | str, json: object) -> httpx.Response:
        pattern = self._patterns.get(url)
        if pattern is None:
            pattern = self._patterns[url] = self.build_request("GET", url)
        request = httpx.Request(
            method, pattern.url, headers=pattern.headers, json=json, extensions=pattern.extensions
        )
        for hook in self.event_hooks["request"]:
            hook(request)
        response = self._way.handle_request(request)
        response.request = request
        return response
