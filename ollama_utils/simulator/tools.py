"""Calls of tools: a simulated model calls the first function that the question speaks of."""

from __future__ import annotations

import re
from typing import Any

from ollama_utils.simulator.asks import Ask
from ollama_utils.simulator.chance import digest_of
from ollama_utils.simulator.personas.conform import conform_text
from ollama_utils.simulator.wire import Body

_WORD = re.compile(r"[^\W_]+")
_WORTH_A_LOOK = 4


def tool_call(ask: Ask) -> dict[str, Any] | None:
    """The call that a model makes: of the first tool with a word of four letters or more in the question.

    The arguments stand under the tool's schema; the question's last word is the first free text among them.

    Raises:
        SchemaError: no arguments were found that stand under it.
    """
    asked = _words(ask.prompt) if ask.tools else set()
    for tool in ask.tools:
        if asked & _words(f"{tool.get('name', '')} {tool.get('description') or ''}"):
            function = {"index": 0, "name": tool.get("name", ""), "arguments": _arguments(tool, ask.prompt)}
            return {"id": f"call_{digest_of(*ask.identity()).hex()[:8]}", "function": function}
    return None


def _arguments(tool: Body, question: str) -> object:
    schema = tool.get("parameters")
    if not isinstance(schema, dict):
        return {}
    return conform_text((_WORD.findall(question) or [""])[-1], {"type": "object"} | schema)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text) if len(word) >= _WORTH_A_LOOK}
