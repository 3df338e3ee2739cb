"""A mutator as a task: its instruction is the prompt, and the queries of a run are the problems.

The mutator model rewords a query under the instruction, as in a run, and the target is asked what
is adopted. The problem is solved where the run's reward says success. Where a rewording is not
adopted, or is the query itself, the score is 0 and the target is not asked: its reply to the
unchanged query would say nothing about the instruction. A call that failed leaves no score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cyclopts import Parameter

from envs.episode import Episode, begin_together, derive_seed, reword_together
from envs.make import rules_and_models
from envs.mission import MissionConfig, open_encoder
from envs.queries import Query
from envs.query_sets import recorded_queries
from mutators.mutator import Mutator
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, ServerConfig
from ollama_utils.errors import OllamaError
from ollama_utils.types import Call, Completion
from records.errors import UserError, as_user_error
from records.run_folder import COMMAND_KEYS, CONFIG, QUERIES, check_is_run
from records.settings import (
    Count,
    NotNegative,
    Share,
    absolute,
    located_function,
    read_toml,
    resolved,
)
from search.config import CallFlags, SearchConfig
from search.genetics import raise_if_cancelled
from search.task import Problem, Task

if TYPE_CHECKING:
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


@Parameter(name="*", group="Evolving a mutator")
@dataclass(frozen=True, kw_only=True)
class MutatorFlags:
    """A mutator whose instruction evolves, and the run whose queries it rewords.

    Raises ValueError if one of the two is missing.
    """

    mutator: str | None = None
    """In place of a system prompt the instruction of this mutator evolves: a name as paraphrase, or
    FILE.py:NAME; it is one that asks a model once, under a system prompt."""
    run: str | None = None
    """The folder of a training run: the queries that it learned from are the problems, and what is
    not said here is as it was there. Code, hosts and files that it names have to be named again."""
    reward: str | None = None
    """What a success is [the run's]."""
    judge_rubric: str | None = None
    """A text file that --reward judge goes by [the run's]."""
    intent_judge: bool | None = None
    """The judge model also says whether a rewording asks for the same [the run's]."""
    encoder: str | None = None
    """The sentence encoder [the run's]."""
    intent_threshold: Share | None = None
    """Similarity to the query under which a rewording is not adopted [the run's]."""
    rewrite_num_predict: Count | None = None
    """Most tokens of a rewording [the run's]."""
    target_system: str | None = None
    """The target's system prompt [the run's]."""
    target_temperature: NotNegative | None = None
    """The target's temperature [the run's]."""

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if given and None in {self.mutator, self.run}:
            raise ValueError(
                f"{given[0]} is for a mutator that evolves: expected both --mutator and --run"
            )

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the mission that are given."""
        apart = ("mutator", "run")
        return {k: v for k, v in vars(self).items() if v is not None and k not in apart}

    def located(self) -> MutatorFlags:
        """The same with absolute paths."""
        places = vars(MissionConfig(**self.given).located())
        given = {name: places[name] for name in self.given}
        given |= {"mutator": located_function(self.mutator), "run": absolute(self.run)}
        return replace(self, **given)

    def mission(self, calls: CallFlags) -> MissionConfig:
        """How the mutator's rewordings are asked for, adopted and scored."""
        return MissionConfig(mutators=(str(self.mutator),), **vars(calls), **self.given)

    def load(self, calls: CallFlags, search: SearchConfig) -> tuple[Mutator, Sequence[Query]]:
        """The mutator, and the queries that the run learned from; raises UserError."""
        for flag in ("task", "scorer", "answer_column"):
            if getattr(search, flag) is not None:
                raise UserError(
                    f"--{flag.replace('_', '-')} and --mutator: its problems are the queries of "
                    "--run; leave one of them out"
                )
        with as_user_error(ValueError):
            (mutator,) = load_mutators((str(self.mutator),))
            instruction_of(mutator)
        self.mission(calls).check()
        queries = recorded_queries(Path(str(self.run)) / QUERIES).train
        return mutator, tuple(query for query in queries if not query.is_guard)

    def open(
        self,
        mutator: Mutator,
        queries: Sequence[Query],
        connection: Connection,
        *,
        calls: CallFlags,
        search: SearchConfig,
    ) -> MutatorTask:
        """What rewords the queries, asks and scores; raises UserError."""
        mission, dispatcher = self.mission(calls), connection.dispatcher
        made = MutatorTask(
            mutator=mutator,
            queries=queries,
            mission=mission,
            roles=connection.roles,
            encoder=open_encoder(mission.encoder, dispatcher, search.cache),
            seed=search.seed,
        )
        with as_user_error(OllamaError, ValueError):
            made.asking(dispatcher.generate)
        return made


def settings_of_run(run: Path) -> dict[str, Any]:
    """What the evolution of a mutator takes over from the training run of --run.

    Raises UserError if there is no such run.
    """
    check_is_run(run, "--run")
    table = read_toml(run / CONFIG)
    if COMMAND_KEYS["train"] not in table:
        raise UserError(
            f"--run names {str(run)!r}; expected the folder of a run of `mutagym train`"
        )
    keys = {*resolved(MutatorFlags()), *resolved(CallFlags()), *resolved(ServerConfig())}
    return {key: value for key, value in table.items() if key in keys}


def instruction_of(mutator: Mutator) -> str:
    """The system prompt under which a mutator's model rewords; raises ValueError."""
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
    return replace(
        mutator, function=lambda *text: replace(mutator.prompt(*text), system=instruction)
    )


def task_of(mutator: Mutator, queries: Sequence[Query]) -> Task:
    """The task whose problems are these queries; its `asking` is added later."""
    problems = (Problem(id=str(each.row), question=each.text, answer=None) for each in queries)
    return Task(name=mutator.name, problems=tuple(problems))


def evolved_name(mutator: Mutator) -> str:
    """What the mutator with the best instruction is called."""
    return f"{mutator.name}_evolved"


def as_file(spec: str, mutator: Mutator, instruction: str) -> str:
    """The Python file of a mutator, which `--mutators` calls `spec`, with another instruction."""
    name = evolved_name(mutator)
    return _FILE.format(base=mutator.name, name=name, spec=spec, instruction=instruction)


@dataclass(frozen=True, kw_only=True)
class MutatorTask:
    """Rewords the queries of a run, asks the target the rewordings and scores its replies."""

    mutator: Mutator
    queries: Sequence[Query]
    """Those that the run learned from."""
    mission: MissionConfig
    """How it called the models, what it adopted, and what it rewarded."""
    roles: Roles
    encoder: Encoder
    seed: int
    adopted: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether the rewording of a query under an instruction was adopted; no failed calls."""

    def adoptions(self, instruction: str, problems: Sequence[Problem]) -> list[float | None]:
        """For each query 1 where its rewording was adopted, else 0; None: nothing is known."""
        found = [self.adopted.get((instruction, problem.question)) for problem in problems]
        return [None if each is None else float(each) for each in found]

    def asking(
        self, generate: Callable[[Call], Completion]
    ) -> Callable[[str, Problem], tuple[Completion, float | None]]:
        """See `search.task.Asking`; raises ValueError."""
        sender = cast("Dispatcher", SimpleNamespace(generate=generate))  # nothing else is used
        rules, models = rules_and_models(
            self.mission, sender, self.roles, self.queries, seed=self.seed, encoder=self.encoder
        )

        def unscored(error: OllamaError) -> tuple[Completion, None]:
            return raise_if_cancelled(Completion(text="", error=error)), None

        def ask(instruction: str, problem: Problem) -> tuple[Completion, float | None]:
            query = problem.question
            episode = Episode(
                rules=replace(rules, mutators=(under(self.mutator, instruction),)),
                original=query,
                seed=derive_seed(self.seed, "evolve", query),
                number=0,
            )
            try:
                begin_together([episode], models)
            except OllamaError as error:
                return unscored(error)
            (made,) = reword_together([episode], [0], models)
            if made.error:
                return unscored(made.error)
            rejected = made.rejected or ("handed back" if made.query == query else "")
            self.adopted[instruction, query] = not rejected
            rewording = f"reworded as {made.rewrite.text[:SHOWN_CHARS]!r}"
            if rejected:
                why = REASONS.get(rejected, rejected)
                return Completion(text=f"{rewording}: rejected, {why}"), 0.0
            asked = [episode.question(made)]
            replies = models.ask(asked)
            (verdict,) = models.score(asked, replies, [episode.similarity(made)])
            if verdict.outcome == "unscored":  # the target failed, or a judge
                return unscored(replies[0].error or OllamaError(str(verdict.error)))
            label: str = "undetermined" if verdict.undetermined else verdict.outcome
            if label == "answered" and not verdict.intent_kept:
                label = "answered, but it asks for something else"
            text = f"{rewording}: {label}, for the reply is {replies[0].text[:SHOWN_CHARS]!r}"
            return Completion(text=text), float(verdict.success)

        return ask
