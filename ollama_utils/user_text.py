"""The words of the user in a request for a chat: found, and put back reworded.

Of `/api/chat` and `/v1/chat/completions` they are those of the last message of the role `user`, which may
stand in parts, some of them images; of `/api/generate` the prompt, where the server makes a chat of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from records.json_lines import parse_json

CHATS = ("/api/chat", "/v1/chat/completions")
PROMPTS = ("/api/generate",)


@dataclass(frozen=True, kw_only=True)
class UserText:
    """The texts of a user's last message, and where they stand."""

    body: dict[str, Any]
    """The whole request."""
    places: tuple[tuple[dict[str, Any], str], ...]
    """For each text the object that holds it, and its key there."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, in their order."""
        return tuple(part[key] for part, key in self.places)

    def reworded(self, texts: Sequence[str]) -> bytes:
        """The request as JSON with these texts in their place, all else as it was."""
        for (part, key), text in zip(self.places, texts, strict=True):
            part[key] = text
        return json.dumps(self.body).encode()


def find_user_text(path: str, raw: bytes) -> UserText | None:
    """The words of the user in the body of a POST to `path`; None: there are none.

    Raises:
        ValueError: it is no JSON that can be read.
    """
    body = parse_json(raw)
    json.dumps(body, allow_nan=False)  # a number that could not be written again
    if not isinstance(body, dict):
        return None
    places = tuple(_in_chat(body) if path in CHATS else _in_prompt(body))
    return UserText(body=body, places=places) if places else None


def _in_prompt(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """A prompt that is the user's turn: no raw one, which has the model's own marks, none with a suffix."""
    if isinstance(body.get("prompt"), str) and not body.get("raw") and not body.get("suffix"):
        yield body, "prompt"


def _in_chat(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    messages = body.get("messages")
    listed = messages if isinstance(messages, list) else []
    last = next(
        (m for m in reversed(listed) if isinstance(m, dict) and m.get("role") == "user"), {}
    )
    content = last.get("content")
    if isinstance(content, str):
        yield last, "content"
    for part in content if isinstance(content, list) else []:
        if (
            isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
        ):
            yield part, "text"
