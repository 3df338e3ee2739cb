"""The hybrid search: a step's parts, what learns and what does not, the same at once as one after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ollama_utils.errors import BadReplyError, CallCancelledError, ServerUnreachableError
from ollama_utils.types import Call, Completion
from search.hybrid import ActorCriticParams, HybridOptimizationFlow, RewardWeights
from search.optimizing.prompts import PromptPopulation
from tests.search.flows import KnowingCritic, NotingActor, flow_of
from tests.search.small_world import PROMPTS, SmallModel, is_right, questions

QUESTION = "What is 2 plus 2?"


def test_the_candidate_that_the_critic_likes_best_is_the_response() -> None:
    result = flow_of().step(QUESTION)
    assert len(result.candidates) == len(result.prompts) == len(set(result.prompts)) == 4
    place = result.candidates.index("right")
    assert (result.response, result.scores[place]) == ("right", 0.8)
    assert result.prompt in result.prompts


def test_a_reward_is_the_weighted_sum_of_its_parts() -> None:
    result = flow_of().step(QUESTION, 0.5, 0.25, 40, 0.125)
    assert result.parts == {"feedback": 0.5, "critic": 0.8, "coherence": 0.25, "tokens": 40, "safety": 0.125}
    assert result.reward == pytest.approx(0.5 + 0.8 * 0.8 + 0.3 * 0.25 - 0.001 * 40 - 0.125)


def test_without_a_number_the_tokens_are_those_that_the_server_reported() -> None:
    result = flow_of().step(QUESTION)
    assert result.parts["tokens"] == 12
    assert "coherence" not in result.parts
    assert "safety" not in result.parts


def test_feedback_is_asked_for_once_the_reply_is_there_and_of_the_response_alone() -> None:
    heard: list[tuple[str, str]] = []

    def feedback(query: str, reply: str) -> float:
        heard.append((query, reply))
        return is_right(query, reply)

    flow = flow_of()
    result = flow.step(QUESTION, feedback)
    assert heard == [(QUESTION, result.response)]
    assert result.feedback == 1.0
    assert isinstance(flow.critic, KnowingCritic)
    assert flow.critic.told == [(result.prompt, QUESTION, "right", 1.0)]
    # The critic foresees the feedback on the others.
    wrong = result.candidates.index("wrong")
    assert result.rewards[wrong] == pytest.approx(1.8 * 0.1 - 0.012)


def test_feedback_may_be_asked_for_all_candidates() -> None:
    flow = flow_of(feedback_for_all=True)
    result = flow.step(QUESTION, is_right)
    assert isinstance(flow.critic, KnowingCritic)
    assert len(flow.critic.told) == 4
    wrong = result.candidates.index("wrong")
    assert result.rewards[wrong] == pytest.approx(0.0 + 0.8 * 0.1 - 0.012)


def test_feedback_of_several_people_is_aggregated_and_the_reward_function_is_the_users() -> None:
    flow = flow_of(feedback_aggregator=min, reward_fn=lambda parts: 10 * parts["feedback"])
    assert flow.step(QUESTION, [0.5, 0.25, 1.0]).reward == 2.5
    assert flow_of().step(QUESTION, [0.5, 0.25, 0.75]).feedback == 0.5
    assert flow_of(reward_fn=RewardWeights(critic=0, tokens=0)).step(QUESTION, 0.5).reward == 0.5


def test_every_step_updates_the_fitness_of_all_its_prompts() -> None:
    flow = flow_of(update_interval=100)
    for number in range(5):
        result = flow.step(f"What is {number} plus 1?", is_right)
        assert [flow.population.record(prompt)[1] > 0 for prompt in result.prompts] == [True] * 4
    assert sum(member.tries for member in flow.population.members) == 5 * 4


def test_the_population_evolves_every_interval_and_keeps_its_size() -> None:
    flow = flow_of(update_interval=3)
    evolved = [flow.step(question, is_right).evolved for _, question in questions(12, seed=1)]
    assert evolved == [False, False, True] * 4
    assert flow.population.generation == 4
    assert len(set(flow.population.prompts)) == 6


def test_a_failed_candidate_is_none_and_takes_no_part_in_any_update() -> None:
    flow = flow_of(SmallModel(broken="letter by letter"), top_k_prompts=6)
    result = flow.step(QUESTION, is_right)
    failed = [place for place, prompt in enumerate(result.prompts) if "letter by letter" in prompt]
    assert failed
    for place in failed:
        assert (result.candidates[place], result.scores[place], result.rewards[place]) == (None, None, None)
        assert flow.population.record(result.prompts[place]) == (None, 0)
    assert result.unscored == flow.unscored == len(failed)
    assert isinstance(flow.actor, NotingActor)
    assert flow.actor.told == [list(result.rewards)]


def test_a_step_in_which_all_failed_teaches_nothing_and_brings_no_evolution_nearer() -> None:
    flow = flow_of(SmallModel(broken=" "), update_interval=1)
    before = flow.population.members
    result = flow.step(QUESTION, is_right)
    assert (result.response, result.prompt, result.reward, result.parts) == (None, None, None, {})
    assert (flow.population.members, flow.population.generation, flow.rewarded_steps) == (before, 0, 0)
    assert isinstance(flow.critic, KnowingCritic)
    assert (flow.critic.told, result.evolved) == ([], False)


def test_a_critic_that_fails_spoils_one_candidate() -> None:
    class Moody(KnowingCritic):
        def score(self, prompt: str, query: str, response: str) -> float:
            if "alphabet" in prompt:
                raise BadReplyError("no score")
            return float("nan") if "Spell" in prompt else super().score(prompt, query, response)

    result = flow_of(critic=Moody(), population=PromptPopulation(PROMPTS, size=4)).step(QUESTION, is_right)
    unscored = {p for p, s in zip(result.prompts, result.scores, strict=True) if s is None}
    assert unscored == {p for p in PROMPTS if "alphabet" in p or "Spell" in p}
    assert None not in result.candidates
    assert result.response == "right"


def test_where_no_score_is_to_be_had_the_first_reply_is_given_and_nothing_is_learned() -> None:
    class Silent:
        def score(self, prompt: str, query: str, response: str) -> float:
            raise BadReplyError(prompt + query + response)

    result = flow_of(critic=Silent()).step(QUESTION, is_right)
    assert result.response == result.candidates[0]
    assert (result.reward, result.unscored) == (None, 4)


def test_a_run_that_is_stopped_learns_nothing_more() -> None:
    class Stopped:
        def generate(self, call: Call) -> Completion:
            del call
            return Completion(text="", error=CallCancelledError("stopped"))

    flow = flow_of(Stopped())
    with pytest.raises(CallCancelledError, match="stopped"):
        flow.step(QUESTION)
    assert flow.rewarded_steps == flow.unscored == 0


def test_several_queries_are_answered_under_one_policy_and_learned_from_in_their_order() -> None:
    texts = [question for _, question in questions(6, seed=4)]
    flow, other = flow_of(), flow_of(parallel_eval=True)
    asked = [flow.ask(text) for text in texts]
    model = SmallModel()
    told = [
        flow.tell(each, [model.generate(call) for call in each.calls], human_feedback=is_right)
        for each in asked
    ]
    assert told == other.step_many(texts, is_right)


def test_another_driver_brings_replies_and_scores_of_its_own() -> None:
    flow = flow_of()
    asked = flow.ask(QUESTION)
    result = flow.tell(asked, ["right", None, "x", "y"], [0.25, 0.5, None, 0.75], human_feedback=1.0)
    assert (result.response, result.scores) == ("y", (0.25, None, None, 0.75))
    assert result.unscored == 2
    with pytest.raises(ValueError, match="told already"):
        flow.tell(asked, ["right"] * 4)
    with pytest.raises(ValueError, match="expected 4 replies, one a prompt, got 1"):
        flow.tell(flow.ask(QUESTION), ["right"])
    with pytest.raises(ValueError, match="expected 4 scores"):
        flow.tell(flow.ask(QUESTION), ["right"] * 4, [1.0])


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"human_feedback": 3.0}, "human_feedback must be a number from 0 to 1, got 3.0"),
        (
            {"human_feedback": lambda _query, _reply: float("nan")},
            "human_feedback must be a number from 0 to 1",
        ),
        ({"human_feedback": []}, "empty sequence"),
        ({"coherence": -0.5}, "coherence must be a number from 0 to 1"),
        ({"tokens_used": -1}, "tokens must be a number that is not negative"),
        ({"safety_penalty": float("inf")}, "safety must be a number that is not negative"),
    ],
)
def test_a_signal_out_of_range_is_refused_and_nothing_is_learned(said: Mapping[str, Any], match: str) -> None:
    flow = flow_of()
    before = flow.population.members
    with pytest.raises(ValueError, match=match):
        flow.step(QUESTION, **said)
    assert flow.population.members == before
    assert isinstance(flow.actor, NotingActor)
    assert flow.actor.told == []


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"top_k_prompts": 0}, "top_k_prompts must be at least 1"),
        ({"update_interval": 0}, "update_interval must be at least 1"),
        ({"max_workers": 0}, "max_workers must be at least 1"),
        ({"model": ""}, "need a model"),
    ],
)
def test_a_setting_out_of_range_is_refused_in_one_line(settings: Mapping[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        flow_of(**settings)


def test_the_parameters_reach_the_flow() -> None:
    params = ActorCriticParams(
        num_candidates=3,
        update_interval=2,
        exploration=1.0,
        max_tokens=33,
        temperature=0.25,
        population_size=7,
        feedback_for_all=True,
        weights=RewardWeights(feedback=5, critic=0, tokens=0),
    )
    model = SmallModel()
    flow = HybridOptimizationFlow.from_params(params, model, model="any", prompts=PROMPTS)
    results = [flow.step(QUESTION, 1.0), flow.step(QUESTION, is_right)]
    assert [len(result.candidates) for result in results] == [3, 3]
    assert [result.evolved for result in results] == [False, True]
    assert results[0].reward == 5
    assert len(flow.population.prompts) == 7
    assert {call.options["num_predict"] for call in model.calls} == {33}
    assert {call.options["temperature"] for call in model.calls} == {0.25}


def test_an_unreachable_server_is_shown_in_the_completions() -> None:
    result = flow_of(SmallModel(broken=" ")).step(QUESTION)
    assert all(each and isinstance(each.error, ServerUnreachableError) for each in result.completions)
