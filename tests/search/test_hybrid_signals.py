"""Signals of a hybrid search: one that fails changes nothing, and who is asked at once and who one by one."""

from __future__ import annotations

import threading

import pytest

from search.hybrid import ActorCriticParams, HybridOptimizationFlow, RewardWeights
from tests.search.flows import KnowingCritic, NotingActor, flow_of
from tests.search.small_world import PROMPTS, SmallModel, is_right, questions

TEXTS = [question for _, question in questions(4, seed=4)]


class Fickle:
    """Feedback that fails at one query until it is mended."""

    def __init__(self, query: str) -> None:
        self._query: str | None = query
        self.heard: list[str] = []

    def __call__(self, query: str, reply: str) -> float:
        self.heard.append(query)
        if query == self._query:
            raise ZeroDivisionError("no idea")
        return is_right(query, reply)

    def mend(self) -> None:
        self._query = None


def test_feedback_that_fails_at_a_later_query_changes_nothing_for_the_earlier_ones_either() -> None:
    flow, feedback = flow_of(update_interval=1), Fickle(TEXTS[2])
    before = flow.population.members
    with pytest.raises(ZeroDivisionError, match="no idea"):
        flow.step_many(TEXTS, feedback)
    assert feedback.heard == TEXTS[:3]
    assert (flow.population.members, flow.population.generation) == (before, 0)
    assert (flow.steps, flow.rewarded_steps, flow.unscored) == (0, 0, 0)
    assert isinstance(flow.actor, NotingActor)
    assert isinstance(flow.critic, KnowingCritic)
    assert (flow.actor.told, flow.critic.told) == ([], [])


@pytest.mark.parametrize("for_all", [False, True])
def test_queries_whose_feedback_failed_are_given_again_as_if_it_never_had(for_all: bool) -> None:  # noqa: FBT001
    model, feedback = SmallModel(), Fickle(TEXTS[2])
    flow = flow_of(model, update_interval=3, feedback_for_all=for_all, parallel_eval=for_all)
    with pytest.raises(ZeroDivisionError):
        flow.step_many(TEXTS, feedback)
    paid = len(model.calls)
    feedback.mend()
    told = flow.step_many(TEXTS, feedback)
    other = flow_of(update_interval=3, feedback_for_all=for_all)
    assert told == other.step_many(TEXTS, is_right)
    again = [(call.prompt, call.system, call.options["seed"]) for call in model.calls]
    assert sorted(again[paid:]) == sorted(again[:paid])


def test_steps_that_were_asked_before_can_still_be_told_after_one_that_failed() -> None:
    flow = flow_of()
    asked = flow.ask(TEXTS[0])
    with pytest.raises(ValueError, match="human_feedback must be"):
        flow.step(TEXTS[1], human_feedback=3.0)
    with pytest.raises(ValueError, match="human_feedback must be"):
        flow.tell(asked, ["right"] * 4, human_feedback=3.0)
    assert flow.tell(asked, ["right"] * 4, human_feedback=1.0).reward is not None
    assert flow.steps == 1


def test_a_step_that_was_told_is_refused_before_the_critic_is_asked() -> None:
    class Counting(KnowingCritic):
        asked = 0

        def score(self, prompt: str, query: str, response: str) -> float:
            self.asked += 1
            return super().score(prompt, query, response)

    critic = Counting()
    flow = flow_of(critic=critic)
    asked = flow.ask(TEXTS[0])
    flow.tell(asked, ["right"] * 4)
    with pytest.raises(ValueError, match="step 0 was told already"):
        flow.tell(asked, ["right"] * 4)
    assert critic.asked == 4


def test_feedback_for_all_candidates_is_computed_side_by_side_over_all_queries() -> None:
    together = threading.Barrier(4 * len(TEXTS))

    def feedback(query: str, reply: str) -> float:
        together.wait(timeout=60)
        return is_right(query, reply)

    flow = flow_of(feedback_for_all=True, parallel_eval=True)
    alone = flow_of(feedback_for_all=True)
    assert flow.step_many(TEXTS, feedback) == alone.step_many(TEXTS, is_right)
    assert isinstance(flow.critic, KnowingCritic)
    assert isinstance(alone.critic, KnowingCritic)
    assert flow.critic.told == alone.critic.told


def test_people_are_asked_one_by_one_in_the_thread_of_the_caller() -> None:
    heard = []

    def feedback(query: str, reply: str) -> float:
        heard.append((query, threading.get_ident()))
        return is_right(query, reply)

    flow_of(parallel_eval=True).step_many(TEXTS, feedback)
    assert heard == [(query, threading.get_ident()) for query in TEXTS]


def test_side_by_side_or_one_after_another_every_bit_is_the_same() -> None:
    many = [question for _, question in questions(9, seed=2)]
    flows = [
        HybridOptimizationFlow.from_params(
            ActorCriticParams(update_interval=5, seed=3, feedback_for_all=True, parallel_eval=at_once),
            SmallModel(),
            model="any",
            prompts=PROMPTS,
        )
        for at_once in (False, True)
    ]
    one, other = ([flow.step_many(many[i : i + 3], is_right) for i in (0, 3, 6)] for flow in flows)
    assert one == other
    assert flows[0].population.members == flows[1].population.members


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of critic must be a finite number, got"):
        RewardWeights(critic=weight)
