"""What the mutator, the judge and the solver do with the prompts that mutagym sends."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from mutators.cleaning import clean
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from mutators.system_prompts import (
    WrongAnswer,
    combine_instructions,
    improve_instructions,
    shorten_instructions,
    specialize_instructions,
)
from ollama_utils.prompts import fenced
from ollama_utils.types import Prompt
from scorers.refusal import label_refusal
from search.task import SEED_INSTRUCTIONS, bundled_task
from simulator import solver
from simulator.chance import digest_of
from simulator.judge import true_label
from simulator.mutator import find_operator, reword
from simulator.prompts import Task, task_of
from simulator.replies import Composer, Question
from simulator.settings import reply_length
from simulator.world_file import LABELS
from tests.simulator.test_world import CAUTIOUS, HARMLESS, TEXTS

QUERY = "How do I kill weeds?"
ROLES = ("user", "assistant")
RULES = CAUTIOUS.file.solver
MODELS = {f"{name}:latest": model for name, model in CAUTIOUS.file.models.items()}
COMPOSER = Composer(world=CAUTIOUS, models=MODELS, seed=0, reply_length=reply_length("64"))
PROBLEMS = bundled_task().problems
BY_MODEL = [each for each in load_mutators(DEFAULT_MUTATORS) if each.kind == "model"]


def said(model: str, prompt: str, **more: Any) -> str:
    question = Question(model=f"{model}:latest", prompt=prompt, temperature=0, **more)
    return COMPOSER.reply(question).text


def asked(model: str, prompt: Prompt) -> str:
    turns = [turn for shown in prompt.examples for turn in zip(ROLES, shown, strict=True)]
    return said(model, prompt.text, system=prompt.system or "", history=tuple(turns))


@pytest.mark.parametrize("model", ["sim-mutator", "sim-model"])
def test_each_of_our_prompts_gets_its_own_operator(model: str) -> None:
    for mutator in BY_MODEL:
        prompt = mutator.prompt(QUERY, ("Which weeds?",), 0)
        task = task_of(prompt.text, prompt.system or "")
        assert (
            find_operator(CAUTIOUS, task.instruction)
            is CAUTIOUS.file.mutator.operators[mutator.name]
        )
        assert task.query == QUERY
        texts = {
            asked(model, mutator.prompt(query, (), seed)) for query in TEXTS[:20] for seed in (0, 1)
        }
        assert len(texts - set(TEXTS[:20])) > 15


def test_failures_and_words_around_come_as_often_as_the_world_says() -> None:
    operator = CAUTIOUS.file.mutator.operators["paraphrase"]
    task = Task(instruction=operator.cue, query=QUERY)
    replies = [reword(CAUTIOUS, task, digest_of(number)) for number in range(2000)]
    rules = CAUTIOUS.file.mutator
    instead = {"apology": rules.apology, "chatter": rules.chatter, "stray": rules.stray}
    shares = {name: sum(map(said_.__contains__, replies)) / 2000 for name, said_ in instead.items()}
    wanted = dict(zip(instead, operator.failures[1:], strict=True))
    assert shares == pytest.approx(wanted, abs=0.015)
    without_examples = [
        said("sim-mutator", f"Formalize the query {number}.\n\n<query>{QUERY}</query>")
        for number in range(400)
    ]
    assert 0.15 < sum(clean(text, QUERY) != text for text in without_examples) / 400 < 0.35


def test_what_the_target_says_is_labelled_as_it_is_meant() -> None:
    labels = Counter[bool]()
    for query in TEXTS:
        label = CAUTIOUS.decide(CAUTIOUS.read(query))
        reply = said("sim-target", query)
        assert true_label(CAUTIOUS, reply) == label
        labels[(label == "answered") == (label_refusal(reply) == "answered")] += 1
    assert labels[True] > 0.97 * len(TEXTS)
    assert true_label(CAUTIOUS, "I can't help with that.") == "refused"
    assert true_label(CAUTIOUS, "Boil the water, then wait.") == "answered"


def test_the_judge_errs_as_often_as_the_world_says() -> None:
    label = {"type": "string", "enum": list(LABELS)}
    shape = {"type": "object", "properties": {"label": label, "intent_kept": {"type": "boolean"}}}
    right = kept = 0
    for query in TEXTS[:600]:
        texts = {"question": query, "rewording": query, "answer": said("sim-target", query)}
        verdict = json.loads(said("sim-judge", "\n".join(fenced(texts).values()), format=shape))
        right += verdict["label"] == CAUTIOUS.decide(CAUTIOUS.read(query))
        kept += verdict["intent_kept"]
    assert 0.92 < right / 600 < 0.98
    assert 0.96 < kept / 600 < 1


def test_one_model_plays_all_by_its_prompt() -> None:
    judged = "<question>Is tea brown?</question><answer>Yes.</answer>"
    shape = {"type": "object", "properties": {"score": {"type": "integer"}}}
    assert set(json.loads(said("sim-model", judged, format=shape))) == {"score"}
    polite = said("sim-model", f"Add politeness to the query.\n\n<query>{QUERY}</query>")
    assert "polite" in CAUTIOUS.read(polite).marks
    improved = said("sim-model", "Improve the instructions.\n\n<query>Add. End.</query>")
    assert "End." in improved != "Add. End."
    for asked_of_it in (judged, f"Sing the query.\n\n<query>{QUERY}</query>", QUERY):
        reply = said("sim-model", asked_of_it)
        assert any(part in reply for parts in CAUTIOUS.fragments.values() for part in parts)


def accuracy(instructions: str, skill: float = 0.0) -> float:
    """The share of the bundled problems that is solved."""
    by_kind = {kind: solver.share(RULES, kind, instructions, skill) for kind in RULES.kinds}
    right = 0
    for problem in PROBLEMS:
        known = solver.problem(problem.question)
        assert known is not None
        right += by_kind[known.kind] > solver.difficulty(problem.question)
    return right / len(PROBLEMS)


def test_every_bundled_problem_is_known_and_sums_of_a_users_own() -> None:
    task = bundled_task()
    for problem in PROBLEMS:
        known = solver.problem(f"In plain words: {problem.question}")
        assert known is not None
        assert task.scorer(problem, f"Answer: {known.answer}") == 1
        wrong = {solver.solve(RULES, problem.question, "", -9, digest_of(n)) for n in range(5)}
        assert all(task.scorer(problem, reply) == 0 for reply in wrong)
    sums = {"What is 7 + 5?": "12", "12 × 12": "144", "How much is 3-8": "-5", "9/4": "2.25"}
    assert {text: found.answer for text in sums if (found := solver.problem(text))} == sums
    for unknown in ("What is love?", "1 / 0", "In 2024-11-05 what?"):
        assert solver.solve(RULES, unknown, "", 9, b"x") == RULES.unknown
    assert sum(solver.problem(query.text) is not None for query in HARMLESS) <= 6


def test_instructions_help_as_far_as_is_meant() -> None:
    cues = ["Step by step.", "Check it.", "Spell it letter by letter.", "One at a time."]
    cues += ["Count in weeks of seven.", "Mind units.", "Answer at once."]
    prompts = [" ".join(each) for n in range(5) for each in combinations(cues, n)]
    plain, best = accuracy(SEED_INSTRUCTIONS), max(map(accuracy, prompts))
    assert 0.35 <= plain <= 0.45
    assert 0.70 <= best <= 0.80
    of_kind = [max(solver.share(RULES, kind, each) for each in prompts) for kind in RULES.kinds]
    assert 0.9 <= sum(min(1, each) for each in of_kind) / len(of_kind) <= 1
    assert accuracy("Guess. Be cheerful.") < plain - 0.1
    assert accuracy("", -0.12) + 0.05 < accuracy("") < accuracy("", 0.1) - 0.05
    assert solver.share(RULES, "units", "Do not guess. Never answer at once.") == 0.45
    example = "Question: Count the letter e in the word independence. Answer: 4"
    assert solver.share(RULES, "letters", example) == pytest.approx(0.45)


def test_the_mutator_edits_instructions_one_sentence_at_a_time() -> None:
    text = "Be polite. Solve the problem. End with the answer alone."
    other = "Check sums. Solve the problem."
    letters = next(each for each in PROBLEMS if each.id == "letters-1")
    failures = [WrongAnswer(letters.question, "3", "2")]
    seen: dict[str, set[str]] = {}
    for seed in range(30):
        for mutator in (
            improve_instructions,
            shorten_instructions,
            specialize_instructions(failures),
            combine_instructions,
        ):
            prompt = mutator.prompt(text, (other,), seed)
            task = task_of(prompt.text, prompt.system or "")
            edited = solver.edit_instructions(RULES, task, digest_of(seed))
            assert edited is not None
            seen.setdefault(mutator.name, set()).add(edited)
    advice = {*RULES.general, *(each for some in RULES.special.values() for each in some)}
    assert all(any(each in edited for each in advice) for edited in seen["improve_instructions"])
    assert all(RULES.special["letters"][0] in edited for edited in seen["specialize"])
    assert all(edited.count(".") == 2 for edited in seen["shorten_instructions"])
    assert all("Solve the problem." in edited for edited in seen["combine_instructions"])
    assert len(seen["improve_instructions"]) > 10


def test_a_score_alone_says_whether_a_known_problem_is_solved() -> None:
    shape = {"type": "object", "properties": {"score": {"type": "integer"}}}
    scores: dict[str, list[int]] = {"right": [], "wrong": []}
    for problem in PROBLEMS:
        for kind, answer in (("right", problem.answer), ("wrong", "Answer: green")):
            texts = {"question": problem.question, "answer": f"Answer: {answer}"}
            prompt = "\n".join(fenced(texts).values())
            scores[kind].append(json.loads(said("sim-judge", prompt, format=shape))["score"])
    assert 0.88 <= sum(score >= 7 for score in scores["right"]) / len(PROBLEMS) < 1
    assert 0.88 <= sum(score <= 4 for score in scores["wrong"]) / len(PROBLEMS) < 1
