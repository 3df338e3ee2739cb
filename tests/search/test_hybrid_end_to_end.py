"""The hybrid search on the bundled task and the embedded simulator: it learns, and repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.reply_log import ReplyLog
from scorers.critic import LLMCritic
from search.hybrid import ActorCriticParams, HybridOptimizationFlow, StepResult
from search.optimizing.actors import FixedActor
from search.optimizing.prompts import SectionRewording
from search.task import SEED_INSTRUCTIONS, Problem, bundled_task
from simulator.process import EmbeddedServer

TASK = bundled_task()
ANSWERS = {problem.question: problem for problem in TASK.problems}
PARAMS = ActorCriticParams(parallel_eval=True, temperature=0.0, feedback_for_all=True, seed=1)


def right(query: str, reply: str) -> float:
    """Feedback from the task's own scorer."""
    return TASK.scorer(ANSWERS[query], reply)


def flow_on(
    dispatcher: Dispatcher, encoder: Encoder, params: ActorCriticParams = PARAMS
) -> HybridOptimizationFlow:
    return HybridOptimizationFlow.from_params(
        params,
        dispatcher,
        model="sim-solver",
        encoder=encoder,
        critic=LLMCritic(dispatcher, "sim-judge"),
        reword=SectionRewording(llm=dispatcher, model="sim-mutator"),
    )


def steps(flow: HybridOptimizationFlow, problems: tuple[Problem, ...], batch: int = 8) -> list[StepResult]:
    texts = [problem.question for problem in problems]
    return [
        result for i in range(0, len(texts), batch) for result in flow.step_many(texts[i : i + batch], right)
    ]


def share_right(flow: HybridOptimizationFlow, dispatcher: Dispatcher, problems: tuple[Problem, ...]) -> float:
    """The share of problems that the actor's best prompt solves, without a critic's help."""
    fixed = HybridOptimizationFlow(
        dispatcher,
        flow.population,
        FixedActor(),
        flow.critic,
        top_k_prompts=1,
        temperature=0,
        model="sim-solver",
    )
    total = 0.0
    for problem in problems:
        fixed.actor = FixedActor(flow.best_prompt(problem.question))
        asked = fixed.ask(problem.question)
        total += right(problem.question, dispatcher.generate(asked.calls[0]).text)
    return total / len(problems)


def test_it_learns_the_bundled_task_beyond_its_seed_prompt(dispatcher: Dispatcher, encoder: Encoder) -> None:
    train, fresh = TASK.split(0.3, seed=0)
    flow = flow_on(dispatcher, encoder)
    steps(flow, train.problems[:48])
    learned = share_right(flow, dispatcher, fresh.problems)
    flow.actor = FixedActor(SEED_INSTRUCTIONS)
    seed_prompt = [dispatcher.generate(flow.ask(p.question).calls[0]).text for p in fresh.problems]
    before = sum(map(right, [p.question for p in fresh.problems], seed_prompt)) / len(fresh.problems)
    assert learned > before + 0.1
    assert len(set(flow.population.prompts)) == 10


def test_a_run_begun_again_gets_what_it_knew_from_the_log_and_ends_the_same(
    simulator: EmbeddedServer, encoder: Encoder, tmp_path: Path
) -> None:
    def run(count: int, log: Path) -> tuple[list[StepResult], list[str], int]:
        with Dispatcher([simulator.host]) as dispatcher, ReplyLog(log, digests={}) as kept:
            dispatcher.keep_in(kept)
            flow = flow_on(dispatcher, encoder)
            results = steps(flow, TASK.problems[:count])
            sent = sum(account.calls for account in dispatcher.accounts().values())
            return results, flow.population.prompts, sent

    whole, prompts, sent = run(24, tmp_path / "whole.sqlite")
    _, _, first = run(12, tmp_path / "killed.sqlite")
    again, same, rest = run(24, tmp_path / "killed.sqlite")
    assert [plain(result) for result in again] == [plain(result) for result in whole]
    assert (same, first + rest) == (prompts, sent)


def plain(result: StepResult) -> tuple[object, ...]:
    """A result without how its replies were come by."""
    return (result.response, result.prompt, result.candidates, result.scores, result.rewards, result.evolved)


def test_faults_of_the_server_are_counted_and_nothing_else_is_lost(
    server: EmbeddedServer, encoder: Encoder
) -> None:
    server.set_faults([{"kind": "status", "rate": 0.3}])
    with Dispatcher([server.host], attempts=1) as dispatcher:
        flow = flow_on(dispatcher, encoder)
        results = steps(flow, TASK.problems[:20])
    assert flow.unscored == sum(result.unscored for result in results) > 0
    assert sum(member.tries for member in flow.population.members) > 0
    assert all((result.reward is None) == (result.unscored == 5) for result in results)


@pytest.mark.parametrize("batch", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_at_once_or_one_after_another_every_result_is_the_same(
    simulator: EmbeddedServer, encoder: Encoder, batch: int
) -> None:
    outcomes = []
    for params in (PARAMS, ActorCriticParams(temperature=0.0, feedback_for_all=True, seed=1)):
        with Dispatcher([simulator.host]) as dispatcher:
            flow = flow_on(dispatcher, encoder, params)
            results = [plain(result) for result in steps(flow, TASK.problems[:20], batch)]
            outcomes.append((results, flow.population.members))
    assert outcomes[0] == outcomes[1]
