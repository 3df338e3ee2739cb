"""The hybrid search: what learns and what does not, in parallel as one call after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ollama_utils.encoders import make_encoder
from ollama_utils.errors import BadReplyError
from ollama_utils.types import Call
from search.actors import RidgeCritic
from search.optimize import (
    ActorCriticParams,
    HybridOptimizationFlow,
    StepResult,
    optimize_task,
)
from search.task import Problem, Task, bundled_task
from tests.search.small_world import PROMPTS, SmallModel, chance_of, is_right, questions

QUESTION = "What is 2 plus 2?"
ENCODER = make_encoder("hashing")
TEXTS = questions(12, seed=4)
SMALL = ActorCriticParams(
    num_candidates=3, update_interval=4, population_size=8, elite_size=2, seed=3
)
TASK = bundled_task()


class KnowingCritic:
    """Scores a right reply .8 and a wrong one .1, and keeps the feedback it is given."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str, float]] = []

    def score(self, prompt: str, query: str, response: str) -> float:
        del prompt, query
        return 0.8 if response == "right" else 0.1

    def feedback(self, prompt: str, query: str, response: str, value: float) -> None:
        self.heard.append((prompt, query, response, value))


def make_flow(
    model: Any = None, params: ActorCriticParams = SMALL, **more: Any
) -> HybridOptimizationFlow:
    """A flow in the small world."""
    more = {"prompts": PROMPTS, "encoder": ENCODER, **more}
    return HybridOptimizationFlow(model or SmallModel(), params, model="any", **more)


def unscored(result: StepResult) -> int:
    """How many candidates have no score."""
    return sum(each.score is None for each in result.candidates)


def state(flow: HybridOptimizationFlow) -> tuple[object, ...]:
    """All that a flow has learned, as far as a user sees it."""
    odds = [flow.actor.probabilities(text, PROMPTS).tolist() for text in TEXTS]
    scores = [flow.critics[0].score(PROMPTS[0], text, "right") for text in TEXTS]
    return flow.steps, flow.rewarded_steps, flow.population.members, odds, scores


def test_results_are_the_same_whatever_the_cap() -> None:
    def run(**changes: Any) -> tuple[object, ...]:
        flow = make_flow(params=replace(SMALL, **changes))
        results = [flow.step_many(TEXTS[k : k + 3], is_right) for k in range(0, 12, 3)]
        return results, state(flow)

    alone = run()
    for cap in (7, None):
        assert run(parallel_eval=True, max_workers=cap) == alone
    assert run(seed=4) != alone


@pytest.mark.parametrize("for_all", [False, True])
def test_feedback_is_of_the_response_or_of_all_and_the_reward_is_the_weighted_sum(
    for_all: bool,  # noqa: FBT001
) -> None:
    critic = KnowingCritic()
    weights: dict[str, Any] = {"weight_feedback": 2.0, "weight_critic": 0.5, "weight_tokens": -0.01}
    params = replace(SMALL, feedback_for_all=for_all, **weights)
    result = make_flow(critics=[critic], params=params).step(QUESTION, is_right)
    for each in result.candidates:
        assert each.text is not None
        heard = is_right(QUESTION, each.text) if for_all or each is result.best else None
        assert each.feedback == heard
        score = 0.8 if each.text == "right" else 0.1
        feedback = score if heard is None else heard
        assert each.reward == pytest.approx(2 * feedback + 0.5 * score - 0.01 * 12)
    assert [value for *_, value in critic.heard] == [
        each.feedback for each in result.candidates if each.feedback is not None
    ]


class Moody(KnowingCritic):
    """Has no score under two of the prompts."""

    def score(self, prompt: str, query: str, response: str) -> float:
        if prompt == PROMPTS[2]:
            raise BadReplyError("no score")
        return float("nan") if prompt == PROMPTS[3] else super().score(prompt, query, response)


@pytest.mark.parametrize(
    ("model", "critic"),
    [(SmallModel(broken=PROMPTS[2:]), KnowingCritic()), (SmallModel(), Moody())],
)
def test_an_unscored_candidate_teaches_nothing(model: SmallModel, critic: KnowingCritic) -> None:
    """Neither where its call failed nor where the critic did; the other candidates count."""
    params = replace(
        SMALL, num_candidates=4, population_size=4, update_interval=100, learning_rate=0.0
    )
    flow = make_flow(model, params, critics=[critic])
    for text in TEXTS:
        result = flow.step(text, is_right)
        assert unscored(result) == 2
        for each in result.candidates:
            assert (each.reward is None) == (each.score is None) == (each.prompt in PROMPTS[2:])
    tries = {each.prompt: each.tries for each in flow.population.members}
    assert tries == dict(zip(PROMPTS, [12, 12, 0, 0], strict=True))
    assert {prompt for prompt, *_ in critic.heard} <= set(PROMPTS[:2])


