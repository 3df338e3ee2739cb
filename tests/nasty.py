"""Texts that a terminal obeys, or that hide what they say; and a server whose every word is one."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from tests.ollama_utils.scripted import SAID, ScriptedServer

NASTY = (
    "\x1b[2J\x1b[H",
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b]8;;http://example.org\x1b\\here\x1b]8;;\x1b\\",
    "done\rmutagym: all is well",
    "secret\b\b\b\b\b\bpublic",
    "\x9b31m\x85\x9d52;c;\x9c",
    "\u202egpj.exe\u202c \u2066x\u2069",
    "pay\u200bpal\u2060\ufeff",
    "a\x00b\x7f",
    "one\u2028two\u2029three",
    "[red]x[/red][/] [link=http://example.org]y :bomb:",
    "\x0b\x0c\x1c\x1d\x1e",
)
ALL = " ".join(NASTY)
"""All of them in one line of text."""


def harmful(text: str) -> list[str]:
    """The characters that no output may hold: all that do not show, but newlines."""
    return [
        ascii(c)
        for c in text
        if not (c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs")
    ]


def nasty_server(*, fails: bool = False) -> ScriptedServer:
    """An Ollama server that lists a model of a nasty name, and says nasty things.

    Args:
        fails: whether it answers each call with an error of nasty words instead.
    """

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if not body:  # what it is asked by GET
            names = (MODEL, "plain:latest", UNREADABLE)
            listed = [{"name": name, "model": name, "digest": "0" * 64} for name in names]
            return 200, {"models": listed, "version": "0.33.0"}
        if fails:
            return 400, {"error": f"no: {ALL}"}
        if "input" in body:
            inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
            return 200, {"model": "m", "embeddings": [[1.0, 0.0] for _ in inputs]}
        text = (
            f"Sure, here you are: {ALL}\nAnd {ALL}"
            if not body.get("format")
            else json.dumps({ALL: ALL})
        )
        counts = {"done_reason": "stop", "prompt_eval_count": 9, "eval_count": 9}
        message = {"role": "assistant", "content": text}
        said = {"message": message} if "messages" in body else {"response": text}
        return 200, SAID | counts | said

    return ScriptedServer(answer)


MODEL = "m[red]:latest"
"""The name of its model."""
UNREADABLE = "m\x1b[2J\u202e\x9b31m:latest"
"""One that it lists, too, and that no command takes for a model: nobody could type it."""
