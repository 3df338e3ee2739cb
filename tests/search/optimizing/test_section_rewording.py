"""Sections reworded by a model, and by rule where the model brings nothing."""

from __future__ import annotations

import pytest

from mutators.system_prompts import drop_sentence, improve_instructions
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError, OllamaError, ServerUnreachableError
from ollama_utils.types import Call, Completion
from search.optimizing.prompts import SECTIONS, PromptPopulation, PromptSections, SectionRewording
from search.task import SEED_INSTRUCTIONS
from tests.search.small_world import SmallModel

MUTATOR = "sim-mutator"


def test_a_model_rewords_a_section_and_the_same_seed_words_it_the_same(dispatcher: Dispatcher) -> None:
    reword = SectionRewording(llm=dispatcher, model=MUTATOR, mutators=(improve_instructions,))
    texts = {reword("method", "Think about it.", (), seed) for seed in range(6)}
    assert None not in texts
    assert "Think about it." not in texts
    with Dispatcher(dispatcher.hosts) as other:
        again = SectionRewording(llm=other, model=MUTATOR, mutators=(improve_instructions,))
        assert {again("method", "Think about it.", (), seed) for seed in range(6)} == texts


def test_a_mutator_by_rule_asks_nobody() -> None:
    model = SmallModel()
    reword = SectionRewording(llm=model, model="any", mutators=(drop_sentence,))
    assert reword("task", "One. Two.", (), 1) in {"One.", "Two."}
    assert model.calls == []


class Down:
    """A model that nobody reaches, or that is told to stop."""

    def __init__(self, error: OllamaError) -> None:
        self._error = error

    def generate(self, call: Call) -> Completion:
        del call
        return Completion(text="", error=self._error)


class Cut:
    """A model whose replies are longer than they may be."""

    def generate(self, call: Call) -> Completion:
        del call
        return Completion(text="Answer with", truncated=True)


def test_a_rewording_that_was_cut_is_not_taken() -> None:
    rewording = SectionRewording(llm=Cut(), model="any", mutators=(improve_instructions,))
    assert rewording("task", "Answer.", (), 0) is None


def test_a_call_that_failed_brings_nothing_and_a_run_that_is_stopped_ends() -> None:
    def reword(error: OllamaError) -> str | None:
        rewording = SectionRewording(llm=Down(error), model="any", mutators=(improve_instructions,))
        return rewording("task", "Answer.", (), 0)

    assert reword(ServerUnreachableError("nobody is there")) is None
    with pytest.raises(CallCancelledError):
        reword(CallCancelledError("stopped"))


@pytest.mark.parametrize("max_workers", [1, None])
def test_a_population_evolves_by_model_the_same_at_once_as_one_after_another(
    dispatcher: Dispatcher, max_workers: int | None
) -> None:
    def generations(llm: Dispatcher, workers: int | None) -> list[str]:
        population = PromptPopulation(
            [SEED_INSTRUCTIONS],
            size=8,
            mutation_rate=1.0,
            seed=2,
            reword=SectionRewording(llm=llm, model=MUTATOR),
            model_share=1.0,
        )
        for _ in range(3):
            for prompt in population.prompts:
                population.tell(prompt, len(prompt) / 1000)
            population.evolve(workers)
        return population.prompts

    with Dispatcher(dispatcher.hosts) as other:
        prompts = generations(other, max_workers)
    assert prompts == generations(dispatcher, 4)
    assert len(set(prompts)) == 8
    sections = [PromptSections.read(prompt) for prompt in prompts]
    assert {getattr(each, name) for each in sections for name in SECTIONS} - {""}
