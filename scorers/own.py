"""A reward of the user's own: a function of theirs, or a sequence classifier that lies on disk.

    --reward mine.py:grade     def grade(query, reply): -> a label, or a score from 0 to 1
    --reward path/to/folder    what Hugging Face's `save_pretrained` wrote of a model for sequences

Both are handed the original query and the reply to what was made of it, and nothing is fetched: a classifier
is read from its folder. What refuses and what answers is told by its own labels (`id2label` of config.json).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from records.errors import UserError
from records.json_lines import read_json_object
from records.trust import kind_of
from records.user_file import error_line, load_function, score_of
from scorers.labels import REFUSAL_LABELS, RefusalLabel, parse_label

Grade = RefusalLabel | float
"""A label, or how well a reply answers, from 0 to 1."""
Grader = Callable[[str, str], Grade]
"""`(query, reply) -> grade`; several threads may call it at once."""
GOOD_SCORE = 0.5
"""A reply of this score or more answers. One of less is `undetermined`: a low score tells of no refusal."""


def is_own(reward: str) -> bool:
    """Whether a reward's name is a function's place or a folder, and no name of ours."""
    return bool(kind_of("reward", reward)) and (".py" in reward or "/" in reward or Path(reward).is_dir())


def load_grader(reward: str) -> Grader:
    """The user's function of `FILE.py:NAME`, or the classifier of a folder.

    A classifier's model is read when the first reply comes; its config.json, which says whether it can serve,
    at once.

    Raises:
        ValueError: There is no such file, function or folder, the function cannot be called with (query,
            reply), or the folder holds no classifier whose labels are known.
    """
    if ".py" in reward:
        return _function(reward)
    return _classifier(Path(reward))


def label_of(grade: Grade) -> RefusalLabel:
    """The label of a grade; of a score by `GOOD_SCORE`."""
    if isinstance(grade, str):
        return grade
    return "answered" if grade >= GOOD_SCORE else "undetermined"


def _function(spec: str) -> Grader:
    function = load_function(spec, ("query", "reply"), "reward", "a label or a score from 0 to 1")

    def grade(query: str, reply: str) -> Grade:
        try:
            value = function(query, reply)
        except (Exception, SystemExit) as error:
            raise UserError(f"reward {spec!r} failed: {error_line(spec, error)}") from error
        found = _grade_of(value)
        if found is None:
            raise UserError(
                f"reward {spec!r} returned {value!r:.60}; expected one of {', '.join(REFUSAL_LABELS)}, or a "
                "number from 0 (no answer) to 1"
            )
        return found

    return grade


def _grade_of(value: object) -> Grade | None:
    """A grade of what a user's function returned; True and 1 are a full score. None: it is neither."""
    if isinstance(value, str):
        return parse_label(value) if not value.strip()[:1].isdigit() else None
    return score_of(value)


def _classifier(folder: Path) -> Grader:
    labels = _labels_of(folder)
    lock = threading.Lock()

    @functools.cache
    def parts() -> tuple[Any, Any]:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            why = str(error).splitlines()[0]
            raise UserError(
                f"the classifier in {str(folder)!r} cannot be read: {why}; expected the model and its "
                "tokenizer as save_pretrained writes them"
            ) from error
        return tokenizer, model.eval()

    @functools.lru_cache(maxsize=4096)
    def label(reply: str) -> RefusalLabel:
        import torch

        with lock, torch.inference_mode():
            tokenizer, model = parts()
            limit = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))
            tokens = tokenizer(reply, return_tensors="pt", truncation=True, max_length=limit)
            return labels[int(model(**tokens).logits[0].argmax())]

    return lambda _query, reply: label(reply)


def _labels_of(folder: Path) -> Mapping[int, RefusalLabel]:
    """What each output of a classifier means.

    Raises:
        ValueError: There is no readable config.json, it names no labels, or one that is not known, or they do
            not tell answers from what is none.
    """
    place = folder / "config.json"
    if not folder.is_dir():
        raise ValueError(
            f"--reward names {str(folder)!r}, which is no folder; expected the folder of a classifier, or "
            "FILE.py:NAME"
        )
    try:
        names = read_json_object(place).get("id2label") or {}
        found = {int(number): parse_label(name) for number, name in names.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--reward names {str(folder)!r}, whose config.json cannot be read: {error}"
        ) from None
    known = {number: label for number, label in found.items() if label is not None}
    if len(known) < len(names) or "answered" not in known.values() or len(set(known.values())) == 1:
        shown = ", ".join(repr(name) for name in names.values()) or "none"
        raise ValueError(
            f"the classifier in {str(folder)!r} has the labels {shown}; expected each to be one of "
            f"{', '.join(REFUSAL_LABELS)} (or a usual word for it, as refusal and compliance), `answered` "
            "and another at least: write their meaning into id2label of its config.json"
        )
    return known