def test_queries_whose_feedback_failed_are_given_again_as_if_they_never_had() -> None:
    def feedback(query: str, reply: str) -> float:
        if query == TEXTS[2]:
            raise ZeroDivisionError("no idea")
        return is_right(query, reply)

    params = replace(SMALL, feedback_for_all=True, parallel_eval=True)
    model = SmallModel()
    flow, other = make_flow(model, params), make_flow(params=params)
    with pytest.raises(ZeroDivisionError, match="no idea"):
        flow.step_many(TEXTS, feedback)
    paid = {repr(call) for call in model.calls}
    assert flow.step_many(TEXTS, is_right) == other.step_many(TEXTS, is_right)
    assert {repr(call) for call in model.calls} - paid <= {
        repr(call) for call in model.calls if call.role == "mutator"
    }
    assert state(flow) == state(other)


@pytest.mark.parametrize("for_all", [False, True])
def test_a_driver_that_makes_the_calls_itself_gets_what_a_step_gives(for_all: bool) -> None:  # noqa: FBT001
    params = replace(SMALL, feedback_for_all=for_all)
    model = SmallModel(broken=PROMPTS[2:3])
    flow, other = make_flow(model, params), make_flow(model, params)
    for text in TEXTS:
        asked = flow.ask([text])
        replies = [model.generate(call) for call in asked[0].calls]
        assert flow.tell(asked, replies, is_right) == [other.step(text, is_right)]
    assert state(flow) == state(other)
    assert flow.population.generation == 3


@pytest.mark.parametrize(("seed", "size", "elite"), [(0, 8, 2), (1, 12, 3), (2, 4, 0)])
def test_no_prompt_is_twice_in_a_population_that_keeps_its_elite(
    seed: int, size: int, elite: int
) -> None:
    params = replace(SMALL, seed=seed, population_size=size, elite_size=elite, update_interval=3)
    flow = make_flow(params=params)
    flow.population.fill()
    for text in TEXTS:
        before = set(flow.population.prompts)
        evolved = flow.step(text, is_right).evolved
        prompts = flow.population.prompts
        assert len(set(prompts)) == len(prompts) <= size
        if evolved:
            ranked = [member.prompt for member in flow.population.members]
            assert prompts[:elite] == [prompt for prompt in ranked if prompt in before][:elite]
    assert flow.population.generation == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"population_size": 2}, "room for the 4 prompts given"),
        ({"elite_size": 8}, "elite_size is 8; expected a larger population"),
        ({"exploration": 2.0}, "exploration is 2.0: it must be <= 1"),
        ({"num_candidates": 0}, "num_candidates is 0: it must be >= 1"),
        ({"prompts": [" "]}, "no blank one"),
        ({"critics": []}, "critics is empty"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_flow(**changes)


def test_a_learning_actor_beats_an_even_one_and_a_fixed_prompt() -> None:
    def solved(**more: Any) -> float:
        numbers = {"num_candidates": 2, "population_size": 6, "update_interval": 1000}
        numbers |= {"seed": 1, **more}
        critics = [RidgeCritic(ENCODER, sketch=24)]
        flow = make_flow(params=ActorCriticParams(), critics=critics, **numbers)
        for text in questions(200, seed=0):
            flow.step(text, is_right)
        fresh = questions(60, seed=77)
        return sum(chance_of(text, flow.best_prompt(text)) for text in fresh) / len(fresh)

    learning = solved()
    assert learning > 0.75
    assert learning > solved(learning_rate=0.0) + 0.15
    assert learning > solved(population_size=1, elite_size=0, prompts=PROMPTS[:1]) + 0.15


def small_task(count: int, seed: int) -> Task:
    problems = [
        Problem(id=str(k), question=text, answer="right")
        for k, text in enumerate(dict.fromkeys(questions(count, seed)))
    ]
    return Task(name="small", problems=tuple(problems), scorer=lambda _, reply: reply == "right")


def test_held_out_problems_are_in_no_prompt_and_teach_nothing() -> None:
    train, held_out = small_task(60, seed=1).split(0.3, seed=0)

    def run(on: Task | None) -> tuple[list[Call], dict[str, Any], tuple[object, ...]]:
        model = SmallModel()
        flow = make_flow(model)
        results = optimize_task(flow, train, on, seed_prompt=PROMPTS[0], steps=40, batch_size=8)
        return model.calls, results, state(flow)

    calls, results, learned = run(held_out)
    search, without, as_learned = run(None)
    arms = results.pop("held_out")
    assert without.pop("held_out") is None
    assert (results, learned) == (without, as_learned)
    assert calls[: len(search)] == search
    asked = calls[len(search) :]
    fresh = [problem.question for problem in held_out.problems]
    assert sorted(call.prompt for call in asked) == sorted(3 * fresh)
    texts = [f"{call.system} {call.prompt}" for call in search]
    assert not [text for text in texts for question in fresh if question in text]
    assert [arm["name"] for arm in arms] == ["seed prompt", "best prompt", "actor"]
    for arm in arms[1:]:
        assert arm["difference"] == pytest.approx(arm["score"] - arms[0]["score"])
