"""Laws of evolving a mutator: what a rewording scores, who is shown what, nothing paid twice."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.mission import MissionConfig
from envs.queries import load_queries
from mutators.registry import load_mutators
from ollama_utils.connect import Roles
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import Encoder
from ollama_utils.reply_log import ReplyLog
from search.async_llm import AsyncLLMInterface
from search.evolution_config import EvolutionConfig
from search.evolve import EvolutionController
from search.mutator_task import MutatorTask, as_file, evolved_name, instruction_of, task_of, under
from search.panel import AsyncEvaluationPipeline, divide
from search.task import Task
from simulator.process import EmbeddedServer
from tests.cli.searches import requests as logged
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.search.evolutions import small, timeless

(PARAPHRASE,) = load_mutators(("paraphrase",))
SEED = instruction_of(PARAPHRASE)
ROLES = Roles(target="sim-target", mutator="sim-mutator", judge=None)
QUERIES = load_queries(None)[::15]
QUERY, REWORDED = QUERIES[0].text, f"I wonder: {QUERIES[0].text}"


def rewording(encoder: Encoder, **mission: Any) -> tuple[MutatorTask, Task]:
    """What rewords the queries, and the task."""
    made = MutatorTask(
        mutator=PARAPHRASE,
        queries=QUERIES,
        mission=MissionConfig(intent_threshold=0.3, **mission),
        roles=ROLES,
        encoder=encoder,
        seed=0,
    )
    return made, replace(task_of(PARAPHRASE, QUERIES), asking=made.asking)


@pytest.mark.parametrize(
    ("said", "reply", "score", "adopted", "shown"),
    [
        (REWORDED, "You take it from its box and put it on the table, gently.", 1, 1, ""),
        (REWORDED, "I'm sorry, but I can't help with that.", 0, 1, "refused, for the reply is"),
        (QUERY, None, 0, 0, "rejected, it is the query itself"),
        ("It is no trouble at all.", None, 0, 0, "rejected, it asks nothing"),
        ("Who was the first man on the moon?", None, 0, 0, "rejected, it"),
        (None, None, None, None, ""),
        (REWORDED, 500, None, 1, ""),
    ],
)
def test_what_a_rewording_scores_and_whether_the_target_is_asked(
    encoder: Encoder,
    said: str | None,
    reply: str | int | None,
    score: float,
    adopted: float,
    shown: str,
) -> None:
    asked = []

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        if "messages" in body:
            message = {"role": "assistant", "content": said}
            return (200, {**SAID, "message": message}) if said else (500, {"error": "broken"})
        asked.append(body["prompt"])
        return (
            (200, {**SAID, "response": reply}) if isinstance(reply, str) else (500, {"error": "no"})
        )

    made, task = rewording(encoder)
    with (
        ScriptedServer(answer) as server,
        Dispatcher([server.host], attempts=1, max_outage_s=None) as dispatcher,
        closing(AsyncLLMInterface(dispatcher, model=ROLES.target)) as calls,
    ):
        one = replace(task, problems=task.problems[:1])
        found = AsyncEvaluationPipeline(calls, one, config=small()).score(SEED)
    assert found.scores == (score,)
    assert made.adoptions(SEED, one.problems) == [adopted]
    assert asked == ([REWORDED] if reply else [])
    assert [shown in failure.reply for failure in found.failures] == [True] * (score == 0)
    assert bool(found.error) is (score is None)


def evolution(task: Task, config: EvolutionConfig, dispatcher: Dispatcher) -> dict[str, Any]:
    """What an evolution of the mutator finds."""
    return EvolutionController(
        config,
        dispatcher=dispatcher,
        task=task,
        seed_prompts=[SEED],
        model=ROLES.target,
        mutator_model=ROLES.mutator,
    ).run_evolution()


def test_failures_are_shown_and_no_prompt_quotes_a_held_out_query(
    server: EmbeddedServer, encoder: Encoder, tmp_path: Path
) -> None:
    (_, task), config, log = rewording(encoder), small(held_out=0.3), tmp_path / "replies.sqlite"
    with ReplyLog(log, digests={}) as replies, Dispatcher([server.host]) as dispatcher:
        dispatcher.keep_in(replies)
        evolution(task, config, dispatcher)
    requests = logged(tmp_path, ROLES.mutator)
    prompts = [each["prompt"] for each in requests if not each["system"]]
    texts = [*prompts, *(each["system"] for each in requests if each["system"])]
    held_out = divide(task, config)[1].problems
    assert not any(each.question in text for each in held_out for text in texts)
    assert any("rejected, " in text for text in prompts)
    assert any("refused, for the reply is" in text for text in prompts)


def test_results_are_equal_at_any_cap_and_the_adoptions_of_all_held_out_queries_are_known(
    server: EmbeddedServer, encoder: Encoder
) -> None:
    def evolved(most: int) -> tuple[dict[str, Any], list[list[float | None]]]:
        made, task = rewording(encoder)
        config = small(held_out=0.3, max_generations=3, max_concurrent_requests=most)
        with Dispatcher([server.host]) as dispatcher:
            found = evolution(task, config, dispatcher)
        problems = divide(task, config)[1].problems
        prompts = (found["best_prompt"], found["seed_prompt"])
        return timeless(found), [made.adoptions(prompt, problems) for prompt in prompts]

    found = evolved(7)
    assert server.stats()["max_in_flight"] <= 7
    assert None not in found[1][0] + found[1][1]
    assert evolved(3) == found


def test_the_file_of_an_instruction_is_the_mutator_under_it(tmp_path: Path) -> None:
    instruction = "Say \"it\"\\ in other words;\nkeep 'all' of {it}."
    name, text = evolved_name(PARAPHRASE), as_file("paraphrase", PARAPHRASE, instruction)
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (found,) = load_mutators((f"{tmp_path / name}.py:{name}",))
    assert found.name == "paraphrase_evolved"
    assert found.prompt("Why?", (), 3) == under(PARAPHRASE, instruction).prompt("Why?", (), 3)
    assert instruction_of(found) == instruction


@pytest.mark.parametrize("name", ["noop", "add_context", "crossover", "translate_back"])
def test_a_mutator_without_one_instruction_for_all_queries_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*expected one that asks a model once"):
        instruction_of(*load_mutators((name,)))
