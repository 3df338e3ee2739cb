"""A mutator as a task: its instruction is the prompt, and the queries of a run are the problems.

A problem takes two calls: the mutator model rewords the query under the instruction, as in a run
(the same worked examples, the same rules of what is adopted), and the target is asked what is
adopted. It is solved where the run's reward says success. A rewording that is not adopted, or that
hands the query back, scores 0 and the target is not asked: what it says to the query itself tells
nothing of the instruction. Where a call failed, there is no score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from envs.episode import Episode, begin_together, derive_seed, reword_together
from envs.make import make_parts
from envs.query_mutation import QueryMutationEnv
from mutators.mutator import Mutator
from ollama_utils.errors import OllamaError
from ollama_utils.types import Call, Completion, Prompt
from search.rewording import raise_if_cancelled
from search.task import Problem, Task

if TYPE_CHECKING:
    from envs.mission import MissionConfig
    from envs.queries import Query
    from ollama_utils.connect import Roles
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import Encoder

SHOWN_CHARS = 160
"""Of a rewording, and of a reply to it, in a failure that the model is shown."""
REASONS = {
    "handed back": "it is the query itself",
    "filtered": "a content filter ended it",
    "cut": "it is too long",
    "empty": "it is no text",
    "refused": "it refuses to reword",
    "answered": "it asks nothing",
    "strayed": "it asks for something else",
    "drifted": "it means something else",
}
"""Why a rewording is not adopted, by the words of `rejected`."""
_FILE = '''"""The mutator {base} under an instruction that evolved."""

from dataclasses import replace

from mutators.registry import by_model, load_mutators

(BASE,) = load_mutators(({spec!r},))
INSTRUCTION = {instruction!r}


@by_model
def {name}(query, earlier, seed):
    """As {base}, under an instruction that evolved."""
    return replace(BASE.prompt(query, earlier, seed), system=INSTRUCTION)
'''


def instruction_of(mutator: Mutator) -> str:
    """The system prompt under which a mutator's model rewords.

    Raises:
        ValueError: it has no such, or one that depends on what is reworded, or on chance.
    """
    prompts = []
    if mutator.kind == "model" and mutator.then is None:
        cases = [("Why?", (), seed) for seed in range(8)] + [("How?", ("Why not?",), 0)]
        prompts = [mutator.prompt(*case).system for case in cases]
    if not prompts or not prompts[0] or len(set(prompts)) > 1:
        raise ValueError(
            f"mutator {mutator.name!r} has no instruction that could evolve; expected one that "
            "asks a model once, under one system prompt for all queries, as paraphrase or shorten"
        )
    return prompts[0]


def under(mutator: Mutator, instruction: str) -> Mutator:
    """The mutator with another instruction."""

    def reword(query: str, earlier: Sequence[str], seed: int) -> Prompt:
        return replace(mutator.prompt(query, earlier, seed), system=instruction)

    return replace(mutator, function=reword)


def task_of(mutator: Mutator, queries: Sequence[Query]) -> Task:
    """The task whose problems are these queries; how they are asked is still to be said."""
    problems = (Problem(id=str(each.row), question=each.text, answer=None) for each in queries)
    return Task(name=mutator.name, problems=tuple(problems))


def evolved_name(mutator: Mutator) -> str:
    """What the mutator with the best instruction is called."""
    return f"{mutator.name}_evolved"


def as_file(spec: str, mutator: Mutator, instruction: str) -> str:
    """The Python file of a mutator with another instruction.

    Args:
        spec: what `--mutators` calls the mutator that it is made of.
        mutator: that one.
        instruction: the other instruction.
    """
    name = evolved_name(mutator)
    return _FILE.format(base=mutator.name, name=name, spec=spec, instruction=instruction)


@dataclass(frozen=True, kw_only=True)
class MutatorTask:
    """Rewords the queries of a run, and asks and scores what comes of it."""

    mutator: Mutator
    queries: Sequence[Query]
    """Those that the run learned from."""
    mission: MissionConfig
    """How it called the models, what it adopted, and what it rewarded."""
    roles: Roles
    encoder: Encoder
    seed: int
    adopted: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether what came of an instruction and a query was adopted, where the call did not fail."""

    def adoptions(self, instruction: str, problems: Sequence[Problem]) -> list[float | None]:
        """For each query 1 where its rewording was adopted, else 0; None: nothing is known."""
        found = [self.adopted.get((instruction, problem.question)) for problem in problems]
        return [None if each is None else float(each) for each in found]

    def asking(
        self, generate: Callable[[Call], Completion]
    ) -> Callable[[str, Problem], tuple[Completion, float | None]]:
        """See `search.task.Asking`.

        Raises:
            ValueError: bad data, as `make_parts` reports it.
        """
        sender = cast("Dispatcher", SimpleNamespace(generate=generate))  # nothing else is used
        config, parts = make_parts(
            self.mission, sender, self.roles, self.queries, seed=self.seed, encoder=self.encoder
        )
        env = QueryMutationEnv(config, **parts)

        def ask(instruction: str, problem: Problem) -> tuple[Completion, float | None]:
            query = problem.question
            episode = Episode(
                rules=replace(env.rules, mutators=(under(self.mutator, instruction),)),
                original=query,
                seed=derive_seed(self.seed, "evolve", query),
                number=0,
            )
            try:
                begin_together([episode], env.models)
            except OllamaError as error:
                return raise_if_cancelled(Completion(text="", error=error)), None
            (made,) = reword_together([episode], [0], env.models)
            if made.error:
                return raise_if_cancelled(replace(made.rewrite, error=made.error)), None
            rejected = made.rejected or ("handed back" if made.query == query else "")
            self.adopted[instruction, query] = not rejected
            said = f"reworded as {made.rewrite.text[:SHOWN_CHARS]!r}"
            if rejected:
                why = REASONS.get(rejected, rejected)
                return Completion(text=f"{said}: rejected, {why}"), 0.0
            asked = [episode.question(made)]
            replies = env.models.ask(asked)
            (verdict,) = env.models.score(asked, replies, [episode.similarity(made)])
            if verdict.outcome == "unscored":  # the target failed, or a judge
                failed = replies[0].error or OllamaError(str(verdict.error))
                return raise_if_cancelled(replace(replies[0], error=failed)), None
            label: str = "undetermined" if verdict.undetermined else verdict.outcome
            if label == "answered" and not verdict.intent_kept:
                label = "answered, but it asks for something else"
            shown = f"{said}: {label}, for the reply is {replies[0].text[:SHOWN_CHARS]!r}"
            return Completion(text=shown), float(verdict.success)

        return ask
