"""The solver: what it works out, what its instructions do to it, and how it is judged."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.answers import is_right
from search.task import SEED_INSTRUCTIONS, Problem, bundled_task
from simulator.chance import digest_of
from simulator.personas.persona_file import parse_persona
from simulator.personas.solver import Instructions, difficulty
from simulator.personas.solving import KINDS, solve
from simulator.personas.tables import PersonaError
from simulator.requests import Question
from tests.personas import SHIPPED
from tests.simulator.personas.conftest import ANOTHER_WORLD, QUERIES

assert SHIPPED.solver is not None
SOLVER = SHIPPED.solver
PROBLEMS = bundled_task().problems
DIFFICULTIES = {kind: [difficulty(each.question) for each in PROBLEMS if each.kind == kind] for kind in KINDS}
SCORE_ALONE = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}}}


def _said(question: str, system: str = "", model: str = "sim-solver:latest") -> str:
    ask = Question(model=model, prompt=question, system=system)
    return SHIPPED.reply("solver", ask, digest_of(question, system)).text


def _accuracy(system: str, model: str = "sim-solver:latest") -> float:
    right = [is_right(_said(each.question, system, model), each.answer or "") for each in PROBLEMS]
    return sum(right) / len(right)


def _solved(kind: str, told: Instructions) -> int:
    """How many problems of a kind are solved under the instructions."""
    share = SOLVER.share(kind, told)
    return sum(share > each for each in DIFFICULTIES[kind])


def _is_worked_out(problem: Problem) -> bool:
    """Whether a problem gets its kind, its answer, and wrong answers of which none is right."""
    kind, solution = solve(problem.question) or ("", None)
    if solution is None or kind != problem.kind or not is_right(solution.answer, problem.answer or ""):
        return False
    return bool(solution.wrong) and not any(is_right(wrong, problem.answer or "") for wrong in solution.wrong)


def test_it_works_out_every_bundled_problem_and_no_wrong_answer_is_right() -> None:
    assert [problem.id for problem in PROBLEMS if not _is_worked_out(problem)] == []


SIMILAR = [
    ("Paul has 30 coins and loses 4. How many coins does he have?", "26"),
    ("A kilo of flour costs 3 euros. What do 5 kilos cost? How much is it?", "15"),
    ("Anna packs 6 bags with 7 apples in each and then eats 2 apples. How many apples are left?", "40"),
    ("Forty children are divided into groups of 5. How many groups are there?", "8"),
    ("How many times is the letter a in 'abracadabra'?", "5"),
    ("How many vowels does the word piano have?", "3"),
    ("How many p's are in apple?", "2"),
    ("Sort alphabetically: kiwi, date, lime", "date, kiwi, lime"),
    ("Put these in reverse alphabetical order: a1, b2", None),
    ("Order from Z to A: kiwi, date, and lime.", "lime, kiwi, date"),
    ("What day of the week was July 4th, 1976?", "Sunday"),
    ("If today is Monday, what day was it 3 days ago?", "Friday"),
    ("How many days are there in April?", "30"),
    ("How many metres are 3 km?", "3000"),
    ("Convert 500ml to litres.", "0.5"),
    ("What is 2 hours and 15 minutes in minutes?", "135"),
    ("What day of the week is 30 February 2024?", None),
    ("What is the capital of France?", None),
    ("Write a poem about the sea.", None),
    ("", None),
]


def test_it_works_out_problems_of_the_same_kinds() -> None:
    wrong = {}
    for question, answer in SIMILAR:
        known = solve(question)
        if (known[1].answer if known else None) != answer:
            wrong[question] = known
    assert not wrong


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(" ".join(p.question for p in PROBLEMS).split())).map(" ".join)
)
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    known = solve(text)
    assert known is None or known[1].answer not in known[1].wrong
    assert SOLVER.read(text).cues <= set(SOLVER.cues)


def test_the_bundled_queries_are_hardly_ever_taken_for_problems() -> None:
    assert sum(solve(query) is not None for query in QUERIES) <= len(QUERIES) / 100


def test_what_it_does_not_know_it_says_so() -> None:
    assert _said("What is love?") == "I am not sure. Answer: unknown"


def test_the_seed_instructions_have_no_cue_and_the_best_prompts_do_better_in_the_bands_that_are_meant() -> (
    None
):
    assert SOLVER.read(SEED_INSTRUCTIONS) == Instructions(cues=frozenset(), examples=frozenset())
    told = [
        Instructions(cues=frozenset(cues), examples=frozenset())
        for count in range(len(SOLVER.cues) + 1)
        for cues in itertools.combinations(SOLVER.cues, count)
    ]
    solved = [{kind: _solved(kind, each) for kind in KINDS} for each in told]
    best = max(sum(by_kind.values()) for by_kind in solved) / len(PROBLEMS)
    best_by_kind = [max(by_kind[kind] for by_kind in solved) / len(DIFFICULTIES[kind]) for kind in KINDS]
    assert 0.35 <= sum(solved[0].values()) / len(PROBLEMS) <= 0.45
    assert 0.70 <= best <= 0.80
    assert 0.90 <= sum(best_by_kind) / len(KINDS) <= 1.0


def test_a_good_prompt_in_words_beats_the_seed_and_a_bad_one_is_worse() -> None:
    good = "Work step by step. Take lists one by one. For dates, count in weeks of seven days."
    bad = "Answer at once. Give a rough guess. Put a joke in."
    seed = _accuracy(SEED_INSTRUCTIONS)
    assert _accuracy(f"{good} {SEED_INSTRUCTIONS}") > seed + 0.2
    assert _accuracy(f"{bad} {SEED_INSTRUCTIONS}") < seed - 0.1


def test_the_models_differ_in_skill() -> None:
    small, middle, large = (
        _accuracy(SEED_INSTRUCTIONS, f"sim-solver{size}:latest") for size in ("-small", "", "-large")
    )
    assert small + 0.05 < middle < large - 0.05


def test_what_is_solved_under_a_lower_share_is_solved_under_a_higher() -> None:
    solved = {
        model: {each.id for each in PROBLEMS if is_right(_said(each.question, "", model), each.answer or "")}
        for model in ("sim-solver-small:latest", "sim-solver:latest", "sim-solver-large:latest")
    }
    small, middle, large = solved.values()
    assert small < middle < large


def test_a_worked_example_helps_problems_of_its_kind_and_its_words_are_no_cues() -> None:
    shown = "Question: How many letters does the word step by step check have?\nAnswer: 4\n\n"
    told = SOLVER.read(shown + SEED_INSTRUCTIONS)
    assert told == Instructions(cues=frozenset(), examples=frozenset({"letters"}))
    plain = SOLVER.read(SEED_INSTRUCTIONS)
    gains = {kind: round(SOLVER.share(kind, told) - SOLVER.share(kind, plain), 9) for kind in KINDS}
    assert gains == dict.fromkeys(KINDS, 0.0) | {"letters": 0.15}


def test_several_examples_are_all_read() -> None:
    shown = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in PROBLEMS[::40])
    assert SOLVER.read(f"{SEED_INSTRUCTIONS}\n\n{shown}").examples == set(KINDS)


def test_a_cue_that_is_forbidden_is_none() -> None:
    assert SOLVER.read("Do not guess. Never answer at once. Check it.").cues == {"check"}
    assert SOLVER.read("Guess.").cues == {"guess"}


def test_cues_beyond_the_free_ones_are_clutter() -> None:
    some = frozenset({"spell", "one_at_a_time", "units"})
    gain = SOLVER.share("letters", Instructions(cues=some, examples=frozenset()))
    loss = SOLVER.share("letters", Instructions(cues=some | {"check"}, examples=frozenset()))
    assert gain - loss == pytest.approx(SOLVER.clutter)


def test_a_score_alone_says_whether_a_known_problem_is_solved_but_for_the_judges_errors() -> None:
    right: list[int] = []
    wrong: list[int] = []
    for each in PROBLEMS:
        known = solve(each.question)
        assert known is not None
        for answer, scores in ((known[1].answer, right), (known[1].wrong[0], wrong)):
            reply = SOLVER.replies[len(scores) % len(SOLVER.replies)].replace("{answer}", answer)
            prompt = f"Grade.\n<question>{each.question}</question>\n<answer>{reply}</answer>"
            ask = Question(model="sim-judge:latest", prompt=prompt, format=SCORE_ALONE)
            scores.append(json.loads(SHIPPED.reply("judge", ask, digest_of(prompt)).text)["score"])
    assert {score >= 5 for score in right} == {score >= 5 for score in wrong} == {True, False}
    assert 0.88 <= sum(score >= 7 for score in right) / len(right) < 1
    assert 0.88 <= sum(score <= 4 for score in wrong) / len(wrong) < 1


def test_a_world_without_the_section_has_no_solver_and_may_name_none() -> None:
    text = ANOTHER_WORLD.read_text("utf-8")
    world = parse_persona(text)
    assert (world.solver, world.mutator.advice) == (None, None)
    with pytest.raises(
        PersonaError, match=r"models.rose is a solver, but the file has no section \[solver\]"
    ):
        parse_persona(text.replace('rose = "target"', 'rose = "solver"'))


def test_a_mistake_in_the_section_is_one_line() -> None:
    wrong = {}
    for more, says in (
        ("[solver]\nclutter = 2", "solver.clutter must be less than or equal to 1, got 2"),
        ("[solver]\nreplies = ['x']", "solver.replies must be a list of texts with {answer}"),
        ("[solver.kinds.riddles]\nbase = 1", "solver.kinds.riddles is not known"),
        (
            "[solver.kinds.units]\nbase = 0\nweights = { magic = 1 }",
            "solver.kinds.units.weights.magic is not known",
        ),
        ("[solver.cues]\nsteps = ['(']", "solver.cues.steps must be made of regular expressions"),
        ("[solver.advice]\nspecial = []", "solver.advice.special must not be empty"),
        (
            "[models]\nsim-solver = { role = 'solver', skill = 3 }",
            "models.sim-solver.skill must be less than or equal to 1",
        ),
        (
            "[models]\nsim-target = { role = 'target', skill = 0.1 }",
            "models.sim-target.skill must be left out: only a solver has one",
        ),
    ):
        with pytest.raises(PersonaError) as caught:
            parse_persona(f'extends = "cautious"\n{more}')
        if says not in str(caught.value) or "\n" in str(caught.value):
            wrong[says] = str(caught.value)
    assert not wrong
