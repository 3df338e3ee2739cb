"""The tags in which the prompts of mutators show texts, which cannot close them."""

from __future__ import annotations

from ollama_utils.prompts import untagged


def tagged(tag: str, text: str) -> str:
    """The text between `<tag>` and `</tag>`, for a tag of `query` and `other`."""
    return f"<{tag}>{untagged(text, 'query', 'other')}</{tag}>"
