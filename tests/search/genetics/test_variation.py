"""Children: by model and by rule, the same from the same replies, never lost to a broken server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutators.registry import by_model, by_rule
from mutators.system_prompts import WrongAnswer, improve_instructions
from ollama_utils.errors import CallCancelledError, ServerFaultError
from ollama_utils.types import Call, Completion
from search.genetics.genome import Example, Genome
from search.genetics.variation import SPECIALIZE, ChildSpec, Draft, Variation
from search.rewording import Rewriter

EXAMPLES = (Example("What is 1 + 1?", "2"), Example("What is 2 + 2?", "4"), Example("What is 3 + 3?", "6"))
Reply = Callable[[Call], Completion]


@by_model
def reword(query: str, _earlier: Sequence[str], seed: int) -> str:
    """Ask for other words."""
    return f"Improve {query} ({seed})"


@by_model
def blend(query: str, earlier: Sequence[str], _seed: int) -> str:
    """Ask for both in one."""
    return f"Combine {query} and {earlier[0]}"


@by_rule
def shout(query: str, _earlier: Sequence[str], _seed: int) -> str:
    """Louder."""
    return query.upper()


@by_rule
def append(query: str, earlier: Sequence[str], _seed: int) -> str:
    """One after the other."""
    return f"{query} {earlier[0]}"


def variation(examples: Sequence[Example] = EXAMPLES) -> Variation:
    return Variation(
        mutators=(reword, shout),
        crossovers=(blend, append),
        examples=tuple(examples),
        max_examples=2,
        failures_shown=3,
        rewriter=Rewriter(model="m"),
    )


def says(text: str) -> Reply:
    return lambda _call: Completion(text=text)


def born(spec: ChildSpec, reply: Reply) -> tuple[Draft, list[Call]]:
    """The draft that a spec ends in, and what was asked for it."""
    plan = variation().draft(spec)
    asked: list[Call] = []
    try:
        askings = next(plan)
        while True:
            asked += [asking.call for asking in askings]
            askings = plan.send([asking.answer(reply) for asking in askings])
    except StopIteration as end:
        return end.value, asked


def spec(*steps: str, parents: Sequence[str] = ("Solve it.", "Check it.")) -> ChildSpec:
    return ChildSpec(parents=tuple(Genome(text) for text in parents), steps=steps, seed=7)


def test_a_birth_without_steps_is_its_parent_and_asks_nothing() -> None:
    draft, asked = born(spec(), says("never"))
    assert (draft.genome, draft.failed, asked) == (Genome("Solve it."), 0, [])


def test_a_model_rewords_the_instructions_with_a_seed_of_their_own() -> None:
    draft, (call,) = born(spec("reword"), says("**Solve it with care.**"))
    assert draft.genome == Genome("Solve it with care.")
    assert call.prompt.startswith("Improve Solve it.")
    assert call.repeatable


def test_a_rewording_that_was_cut_is_not_taken_and_a_rule_does_it() -> None:
    draft, asked = born(spec("reword"), lambda _: Completion(text="Solve it with", truncated=True))
    assert (draft.failed, len(asked)) == (0, 1)
    assert draft.genome not in {Genome("Solve it."), Genome("Solve it with")}


def test_steps_follow_each_other_and_the_second_parent_is_joined() -> None:
    draft, asked = born(spec("blend", "reword"), lambda call: Completion(text=f"{call.prompt[:7]} all."))
    assert [call.prompt[:8] for call in asked] == ["Combine ", "Improve "]
    assert draft.genome == Genome("Improve all.")


def test_rules_ask_nobody() -> None:
    draft, asked = born(spec("append", "shout"), says("never"))
    assert (draft.genome.instructions, asked) == ("SOLVE IT. CHECK IT.", [])


def test_a_failed_call_is_asked_once_more_and_then_a_rule_does_it() -> None:
    replies = iter([Completion(text="", error=ServerFaultError("503")), Completion(text="Solve it twice.")])
    draft, asked = born(spec("reword"), lambda _: next(replies))
    assert (draft.genome.instructions, draft.failed, len(asked)) == ("Solve it twice.", 0, 2)
    assert asked[0] == asked[1]
    draft, asked = born(spec("reword"), lambda _: Completion(text="", error=ServerFaultError("503")))
    assert (draft.asked, draft.failed, draft.error, len(asked)) == (1, 1, "503", 2)
    assert draft.genome != Genome("Solve it.")


@pytest.mark.parametrize("text", ["", "   ", "Solve it.", "word " * 5000])
def test_a_reply_that_is_no_new_prompt_is_replaced_by_a_rule(text: str) -> None:
    draft, asked = born(spec("reword"), says(text))
    assert (draft.failed, len(asked)) == (0, 1)
    assert draft.genome != Genome("Solve it.")
    assert len(draft.genome.instructions) < 100


def test_a_stopped_run_makes_no_child() -> None:
    with pytest.raises(CallCancelledError):
        born(spec("reword"), lambda _: Completion(text="", error=CallCancelledError("stop")))


def test_examples_are_added_dropped_and_swapped_within_their_most() -> None:
    genome, _ = born(spec("add_example"), says("never"))
    assert genome.genome.examples[0] in EXAMPLES
    two = Genome("Solve it.", EXAMPLES[:2])
    for step, count in (("add_example", 2), ("drop_example", 1), ("swap_example", 2)):
        draft, _ = born(ChildSpec(parents=(two,), steps=(step,), seed=3), says("never"))
        assert len(set(draft.genome.examples)) == len(draft.genome.examples) == count
        assert draft.genome != two


def test_children_of_two_take_examples_of_either() -> None:
    a, b = Genome("Solve it.", EXAMPLES[:1]), Genome("Check it.", EXAMPLES[1:])
    seen: set[Example] = set()
    for seed in range(20):
        draft, _ = born(ChildSpec(parents=(a, b), steps=("append",), seed=seed), says("never"))
        assert len(draft.genome.examples) <= 2
        seen.update(draft.genome.examples)
    assert seen == set(EXAMPLES)


def test_steps_that_need_examples_are_offered_only_where_there_are_some() -> None:
    assert variation(()).mutations == ("reword", "shout", SPECIALIZE)
    assert set(variation().mutations) - set(variation(()).mutations) == {
        "add_example",
        "drop_example",
        "swap_example",
    }
    assert variation().crossings == ("blend", "append")


FAILURES = tuple(WrongAnswer(f"What is {i} + {i}?", str(2 * i), "Answer: 7") for i in range(9))


def failed(seed: int = 7, failures: tuple[WrongAnswer, ...] = FAILURES) -> ChildSpec:
    return ChildSpec(parents=(Genome("Solve it."),), steps=(SPECIALIZE,), seed=seed, failures=failures)


def test_a_prompt_is_specialized_to_some_of_its_failures_and_the_seed_says_which() -> None:
    draft, (call,) = born(failed(), says("Solve it. Double the number."))
    assert draft.genome == Genome("Solve it. Double the number.")
    assert (draft.asked, draft.failed) == (1, 0)
    shown = [failure for failure in FAILURES if failure.question in call.prompt]
    assert len(shown) == 3
    assert born(failed(), says("Any."))[1] == [call]
    asked = [born(failed(seed), says("Any."))[1][0].prompt for seed in range(40)]
    assert all(any(each.question in prompt for prompt in asked) for each in FAILURES)
    assert [born(failed(failures=FAILURES[:1]), says("Any."))[1][0].prompt.count('"question"')] == [1]


def test_without_failures_it_is_improved() -> None:
    _, (call,) = born(failed(failures=()), says("Any."))
    assert call.prompt == improve_instructions.prompt("Solve it.", (), call.options["seed"]).text


def test_a_specialization_that_quotes_a_problem_is_not_taken() -> None:
    every = " ".join(failure.question for failure in FAILURES)
    draft, asked = born(failed(), says(f"Solve it. {every} It is 4."))
    assert len(asked) == 1
    assert "What is" not in draft.genome.instructions
    assert draft.genome != Genome("Solve it.")


@given(st.integers(0, 1000), st.lists(st.sampled_from(["A b.", "C d.", "E f. G h."]), min_size=1, max_size=4))
def test_a_genome_is_changed_by_rule_into_one_that_is_new(seed: int, texts: list[str]) -> None:
    known = {Genome(text): None for text in texts}
    changed = variation().changed(Genome(texts[0]), known, Random(seed))
    assert changed is None or changed not in known
    assert changed == variation().changed(Genome(texts[0]), known, Random(seed))


def test_what_is_new_stays_as_it_is() -> None:
    assert variation().changed(Genome("New."), {Genome("Old."): None}, Random(0)) == Genome("New.")


def test_where_no_failures_are_to_be_shown_no_prompt_is_specialized() -> None:
    plain = Variation(mutators=(reword, shout), crossovers=(), rewriter=Rewriter(model="m"))
    assert plain.mutations == ("reword", "shout")


def test_two_operators_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'reword' is named twice"):
        Variation(
            mutators=(reword, reword),
            crossovers=(append,),
            rewriter=Rewriter(model="m"),
        )
