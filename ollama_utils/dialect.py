"""The dialect of an OpenAI-compatible server: which fields of a request it takes, by which names.

A request is sent as OpenAI and most servers take it. A field that a server refuses by name is left
out or renamed from then on, and a line says so. The rules are plain settings (`--request-field`,
and a run's config.toml), `FIELD=NAME` each:

- `max_tokens=max_completion_tokens`: the field goes by another name;
- `seed=`: it is left out;
- `response_format=json_object`: any JSON object, and the schema in words; `response_format=`: the
  words alone;
- `system=user`: the system prompt stands before the first user turn.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ollama_utils.errors import BadRequestError, OllamaError, PromptTooLongError, ServerFaultError
from ollama_utils.http import brief

_FIXED = frozenset({"model", "messages", "input", "stream"})
"""What no server does without."""
_FORMS: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("max_tokens", "max_completion_tokens", ""),
    "response_format": ("json_schema", "json_object", ""),
    "system": ("system", "user"),
}
"""How a field can be sent, the usual way first; any other goes by its name or not at all."""
_REFUSAL = re.compile(
    r"unsupported|n[o']t (be )?support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden"
    r"|not permitted|not allowed|unavailable|not enabled|supported values|literal_error"
    r"|must alternate|only user and assistant",
    re.IGNORECASE,
)
_NO_SYSTEM = re.compile(
    r"\b(system|developer)\b.{0,20}\b(role|message|prompt|instruction)"
    r"|roles must alternate|only user and assistant roles",  # Mistral's templates
    re.IGNORECASE,
)
_ECHO = re.compile(r"""['"]input['"]: ?""")
"""Behind it pydantic repeats what was sent, which may be a whole request."""


class Dialect:
    """What is known of one server's dialect; shared by all threads.

    Args:
        at: the server, as lines name it.
        rules: `FIELD=NAME`, see the module.
        report: is given a line for the user with each rule that is learned.

    Raises:
        ValueError: a rule cannot be read.
    """

    def __init__(self, at: str, rules: Iterable[str], report: Callable[[str], None]) -> None:
        self._at, self._report = at, report
        self._lock = threading.Lock()
        self._rules: dict[str, str] = {}
        for rule in rules:
            field, equals, name = (part.strip() for part in rule.partition("="))
            is_free = field not in _FIXED and name not in _FIXED | {"response_format"}
            takes_others = field not in {"system", "response_format"}
            if not (field and equals and is_free and (takes_others or name in _FORMS[field])):
                raise ValueError(
                    f"--request-field is {rule!r}; expected FIELD=NAME or FIELD= for a field of a "
                    f"request other than {', '.join(sorted(_FIXED))}, or system=user, "
                    "response_format=json_object"
                )
            self._rules[field] = name

    @property
    def rules(self) -> tuple[str, ...]:
        """Those that hold now."""
        return tuple(f"{field}={name}" for field, name in sorted(self._rules.items()))

    def send(self, body: Mapping[str, Any], ask: Callable[[dict[str, Any]], bytes]) -> bytes:
        """Send a request; what the server refuses by name is sent another way, or not at all.

        The rules of a request that the server took hold from then on. They are learned once a run,
        so the repetitions are few: the dispatcher counts them as one attempt, for its rate, too.

        Args:
            body: the request as most servers take it.
            ask: sends one, and returns the reply.

        Raises:
            OllamaError: as `ask` raises it, where nothing else can be tried.
        """
        rules, refused, words = dict(self._rules), dict[str, list[str]](), dict[str, str]()
        while True:
            sent = _in_dialect(body, rules)
            try:
                reply = ask(sent)
                break
            except PromptTooLongError:
                raise
            except (BadRequestError, ServerFaultError) as error:
                field = _refused_field(error, body, sent, rules)
                if field is None:
                    raise
                forms = _FORMS.get(field, (field, ""))
                refused.setdefault(field, []).append(rules.get(field, forms[0]))
                left = [form for form in forms if form not in refused[field]]
                if not left:
                    raise
                rules[field], words[field] = left[0], brief(error.words)
        for field, said in words.items():
            form = rules[field]
            with self._lock:
                is_new = self._rules.get(field) != form
                self._rules[field] = form
            if is_new:
                how = f"sends it as {form!r}" if form else "leaves it out"
                self._report(f"{self._at} refused {field} ({said!r}): mutagym {how} from now on")
        return reply


def _in_dialect(body: Mapping[str, Any], rules: Mapping[str, str]) -> dict[str, Any]:
    """A request as the rules have it."""
    sent = dict(body)
    for field, form in rules.items():
        if field == "system" and form == "user":
            if "messages" in sent and sent["messages"][0]["role"] == "system":
                system, first, *others = sent["messages"]
                merged = {"content": f"{system['content']}\n\n{first['content']}"}
                sent["messages"] = [first | merged, *others]
        elif field in body and form != "json_schema":
            name, value = form, sent.pop(field)
            if field == "response_format":
                *others, last = sent["messages"]
                schema = json.dumps(value["json_schema"]["schema"])
                words = f"{last['content']}\n\nThe JSON object must follow this schema:\n{schema}"
                sent["messages"] = [*others, last | {"content": words}]
                name, value = field if form else "", {"type": form}
            if name:
                sent[name] = value
    return sent


def _refused_field(
    error: OllamaError, body: Mapping[str, Any], sent: Mapping[str, Any], rules: Mapping[str, str]
) -> str | None:
    """The field that a server refused: of several, the one that its words name first."""
    words = _ECHO.split(error.words)[0]
    messages = sent.get("messages", ()) if words else ()
    for message in messages:  # which the words may quote
        words = words.replace(message["content"], "")
    if not _REFUSAL.search(words):
        return None
    found = {}
    for field in body.keys() - _FIXED:
        form = rules.get(field, field)
        name = re.escape(form).replace("_", "_?")  # xAI's topP
        if field == "response_format":
            name = "response_format|json_schema"
        named = re.search(rf"(?<![\w-])({name})(?![\w-])", words, re.IGNORECASE)
        if named and form:
            found[field] = named.start()
    if found and isinstance(error, BadRequestError):  # a failure may name anything
        return min(found, key=found.__getitem__)
    has_system = any(message["role"] == "system" for message in messages)
    return "system" if has_system and _NO_SYSTEM.search(words) else None
