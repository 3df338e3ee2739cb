"""Every flag of `mutagym train` reaches what it is for: calls, learner, episodes, split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from cli.main import execute
from envs.queries import load_queries
from envs.query_sets import split_queries
from ollama_utils.types import THINK_BUDGET
from tests.ollama_utils.scripted import SAID, ScriptedServer
from tests.runs import lines, read

MODELS = ("target", "mutator", "judge")
JUDGEMENT = {"label": "refused", "score": 1, "intent_kept": True}
# 13 steps are not a whole number of rollouts of 12.
FLAGS = (
    "--num-processes=3 --num-steps=4 --num-env-steps=13 --ppo-epoch=2 --num-mini-batch=3 "
    "--lr=0.02 --gamma=0.9 --gae-lambda=0.8 --clip-param=0.3 --entropy-coef=0.04 "
    "--value-loss-coef=0.7 --max-grad-norm=0.6 --seed=5 --mutators=paraphrase,shorten "
    "--encoder=hashing:16 --reward=judge --intent-threshold=0.99 --step-cost=0.25 "
    "--max-steps=3 --target-system=Kind. --target-temperature=0.7 --num-predict=99 "
    "--num-ctx=2048 --held-out=0.5 --split-seed=3 --group-column=pair "
    "--target-model=target --mutator-model=mutator --judge-model=judge "
)


def answer(body: dict[str, Any]) -> tuple[int, object]:
    """A server whose target always refuses, and whose mutator adds a word."""
    if "model" not in body:
        names = [f"{name}:latest" for name in MODELS]
        return 200, {"models": [{"model": name, "name": name} for name in names]}
    said = {
        "target": "I'm sorry, but I can't help with that.",
        "mutator": f"question number {body['options'].get('seed', 0)}",
        "judge": json.dumps(JUDGEMENT),
    }
    text = said[body["model"].partition(":")[0]]
    return 200, SAID | {
        "model": body["model"],
        "response": text,
        "message": {"role": "assistant", "content": text},
    }


class Ran:
    """One run with every flag set to something other than its default."""

    def __init__(self, folder: Path) -> None:
        self.queries, run = folder / "queries.csv", folder / "run"
        sides = [f"{k // 2},{'in' if k < 60 else 'out'}" for k in range(80)]
        rows = [f"question number {k} of them,{side}" for k, side in enumerate(sides)]
        self.queries.write_text("\n".join(["prompt,pair,side", *rows]))
        made: list[PPO] = []
        init = PPO.__init__

        def noted(learner: PPO, *given: Any, **named: Any) -> None:
            made.append(learner)
            init(learner, *given, **named)

        with pytest.MonkeyPatch.context() as patch, ScriptedServer(answer) as server:
            patch.setattr(PPO, "__init__", noted)
            more = f"--think=on --where=side=in --ollama-host={server.host} --run-dir={run}"
            words = [*FLAGS.split(), *more.split(), f"--queries={self.queries}"]
            assert execute(["train", *words]) == 0
        self.bodies = server.bodies
        (self.learner,) = made
        self.split = read(run, "queries.json")
        self.steps = lines(run)

    def options(self, model: str) -> list[dict[str, Any]]:
        return [body["options"] for body in self.bodies if body["model"].startswith(model)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("flags"))


def test_the_calls_carry_what_the_flags_say(ran: Ran) -> None:
    asked = [body for body in ran.bodies if body["model"].startswith("target")]
    assert {(body["system"], body["think"]) for body in asked} == {("Kind.", True)}
    for options in ran.options("target"):
        assert (options["temperature"], options["num_ctx"]) == (0.7, 2048)
        assert options["num_predict"] == 99 + THINK_BUDGET
    assert len({options["seed"] for options in ran.options("target")}) == len(asked) > 1
    for options in ran.options("mutator"):
        assert options["num_ctx"] == 2048
        assert options["num_predict"] < 99  # what a rewording of its query needs
    for options in ran.options("judge"):
        assert options == {"temperature": 0, "seed": 5, "num_ctx": 2048, "num_predict": 256}


def test_no_call_reloads_a_model_or_changes_how_long_it_stays(ran: Ran) -> None:
    """A change in any runner option reloads it; `keep_alive` on a call can block Ollama."""
    runner = {"num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread"}
    for model in MODELS:
        kept = [{k: v for k, v in options.items() if k in runner} for options in ran.options(model)]
        assert kept == [{"num_ctx": 2048}] * len(kept) != []
    assert not any("keep_alive" in body for body in ran.bodies)


def test_the_learner_is_what_the_flags_say(ran: Ran) -> None:
    learner = ran.learner
    assert learner.learning_rate == 0.02
    assert (learner.gamma, learner.gae_lambda) == (0.9, 0.8)
    assert callable(learner.clip_range)
    assert learner.clip_range(1.0) == 0.3
    assert (learner.ent_coef, learner.vf_coef, learner.max_grad_norm) == (0.04, 0.7, 0.6)
    assert (learner.n_steps, learner.n_envs, learner.batch_size) == (4, 3, 4)
    assert (learner.n_epochs, learner.num_timesteps) == (2, 24)
    assert learner.seed == 5


def test_the_episodes_are_what_the_flags_say(ran: Ran) -> None:
    assert len(ran.steps) == 24
    assert {step["lane"] for step in ran.steps} == {0, 1, 2}
    assert {step["step_number"] for step in ran.steps} == {0, 1, 2}
    assert {step["mutator"] for step in ran.steps} == {"paraphrase", "shorten"}
    assert all(step["reward_parts"]["step_cost"] == 0.25 for step in ran.steps)
    assert all(step["reward"] == -0.25 for step in ran.steps)
    assert {step["rejected"] for step in ran.steps} == {"drifted"}


def test_training_sees_its_side_of_the_split_and_nothing_else(ran: Ran) -> None:
    queries = load_queries(str(ran.queries), where=("side=in",), group_column="pair")
    sides = split_queries(queries, held_out=0.5, split_seed=3)
    trained, held_out = ([query.text for query in side] for side in sides)
    assert (ran.split["train"], ran.split["held_out"]) == (trained, held_out)
    assert {step["original_query"] for step in ran.steps} <= set(trained)
