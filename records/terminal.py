"""Text of others (a model's words, a server's names, a file's rows), made harmless where it is shown.

A terminal obeys escape sequences: they clear the screen, write the clipboard, move the cursor over what was
printed before. Here they become visible. What is written into files stays as it is; JSON and YAML on stdout
hold the same data, with such characters as escapes of their own.
"""

from __future__ import annotations

import re
import sys
import unicodedata

_KEPT = "\n\t"
_SHORT = {"\r": r"\r", "\b": r"\b", "\f": r"\f", "\v": r"\v"}


class _Escapes(dict[int, str | int]):
    """For `str.translate`: control, format and unassigned characters as Python writes them, others as is.

    Format characters (category Cf) have no width or turn the direction of what follows: among them those that
    join emoji and letters of some scripts, which are then shown apart.
    """

    def __missing__(self, code: int) -> str | int:
        char = chr(code)
        harmless = char.isprintable() or char in _KEPT or unicodedata.category(char) == "Zs"
        self[code] = code if harmless else _SHORT.get(char, ascii(char)[1:-1])
        return self[code]


_ESCAPES = _Escapes()
_NOT_ASCII = re.compile(r"[^\n -~]")


def shown(text: str) -> str:
    r"""The text as it may be printed: `\x1b` for an escape, `\u202e` for what turns the direction of writing.

    Newlines and tabs stay.
    """
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_ESCAPES)


def one_line(text: str) -> str:
    """The same in one line: its words with one blank between them."""
    return shown(" ".join(text.split()))


def tell(text: str) -> None:
    """Print a line on stderr at once."""
    sys.stderr.write(f"{shown(text)}\n")
    sys.stderr.flush()


def shown_json(text: str) -> str:
    """JSON that holds the same, with the characters that are not to be printed as JSON's escapes."""
    return _NOT_ASCII.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    char = found[0]
    if _ESCAPES[ord(char)] == ord(char):
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def code_block(text: str) -> str:
    """The text in Markdown, as code: no link, image or heading in it is one."""
    return "\n".join(f"    {line}" for line in shown(text).split("\n"))
