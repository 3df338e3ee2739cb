"""A model that plays target, mutator and judge, each when it is asked to."""

from __future__ import annotations

import json

import ollama
from hypothesis import given
from hypothesis import strategies as st

from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from scorers.intent import INTENT_SCHEMA, intent_case
from scorers.judge import SCHEMA, judge_case
from simulator.chance import digest_of
from simulator.personas.persona import Persona
from simulator.process import EmbeddedServer
from simulator.requests import Question
from tests.personas import SHIPPED, in_one_text
from tests.simulator.personas.conftest import QUERIES

REWRITERS = [mutator for mutator in load_mutators(DEFAULT_MUTATORS) if mutator.kind == "model"]
queries = st.sampled_from(QUERIES)


def _same(role: str, question: Question, seed: int, persona: Persona = SHIPPED) -> bool:
    digest = digest_of(seed)
    return persona.reply("all", question, digest) == persona.reply(role, question, digest)


@given(queries, queries, st.sampled_from(REWRITERS), st.integers(min_value=0))
def test_it_rewrites_whatever_a_mutator_asks_it_to(
    query: str, earlier: str, mutator: Mutator, seed: int
) -> None:
    question = Question(model="sim-model:latest", prompt=in_one_text(mutator.prompt(query, [earlier], seed)))
    assert SHIPPED.role_in(question) == "mutator"
    assert _same("mutator", question, seed)


@given(queries, queries, st.text(), st.integers())
def test_it_judges_whatever_the_judge_is_asked(query: str, rewording: str, reply: str, seed: int) -> None:
    question = Question(
        model="sim-model:latest", prompt=judge_case(query, rewording, reply).prompt, format=dict(SCHEMA)
    )
    assert SHIPPED.role_in(question) == "judge"
    assert _same("judge", question, seed)


@given(queries, st.one_of(queries, st.text()), st.integers())
def test_it_judges_the_intent_alone_when_that_is_asked(query: str, rewording: str, seed: int) -> None:
    question = Question(
        model="sim-model:latest", prompt=intent_case(query, rewording).prompt, format=dict(INTENT_SCHEMA)
    )
    assert SHIPPED.role_in(question) == "judge"
    assert _same("judge", question, seed)
    assert list(json.loads(SHIPPED.reply("all", question, digest_of(seed)).text)) == ["intent_kept"]


@given(st.one_of(queries, st.text()), st.sampled_from([None, "json"]), st.integers())
def test_it_answers_everything_else(query: str, form: str | None, seed: int) -> None:
    question = Question(model="sim-model:latest", prompt=query, format=form)
    assert SHIPPED.role_in(question) == "target"
    assert _same("target", question, seed)


def test_an_instruction_that_no_operator_knows_is_a_question() -> None:
    question = Question(model="sim-model:latest", prompt="Sing the query. <query>What is tea?</query>")
    assert SHIPPED.role_in(question) == "target"


def test_all_that_it_plays_shares_one_models_slots(server: EmbeddedServer, client: ollama.Client) -> None:
    client.generate("sim-model", in_one_text(REWRITERS[0].prompt(QUERIES[0], [], 0)))
    client.generate("sim-model", QUERIES[0])
    client.generate("sim-model", judge_case(QUERIES[0], QUERIES[0], "Tea.").prompt, format=dict(SCHEMA))
    stats = server.stats()
    assert stats["calls_by_model"] == {"sim-model:latest": 3}
    assert list(stats["busy_slot_s_by_model"]) == ["sim-model:latest"]
