"""Tags in which prompts show texts of others, which cannot close them."""

from __future__ import annotations

import re


def untagged(text: str, *names: str) -> str:
    """The text with these tags, opening or closing, written in round brackets: it cannot close its own tag.

    Args:
        text: What stands between a prompt's tags.
        names: The names of the prompt's tags, in letters; case and blanks in a tag make no difference.
    """
    return re.sub(rf"<(/?\s*(?:{'|'.join(names)})\s*)>", r"(\1)", text, flags=re.IGNORECASE)


def tagged(tag: str, text: str) -> str:
    """The text between `<tag>` and `</tag>`, for a tag of `query` and `other`."""
    return f"<{tag}>{untagged(text, 'query', 'other')}</{tag}>"
