"""A system prompt as its sections: role, task, method, check, format; and texts to put in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SECTIONS = ("role", "task", "method", "check", "format")
"""In the order in which a prompt has them."""

_LABEL = re.compile(rf"({'|'.join(name.capitalize() for name in SECTIONS)}):[ ]?(.*)", re.DOTALL)
_INDENT = "  "

SECTION_TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "role": (
            "You are a helpful assistant.",
            "You are a patient teacher who works things out before answering.",
            "You are a careful accountant: every figure is looked at twice.",
            "You are an editor who reads every word letter by letter.",
            "You are a quick expert who needs few words.",
        ),
        "task": (
            "Answer the question.",
            "Read the question to its end, say to yourself what is asked, and answer that.",
            "Solve the problem you are given.",
            "Find out what kind of question it is, and answer it as that kind needs.",
        ),
        "method": (
            "Answer at once.",
            "Think step by step.",
            "Go through the text letter by letter and count as you go.",
            "Handle the items one at a time, in order.",
            "Write down the unit of every quantity, and the conversion factor between two units.",
            "Break it into small parts, and solve each one.",
            "Count dates in whole weeks, and then the days that are left.",
        ),
        "check": (
            "Trust your first thought.",
            "Check your answer before you give it.",
            "Work it out a second way and compare.",
            "Check that every item of the question is in the answer.",
            "Check the units of the answer.",
        ),
        "format": (
            "Give the answer as one word or number.",
            "End with a line that says 'Answer:' and the answer alone.",
            "Show your work, then give the answer on the last line.",
            "Be brief.",
        ),
    }
)
"""By section: what a mutation by rule puts there. Some help one kind of question and hurt another."""


@dataclass(frozen=True, kw_only=True)
class PromptSections:
    """One system prompt in parts; a part may be empty. White space around a part is dropped."""

    role: str = ""
    task: str = ""
    method: str = ""
    check: str = ""
    format: str = ""

    def __post_init__(self) -> None:
        for name in SECTIONS:
            object.__setattr__(self, name, getattr(self, name).strip())

    @classmethod
    def read(cls, prompt: str) -> PromptSections:
        """The sections of a whole prompt; what stands before the first label belongs to the task.

        `PromptSections.read(sections.text) == sections`.
        """
        lines: dict[str, list[str]] = {name: [] for name in SECTIONS}
        here = "task"
        labelled = False
        for line in prompt.split("\n"):
            if label := _LABEL.fullmatch(line):
                here, labelled = label[1].lower(), True
                lines[here].append(label[2])
            else:
                lines[here].append(line.removeprefix(_INDENT) if labelled else line)
        return cls(**{name: "\n".join(lines[name]) for name in SECTIONS})

    @property
    def text(self) -> str:
        """The whole prompt: each section behind its label, further lines of it indented.

        A prompt that has nothing but a task is that task, without a label.
        """
        if self._is_plain:
            return self.task
        return "\n".join(
            f"{name.capitalize()}: {getattr(self, name)}".replace("\n", "\n" + _INDENT)
            for name in SECTIONS
            if getattr(self, name)
        )

    @property
    def _is_plain(self) -> bool:
        others = any(getattr(self, name) for name in SECTIONS if name != "task")
        return not others and not any(_LABEL.fullmatch(line) for line in self.task.split("\n"))
