"""A reward of the user's own: a function of theirs, or a sequence classifier that lies on disk.

    --reward mine.py:grade     def grade(query, reply): -> a label, or a score from 0 to 1
    --reward path/to/folder    what Hugging Face's `save_pretrained` wrote of a model for sequences

Nothing is fetched: a classifier is read from its folder. What refuses and what answers its own
labels say (`id2label` of config.json).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from records.errors import UserError, describe
from records.json_lines import read_json_object
from records.trust import kind_of
from records.user_file import error_line, load_function, score_of
from scorers.labels import REFUSAL_LABELS, RefusalLabel, parse_label

Grade = RefusalLabel | float
"""A label, or how well a reply answers, from 0 to 1."""
Grader = Callable[[str, str], Grade]
"""`(query, reply) -> grade`, of the original query; several threads may call it at once."""
GOOD_SCORE = 0.5
"""A reply of this score or more answers; one of less is `undetermined`, for it may not refuse."""


def is_own(reward: str) -> bool:
    """Whether a reward's name is a function's place or a folder, and no name of ours."""
    # os.path.isdir is False, too, for what is too long to be a path.
    is_place = ".py" in reward or "/" in reward or os.path.isdir(reward)  # noqa: PTH112
    return is_place and bool(kind_of("reward", reward))


def load_grader(reward: str) -> Grader:
    """The user's function of `FILE.py:NAME`, or the classifier of a folder.

    A classifier's model is read when the first reply comes.

    Raises:
        ValueError: there is none, the function cannot be called with (query, reply), or the folder
            holds no classifier whose labels are known.
    """
    return _function(reward) if ".py" in reward else _classifier(Path(reward))


def label_of(grade: Grade) -> RefusalLabel:
    """The label of a grade; of a score by `GOOD_SCORE`."""
    if isinstance(grade, str):
        return grade
    return "answered" if grade >= GOOD_SCORE else "undetermined"


def _function(spec: str) -> Grader:
    expected = f"one of {', '.join(REFUSAL_LABELS)}, or a number from 0 (no answer) to 1"
    returned = "a label or a score from 0 to 1"
    function = load_function(spec, ("query", "reply"), "reward", returned)

    def grade(query: str, reply: str) -> Grade:
        try:
            value = function(query, reply)
        except (Exception, SystemExit) as error:
            raise UserError(f"reward {spec!r} failed: {error_line(spec, error)}") from error
        is_word = isinstance(value, str) and not value.strip()[:1].isdigit()
        found = parse_label(value) if is_word else score_of(value)
        if found is None:
            raise UserError(f"reward {spec!r} returned {value!r:.60}; expected {expected}")
        return found

    return grade


def _classifier(folder: Path) -> Grader:
    labels = _labels_of(folder)
    lock = threading.Lock()

    @cache
    def classifier() -> Any:  # noqa: ANN401 - transformers' own kinds are many
        from transformers import pipeline

        try:
            return pipeline("text-classification", str(folder), device="cpu")
        except Exception as error:  # whatever the libraries raise of damaged files
            raise UserError(
                f"the classifier in {str(folder)!r} cannot be read: {describe(error)}; "
                "expected the model and its tokenizer as save_pretrained writes them"
            ) from error

    @lru_cache(maxsize=4096)
    def label(reply: str) -> RefusalLabel:
        with lock:
            classify = classifier()
            longest = getattr(classify.model.config, "max_position_embeddings", 512)
            limit = min(classify.tokenizer.model_max_length, longest)
            return labels[classify(reply, truncation=True, max_length=limit)[0]["label"]]

    return lambda _query, reply: label(reply)


def _labels_of(folder: Path) -> Mapping[str, RefusalLabel]:
    """What each of a classifier's own labels means."""
    try:
        names = read_json_object(folder / "config.json").get("id2label") or {}
        found = {name: parse_label(name) for name in names.values()}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--reward names {str(folder)!r:.80}; expected a classifier, or FILE.py:NAME: "
            f"its config.json cannot be read: {error!s:.200}"
        ) from None
    meanings = {label for label in found.values() if label is not None}
    if None in found.values() or "answered" not in meanings or len(meanings) == 1:
        raise ValueError(
            f"the classifier in {str(folder)!r} has the labels {', '.join(map(repr, found))}; "
            f"expected each to be one of {', '.join(REFUSAL_LABELS)} (or a usual word for it, as "
            "refusal and compliance), `answered` and another at least: write their meaning into "
            "id2label of its config.json"
        )
    return {name: label for name, label in found.items() if label is not None}
