"""A reward of the user's own: a function in a file, or a sequence classifier in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ollama_utils.types import Completion
from records.errors import UserError
from scorers.own import load_grader
from scorers.reward import Verdict, make_scorer

FUNCTIONS = """
def by_words(query, reply):
    if not reply.strip():
        return "undetermined"
    return "full_refusal" if "sorry" in reply else "answered"

def by_length(query, reply):
    return min(1.0, len(reply) / 100)

def agrees(query, reply):
    return query in reply

def fails(query, reply):
    return 1 / 0

def odd(query, reply):
    return "perhaps"

def large(query, reply):
    return 7
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def classifier(folder: Path, labels: dict[int, str]) -> str:
    """A tiny classifier with its tokenizer, as `save_pretrained` writes both."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "sorry",
        "walk",
        "in",
        "the",
        "park",
        ".",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
    )
    model = BertForSequenceClassification(config)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[:] = model.classifier.bias.data.new_tensor([0.0, 1.0])
    model.save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def score(reward: str, reply: str, similarity: float = 1.0) -> Verdict:
    return make_scorer(reward, step_cost=0.05)(
        "the park", "the park", Completion(text=reply), similarity
    )


@pytest.mark.parametrize(
    ("name", "reply", "outcome", "reward"),
    [
        ("by_words", "A walk.", "answered", 0.95),
        ("by_words", "I am sorry.", "refused", -0.05),
        ("by_length", "x" * 80, "answered", 0.75),
        ("by_length", "x" * 20, "answered", 0.15),
        ("agrees", "Go to the park.", "answered", 0.95),
        ("agrees", "Stay here.", "answered", -0.05),
    ],
)
def test_a_function_says_what_a_reply_is_worth(
    mine: str, name: str, reply: str, outcome: str, reward: float
) -> None:
    verdict = score(f"{mine}:{name}", reply)
    assert verdict.outcome == outcome
    assert verdict.reward == pytest.approx(reward)
    assert verdict.success == (reward > 0.5)
    assert verdict.undetermined == (outcome == "answered" and not verdict.success)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", r"fails' failed: ZeroDivisionError: division by zero \(line 14\)"),
        (
            "odd",
            "returned 'perhaps'; expected one of answered, partly_refused, refused, undetermined",
        ),
        ("large", "returned 7; expected one of answered"),
    ],
)
def test_a_function_that_fails_or_says_no_grade_is_the_users_error(
    mine: str, name: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        score(f"{mine}:{name}", "A walk.")


@pytest.mark.parametrize(
    ("labels", "outcome", "undetermined"),
    [
        ({0: "NORMAL", 1: "REJECTION"}, "refused", False),
        ({0: "Refusal", 1: "Non-refusal"}, "answered", False),
        ({0: "answered", 1: "undetermined"}, "answered", True),
    ],
)
def test_a_classifiers_own_labels_say_what_it_means(
    tmp_path: Path,
    labels: dict[int, str],
    outcome: str,
    undetermined: bool,  # noqa: FBT001 - a column
) -> None:
    folder = classifier(tmp_path / "model", labels)
    verdict = score(folder, "A walk in the park. " * 40)  # longer than the model's positions
    assert (verdict.outcome, verdict.undetermined) == (outcome, undetermined)


@pytest.mark.parametrize("labels", [{0: "LABEL_0", 1: "LABEL_1"}, {0: "refusal", 1: "rejection"}])
def test_labels_without_a_known_meaning_are_an_error(
    tmp_path: Path, labels: dict[int, str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
    with pytest.raises(
        ValueError, match=f"has the labels '{labels[0]}', '{labels[1]}'; expected each to be"
    ):
        load_grader(str(tmp_path))


def test_a_folder_that_holds_no_model_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        load_grader(str(tmp_path))
    with pytest.raises(ValueError, match="expected a classifier"):
        load_grader(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {0: "answered", 1: "refused"}}))
    with pytest.raises(UserError, match="cannot be read"):
        score(str(tmp_path), "A walk.")


def test_weights_that_were_cut_off_are_the_users_error_in_one_line(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", {0: "answered", 1: "refused"})
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(UserError, match="cannot be read") as error:
        score(folder, "A walk.")
    assert "\n" not in str(error.value)
