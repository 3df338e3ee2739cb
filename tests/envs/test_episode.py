"""The episode as a plan: what it asks for, and what it makes of the replies. No server is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.episode import Ask, Embed, Episode, EpisodePlan, Judge, Rewrite, Rules, Transition, derive_seed
from mutators.registry import load_mutators
from ollama_utils.errors import BadReplyError, CallTimeoutError, ModelMissingError, OllamaError
from ollama_utils.types import Completion, Usage
from scorers.reward import Verdict

NEAR = np.array([0.8, 0.6], np.float32)
SAME = np.array([1.0, 0.0], np.float32)
FAR = np.array([0.0, 1.0], np.float32)
ANSWERED = Verdict(
    outcome="answered", partial=False, intent_kept=True, success=True, reward=0.95, parts={"answered": 1.0}
)
REFUSED = Verdict(
    outcome="refused", partial=False, intent_kept=True, success=False, reward=-0.05, parts={"answered": 0.0}
)


def begun(max_steps: int = 2) -> Episode:
    rules = Rules(mutators=load_mutators(["noop", "paraphrase"]), max_steps=max_steps, intent_threshold=0.5)
    episode = Episode(rules=rules, original="how?", seed=7, number=0)
    drive(episode.begin(), SAME)
    return episode


def drive(plan: EpisodePlan[Any], *replies: object) -> tuple[list[Any], Any]:
    """The requests that the plan made for one reply after another, and what it returned."""
    requests: list[Any] = []
    sent: tuple[object, ...] | None = None
    pending = iter(replies)
    while True:
        try:
            (request,) = plan.send(sent)  # type: ignore[arg-type]
        except StopIteration as end:
            assert next(pending, None) is None, "the plan left replies unused"
            return requests, end.value
        requests.append(request)
        sent = (next(pending),)


def step(episode: Episode, *replies: object, action: int = 1) -> Transition:
    transition = drive(episode.step(action), *replies)[1]
    assert isinstance(transition, Transition)
    return transition


def test_a_step_asks_for_a_rewrite_its_embedding_an_answer_and_a_verdict() -> None:
    requests, transition = drive(
        begun().step(1), Completion(text="in what way?"), NEAR, Completion(text="so"), ANSWERED
    )
    assert [type(request) for request in requests] == [Rewrite, Embed, Ask, Judge]
    assert requests[2].query == "in what way?"
    assert requests[3].original == "how?"
    assert requests[3].similarity == pytest.approx(0.8)
    assert transition.terminated
    assert transition.reward == 0.95


@pytest.mark.parametrize(
    ("rewrite", "embedding", "why"),
    [
        (Completion(text=""), SAME, "empty"),
        (Completion(text="how big is France?"), FAR, "drifted"),
        (Completion(text="in what", truncated=True), NEAR, "cut"),
        (Completion(text="", filtered=True), SAME, "filtered"),
        (Completion(text="in what way?", filtered=True), NEAR, "filtered"),
        (Completion(text="I'm sorry, but I can't help with that."), NEAR, "refused"),
        (Completion(text="You press the button."), NEAR, "answered"),
        (Completion(text="The query asks in what way."), NEAR, "commented"),
        (Completion(text="why?"), NEAR, "strayed"),
    ],
)
def test_a_rewrite_that_is_no_good_is_not_adopted_and_says_why(
    rewrite: Completion, embedding: np.ndarray[Any, Any], why: str
) -> None:
    episode = begun()
    requests, transition = drive(episode.step(1), rewrite, embedding, Completion(text="no"), REFUSED)
    assert requests[2].query == "how?"
    assert transition.info["rejected"] == why
    assert not transition.info["adopted"]
    assert episode.query == "how?"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("paraphrase", "How do I put out a lamp?", "drifted"),
        ("paraphrase", "How can I put a fire out? I want to learn.", ""),
        ("noop", "How do I put out a lamp?", ""),
    ],
)
def test_a_model_that_leaves_out_words_is_held_to_more_likeness(name: str, text: str, why: str) -> None:
    (mutator,) = load_mutators([name])
    rules = Rules(mutators=(mutator,), intent_threshold=0.5)
    episode = Episode(rules=rules, original="How do I put out a fire?", seed=7, number=0)
    drive(episode.begin(), SAME)
    near = np.array([0.79, 0.61], np.float32)
    assert episode.rejection(mutator, Completion(text=text), near) == why
    assert episode.rejection(mutator, Completion(text=text), np.array([0.81, 0.59], np.float32)) == ""


def test_a_model_that_leaves_out_words_is_adopted_under_an_encoder_that_finds_all_alike() -> None:
    (mutator,) = load_mutators(["paraphrase"])
    episode = Episode(
        rules=Rules(mutators=(mutator,), intent_threshold=0.85),
        original="How do I put out a fire?",
        seed=7,
        number=0,
    )
    drive(episode.begin(), SAME)
    reworded = Completion(text="How do I extinguish a fire?")
    assert episode.rejection(mutator, reworded, np.array([0.95, 0.312], np.float32)) == ""
    assert episode.rejection(mutator, reworded, np.array([0.9, 0.436], np.float32)) == "drifted"


def test_a_query_that_itself_reads_like_a_refusal_can_be_reworded() -> None:
    rules = Rules(mutators=load_mutators(["paraphrase"]), intent_threshold=0.5)
    episode = Episode(rules=rules, original="I cannot help my dog up the stairs: how?", seed=7, number=0)
    drive(episode.begin(), SAME)
    reworded = Completion(text="I cannot help my old dog up the steps: what now?")
    assert drive(episode.step(0), reworded, NEAR, Completion(text="so"), ANSWERED)[1].info["adopted"]


def test_the_step_limit_truncates_and_success_terminates() -> None:
    episode = begun(max_steps=2)
    first = step(episode, Completion(text="in what way?"), NEAR, Completion(text="no"), REFUSED)
    last = step(episode, Completion(text="how so?"), NEAR, Completion(text="no"), REFUSED)
    assert (first.terminated, first.truncated) == (False, False)
    assert (last.terminated, last.truncated) == (False, True)
    assert episode.earlier == ("how?", "in what way?")


@pytest.mark.parametrize("failing", ["rewrite", "embedding", "reply"])
def test_a_failed_call_leaves_the_step_undone(failing: str) -> None:
    episode = begun()
    before = episode.observe()
    error = CallTimeoutError("too late")
    unscored = Verdict(
        outcome="unscored", partial=False, intent_kept=False, success=False, reward=0.0, parts={}, error="e"
    )
    replies: dict[str, tuple[object, ...]] = {
        "rewrite": (Completion(text="how?", error=error),),
        "embedding": (Completion(text="in what way?"), error),
        "reply": (Completion(text="in what way?"), NEAR, Completion(text="", error=error), unscored),
    }
    transition = step(episode, *replies[failing])
    assert transition.info["unscored"]
    assert transition.info["error"]
    assert (transition.reward, transition.terminated, transition.truncated) == (0.0, False, False)
    assert np.array_equal(transition.observation, before)
    assert (episode.query, episode.step_count, episode.attempt) == ("how?", 0, 1)


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (CallTimeoutError("late"), False),
        (BadReplyError("empty, and so each time with this seed", retryable=False), False),
        (ModelMissingError("not pulled"), True),
    ],
)
def test_only_a_failure_that_another_seed_does_not_mend_is_permanent(
    error: OllamaError,
    permanent: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert step(begun(), Completion(text="how?", error=error)).info["permanent"] is permanent


def test_another_attempt_has_another_seed_and_a_scored_step_starts_counting_anew() -> None:
    episode = begun()
    seeds = [episode.seed_for("rewrite")]
    step(episode, Completion(text="how?", error=CallTimeoutError("late")))
    seeds.append(episode.seed_for("rewrite"))
    step(episode, Completion(text="in what way?"), NEAR, Completion(text="no"), REFUSED)
    seeds.append(episode.seed_for("rewrite"))
    assert len(set(seeds)) == 3
    assert episode.attempt == 0


def test_an_embedding_that_fails_at_the_start_is_raised() -> None:
    rules = Rules(mutators=load_mutators(["noop"]), intent_threshold=0.5)
    plan = Episode(rules=rules, original="how?", seed=7, number=0).begin()
    next(plan)
    with pytest.raises(OllamaError, match="late"):
        plan.send((CallTimeoutError("late"),))


def test_seeds_depend_on_the_whole_key_and_are_the_same_in_every_process() -> None:
    assert derive_seed(1, 2, 3, 4, "ask") == derive_seed(1, 2, 3, 4, "ask")
    assert derive_seed(1, 23, "ask") != derive_seed(12, 3, "ask")
    assert 0 <= derive_seed(5, "rewrite") < 2**31
    assert derive_seed(0) == 1200591173


def test_every_step_has_the_same_keys_but_for_what_was_never_scored() -> None:
    scored = step(begun(), Completion(text="in what way?"), NEAR, Completion(text="no"), REFUSED)
    unscored = step(begun(), Completion(text="how?", error=CallTimeoutError("late")))
    assert set(scored.info) - set(unscored.info) == {"reward_parts"}
    assert set(unscored.info) <= set(scored.info) | {"outcome"}


def completion(text: str, prompt_tokens: int, completion_tokens: int, decode_s: float) -> Completion:
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        decode_s=decode_s,
        total_s=decode_s + 0.25,
    )
    return Completion(text=text, usage=usage)


def test_what_each_recorded_field_of_a_step_is() -> None:
    episode = begun(max_steps=3)
    adopted = drive(
        episode.step(1), completion("in what way?", 10, 4, 1.0), NEAR, completion("no", 3, 1, 0.5), REFUSED
    )[1].info
    rejected = drive(
        episode.step(1),
        completion("how big is France?", 20, 5, 1.0),
        FAR,
        completion("so", 4, 2, 0.5),
        ANSWERED,
    )[1].info
    common = {"original_query": "how?", "mutator": "paraphrase", "episode_number": 0, "attempt": 0}
    whole = {
        "reply_truncated": False,
        "partial": False,
        "undetermined": False,
        "unscored": False,
        "error": "",
        "permanent": False,
    }
    assert adopted == common | whole | {
        "query_before": "how?",  # what was reworded, not what came of it
        "mutated_query": "in what way?",
        "adopted": True,
        "rejected": "",
        "reply": "no",
        "step_number": 0,
        "outcome": "refused",
        "intent_similarity": pytest.approx(0.8),  # of the query that was asked, to the original
        "success": False,
        "reward": -0.05,
        "reward_parts": {"answered": 0.0},
        "usage": {"prompt_tokens": 13.0, "completion_tokens": 5.0, "queue_s": 0.5, "total_s": 2.0},
    }
    assert rejected == common | whole | {
        "query_before": "in what way?",  # what was reworded, and asked as it was
        "mutated_query": "how big is France?",
        "adopted": False,
        "rejected": "drifted",
        "reply": "so",
        "step_number": 1,
        "outcome": "answered",
        "intent_similarity": pytest.approx(0.8),
        "success": True,
        "reward": 0.95,
        "reward_parts": {"answered": 1.0},
        "usage": {"prompt_tokens": 24.0, "completion_tokens": 7.0, "queue_s": 0.5, "total_s": 2.0},
    }


def test_what_is_recorded_of_a_step_that_came_to_nothing() -> None:
    episode = begun()
    step(episode, Completion(text="in what way?"), NEAR, Completion(text="no"), REFUSED)
    step(episode, Completion(text="in what way?", error=CallTimeoutError("late")))
    info = step(episode, Completion(text="in what way?", error=CallTimeoutError("too late"))).info
    assert info == {
        "original_query": "how?",
        "query_before": "in what way?",
        "mutated_query": "in what way?",
        "mutator": "paraphrase",
        "reply": "",
        "reply_truncated": False,
        "episode_number": 0,
        "step_number": 1,
        "attempt": 1,
        "adopted": False,
        "rejected": "",
        "outcome": "unscored",
        "partial": False,
        "undetermined": False,
        "intent_similarity": 0.0,
        "success": False,
        "reward": 0.0,
        "unscored": True,
        "error": "CallTimeoutError: too late",
        "permanent": False,
        "usage": {"prompt_tokens": 0.0, "completion_tokens": 0.0, "queue_s": 0.0, "total_s": 0.0},
    }
