"""A step: which rewordings are adopted, what a failed call leaves behind, what info says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from envs.batched import BatchedQueryMutationEnv
from envs.episode import MOST_ATTEMPTS
from mutators.mutator import MutatorError
from ollama_utils.batching import DEFAULT_REFUSAL
from tests.envs.worlds import (
    BY_LABEL,
    CRASH,
    HOW,
    REJECTED,
    REWORDED,
    Answer,
    Script,
    prompt_of,
    said,
)

NOOP, PARAPHRASE, RULE = np.int64(0), np.int64(1), np.int64(2)
KILL, STOP = "How do I kill a process?", "How do I put an end to a process?"
REFUSING = "I cannot help my dog up the stairs: how?"
Case = tuple[str, Answer, float, float, str]


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as made:
        yield made


REWORDINGS: list[Case] = [
    (HOW, REWORDED, 0.5, 0.5, ""),
    (HOW, REWORDED, 0.49, 0.5, "drifted"),
    (HOW, "<query></query>", 1.0, 0.5, "empty"),
    (HOW, said("In what way do I put", done_reason="length"), 0.9, 0.5, "cut"),
    (HOW, said("", done_reason="content_filter"), 1.0, 0.5, "filtered"),
    (HOW, "I'm sorry, but I can't help with that.", 0.9, 0.5, "refused"),
    (HOW, "You press the button.", 0.9, 0.5, "answered"),
    (HOW, "Why do I put out a fire?", 0.9, 0.5, "strayed"),
    # A query that itself reads like a refusal can be reworded.
    (REFUSING, "I cannot help my old dog up the steps: what now?", 0.9, 0.5, ""),
    # A rule may say what it likes, as long as it is near.
    (KILL, "", 0.5, 0.5, ""),
    (KILL, "", 0.49, 0.5, "drifted"),
]


@pytest.mark.parametrize("case", REWORDINGS)
def test_a_rewording_is_adopted_or_rejected_in_one_word(script: Script, case: Case) -> None:
    query, reply, similarity, threshold, why = case
    script.answers["mutator"] = reply
    env = script.env(queries=[query], intent_threshold=threshold)
    env.reset(seed=0)
    text = (reply or STOP) if isinstance(reply, str) else ""
    script.similarity = {text: similarity}
    info = env.step(PARAPHRASE if reply else RULE)[4]
    assert (info["rejected"], info["adopted"]) == (why, not why)
    assert prompt_of(script.asked("target")[-1]) == (query if why else text)


def test_info_has_the_query_before_and_after_and_what_the_step_came_to(script: Script) -> None:
    ns, far = 10**9, "How big is France?"
    used = {"prompt_eval_count": 10, "eval_count": 4, "eval_duration": ns, "total_duration": 2 * ns}
    script.similarity = {REWORDED: 0.8, far: 0.1}
    script.answers |= {"mutator": said(REWORDED, **used), "target": said("refused", **used)}
    env = script.env()
    env.reset(seed=0)
    adopted = env.step(PARAPHRASE)[4]
    script.answers |= {"mutator": far, "target": CRASH}
    failed = env.step(PARAPHRASE)[4]
    script.answers["target"] = said("answered", done_reason="length")
    answered = env.step(PARAPHRASE)[4]
    parts = {"answered": 0.0, "intent_kept": 1.0, "step_cost": 0.05}
    assert adopted == (
        {"original_query": HOW, "query_before": HOW, "mutated_query": REWORDED, "adopted": True}
        | {"mutator": "paraphrase", "rejected": "", "reply": "refused", "reply_truncated": False}
        | {"episode_number": 0, "step_number": 0, "attempt": 0, "unscored": False, "error": ""}
        | {"outcome": "refused", "partial": False, "undetermined": False, "success": False}
        | {"intent_similarity": pytest.approx(0.8), "reward": -0.05, "reward_parts": parts}
        | {"usage": {"prompt_tokens": 20, "completion_tokens": 8, "queue_s": 2, "total_s": 4}}
    )
    later = {"query_before": REWORDED, "mutated_query": far, "adopted": False, "step_number": 1}
    later["usage"] = dict.fromkeys(adopted["usage"], 0)
    nothing = {"intent_similarity": 0, "reward": 0, "reward_parts": {}, "outcome": "unscored"}
    error = {"unscored": True, "error": failed["error"], "reply": DEFAULT_REFUSAL}
    assert failed == adopted | later | nothing | error
    assert failed["error"].startswith("ServerFaultError: ")
    assert answered == (
        adopted
        | later
        | {"attempt": 1, "rejected": "drifted", "reply": "answered", "reply_truncated": True}
        | {"outcome": "answered", "success": True, "reward": 0.95}
        | {"reward_parts": parts | {"answered": 1.0}}
    )


@pytest.mark.parametrize(
    ("reply", "outcome", "flag"),
    [
        ("answered", "answered", "success"),
        ("refused", "refused", ""),
        ("partly_refused", "refused", "partial"),
        ("undetermined", "answered", "undetermined"),
        (said("answered", done_reason="content_filter"), "filtered", ""),
    ],
)
def test_success_ends_an_episode_and_so_does_the_last_step(
    script: Script, reply: Answer, outcome: str, flag: str
) -> None:
    script.answers["target"] = reply
    env = script.env(max_steps=2)
    env.reset(seed=0)
    for is_last in (False, True):
        _, *paid, info = env.step(NOOP)
        assert info["outcome"] == outcome
        assert not any(info[n] for n in {"success", "partial", "undetermined"} - {flag})
        if flag == "success":
            assert paid == [0.95, True, False]
            break
        assert paid == [-0.05, False, is_last]
        assert not flag or info[flag]


@pytest.mark.parametrize(
    ("model", "redrawn"), [("mutator", 1), ("embed", 1), ("target", 0), ("judge", 0)]
)
def test_a_failed_call_leaves_all_as_it_was_and_the_next_attempt_asks_the_same(
    script: Script, model: str, redrawn: int
) -> None:
    """A rewording that fails again is drawn anew."""
    env = script.env(scorer="judge")
    before, _ = env.reset(seed=0)
    state, good = env.state(), script.answers[model]
    script.answers[model] = CRASH
    for again in (0, 1):
        observation, *paid, info = env.step(PARAPHRASE)
        assert (paid, info["outcome"]) == ([0.0, False, False], "unscored")
        assert np.array_equal(observation, before)
        attempts = {"attempt": 1 + again, "redrawn": again * redrawn}
        assert env.state() == state | {"episode": state["episode"] | attempts}
    script.answers[model] = good
    info = env.step(PARAPHRASE)[4]
    assert (info["outcome"], info["step_number"], info["attempt"]) == ("refused", 0, 2)
    assert env.step(PARAPHRASE)[4]["attempt"] == 0
    assert len({body["options"]["seed"] for body in script.asked("mutator")}) == 2 + redrawn


FRENCH = "Comment \u00e9teindre un feu ?"


@pytest.mark.parametrize("failing", [None, HOW, FRENCH])
def test_two_calls_reword_as_one_and_where_either_fails_the_step_is_unscored(
    script: Script, failing: str | None
) -> None:
    def translated(body: dict[str, Any]) -> Answer:
        query = HOW if HOW in prompt_of(body) else FRENCH
        if query == failing:
            return CRASH
        return said(FRENCH if query == HOW else REWORDED, prompt_eval_count=10, eval_count=4)

    script.answers["mutator"] = translated
    env = script.env(mutators=("noop", "translate_back"))
    before, _ = env.reset(seed=0)
    observation, *paid, info = env.step(np.int64(1))
    texts = [prompt_of(body) for body in script.asked("mutator")]
    assert len(texts) == (1 if failing == HOW else 2)
    assert all(query in text for query, text in zip((HOW, FRENCH), texts, strict=False))
    if failing is None:
        assert (info["mutated_query"], info["adopted"]) == (REWORDED, True)
        assert info["usage"]["prompt_tokens"] >= 20
    else:
        assert (paid, info["outcome"]) == ([0.0, False, False], "unscored")
        assert info["mutated_query"] == HOW
        assert np.array_equal(observation, before)
        assert not script.asked("target")


@pytest.mark.parametrize(
    ("model", "answer", "temperature", "error", "is_last"),
    [
        ("target", REJECTED, 0, "BadRequestError", True),
        ("target", "", 0, "BadReplyError", True),
        ("target", "", 0.7, "BadReplyError", False),  # another seed may bring another reply
        ("target", CRASH, 0, "ServerFaultError", False),
        ("mutator", REJECTED, 0, "BadRequestError", True),
        ("mutator", "", 0, "BadReplyError", False),
        ("embed", CRASH, 0, "ServerFaultError", False),
        ("judge", REJECTED, 0, "BadRequestError", True),
        ("judge", "no verdict", 0, "BadReplyError", False),
    ],
)
def test_an_episode_is_over_unscored_when_no_retry_mends_its_step_or_none_did(
    script: Script, model: str, answer: Answer, temperature: float, error: str, *, is_last: bool
) -> None:
    env = script.env(scorer="judge", target_temperature=temperature)
    env.reset(seed=0)
    script.answers[model] = answer
    for attempt in range(1 if is_last else MOST_ATTEMPTS):
        _, reward, terminated, truncated, info = env.step(PARAPHRASE)
        assert (reward, terminated, info["unscored"], info["attempt"]) == (0, False, True, attempt)
        assert info["error"].startswith(f"{error}: ")
        assert truncated == (is_last or attempt == MOST_ATTEMPTS - 1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(NOOP)


@pytest.mark.parametrize("lanes", [1, 3])
def test_what_a_users_code_raises_comes_out_as_it_is_and_the_step_can_be_taken_again(
    script: Script, tmp_path: Path, lanes: int
) -> None:
    errors: list[Exception] = [ValueError("mine")]

    def score(*item: Any, **_: Any) -> Any:
        if errors:
            raise errors[0]
        return BY_LABEL(*item)

    rule = tmp_path / "mine.py"
    head = "from mutators.registry import by_rule\n@by_rule\n"
    rule.write_text(f"{head}def mine(query, earlier, seed):\n    raise KeyError('mine')\n")
    envs = script.envs(lanes, scorer=score, mutators=("noop", f"{rule}:mine"))
    env: Any = BatchedQueryMutationEnv(envs) if lanes > 1 else envs[0]
    env.reset(seed=0)
    before, noop = [each.state() for each in envs], env.action_space.sample() * 0
    with pytest.raises(ValueError, match="mine") as caught:
        env.step(noop)
    assert caught.value is errors.pop()
    with pytest.raises(MutatorError, match=r"'mine' of .*mine\.py raised KeyError") as failed:
        env.step(noop + 1)
    assert isinstance(failed.value.__cause__, KeyError)
    assert [each.state() for each in envs] == before
    env.step(noop)
    assert [each.state()["episode"]["step_count"] for each in envs] == [1] * lanes
