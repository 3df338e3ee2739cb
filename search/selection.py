"""The selection of `mutagym select`: its flags, its dataset, its evaluations here or on Ray."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from envs.query_files import read_table
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from ollama_utils.errors import (
    BadReplyError,
    BadRequestError,
    ModelMissingError,
    ServerFaultError,
)
from ollama_utils.on_ray import END_S, EngineConfig, Failure, join_ray, run_on_ray, task_log
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.session import Found, Session
from ollama_utils.types import Call, short_name, think_of
from records.errors import UserError, as_user_error, nearest
from records.failures import FailureLimit
from records.interrupt import Interrupted, interruptible
from records.run_folder import check_places
from records.settings import Count, Share, absolute, comma_list, located_function
from records.terminal import one_line, write_stderr
from search.config import CallFlags, SearchConfig, read_prompt
from search.evaluate import Models, OwnError, TaskEvaluation, load_evaluation, read_prices
from search.select import Evaluate, NoWinnerError, check_settings, label_of, make_selector
from search.session import CallOutcomes, SearchRecorder
from search.strategies import Cell, Outcome
from search.task import SEED_INSTRUCTIONS, ScorerError, Task

FLAGS = ("delta", "epsilon", "threshold", "max_errors")
"""Settings of selectors that have flags of their own, beside the seed."""
SPARED = (BadReplyError, BadRequestError, ModelMissingError, ServerFaultError)
"""Failures that count against a model, and do not end the selection."""
SOLVERS = ("sim-solver-small", "sim-solver", "sim-solver-large")
"""What is compared where no model is named and the embedded simulator stands in."""
FIRST = 3
"""Where so many evaluations fail that come first, the user's function is at fault."""
OPTION = re.compile(r"(?P<name>[A-Za-z_-]+)=(?P<value>\d*\.?\d+)")

Open = Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))]
Tick = Callable[[int], None]
"""Is called now and then with how many evaluations of a round are done."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """All settings of `mutagym select`. Defaults < --config FILE < flags."""

    models: Annotated[tuple[str, ...], comma_list()] = ()
    """Models to choose from, by comma [the target model; on the simulator its three solvers]."""
    prompts: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A file with a system prompt to choose from (repeatable) [a plain one, and no choice]."""
    mutators: Annotated[tuple[str, ...], comma_list()] = ()
    """Mutators to choose from, by comma, which reword the question first; `noop` does not
    [no choice]."""
    selector: str = "arm_elimination"
    """The search strategy: brute_force, random, hill_climbing, arm_elimination, threshold,
    epsilon_lucb, bayesian or matrix_ucb."""
    evaluate: str | None = None
    """FILE.py:NAME, a plain function (combination, datapoint, ask) -> float from 0 to 1, or an
    Evaluation; a datapoint is then any row of the dataset. `ask(text)` puts a text to the
    combination's model under its prompt, or to those of `model=` and `system=`, and
    `ask(text).text` is the reply; a mutator is named by `combination["mutator"]`, and not applied
    [the scorer of the task]."""
    price: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """MODEL=IN:OUT (repeatable): what a million tokens cost, read and written [no price]."""
    max_concurrent: Count = 20
    """Calls under way at once, over all combinations and datapoints."""
    delta: Open = None
    """How often what the selector claims may be wrong [0.05]."""
    epsilon: Share | None = None
    """How much worse than the best the winner may be, for epsilon_lucb [0.01]."""
    threshold: Open = None
    """The score that a combination has to reach, for threshold [0.75]."""
    max_errors: Share | None = None
    """A combination that fails on more than this share of the datapoints cannot win [0.1]."""
    option: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """NAME=NUMBER (repeatable): another option of the selector, as in n_initial=5; the error for
    one that it has not names those that it has."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    calls: CallFlags = field(default_factory=CallFlags)
    search: SearchConfig = field(default_factory=SearchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def located(self) -> SelectConfig:
        """The same with absolute paths, and the first model as the target."""
        target = self.models[0] if self.models else self.server.target_model
        return replace(
            self,
            prompts=tuple(str(absolute(path)) for path in self.prompts),
            evaluate=located_function(self.evaluate),
            search=self.search.located(),
            server=replace(self.server.located(), target_model=target),
        )

    def check(self) -> None:
        """Check what can be checked from the flags alone; raises UserError."""
        check_places(self.search)
        self.settings()
        read_prices(self.price)
        if self.evaluate and self.search.scorer:
            raise UserError("--scorer and --evaluate cannot stand together: leave one of them out")
        if self.engine.engine == "ray" and self.search.rate_limit_per_minute:
            raise UserError(
                "--rate-limit-per-minute is kept by one process; it cannot stand beside "
                "--engine ray"
            )

    def settings(self) -> dict[str, Any]:
        """The settings of the selector, checked; raises UserError."""
        flags = {"seed": self.search.seed} | {name: getattr(self, name) for name in FLAGS}
        settings = {name: value for name, value in flags.items() if value is not None}
        for text in self.option:
            if not (parts := OPTION.fullmatch(text)):
                raise UserError(f"--option is {text!r}; expected NAME=NUMBER, as in n_initial=5")
            name, value = parts["name"].replace("-", "_"), parts["value"]
            if name in flags:
                flag = f"--{name.replace('_', '-')} {value}"
                raise UserError(f"--option {text} has a flag of its own: write {flag}")
            settings[name] = int(value) if value.isdecimal() else float(value)
        with as_user_error(ValueError):
            check_settings(self.selector, settings)
        return settings


class Dataset(NamedTuple):
    """What combinations are evaluated on; without a task, by a user's own function alone."""

    name: str
    datapoints: Sequence[Any]
    task: Task | None


def read_dataset(config: SelectConfig) -> Dataset:
    """The problems of the task; for a function of the user's the rows of --task, as they are.

    Raises UserError if the file or the scorer is no good.
    """
    path = config.search.task
    if config.evaluate and path:
        table = read_table(Path(path))
        rows = [dict(cells) for _, cells in table.rows(table.columns)]
        return Dataset(Path(path).stem, rows, None)
    task = config.search.read_task()
    rows = list(map(asdict, task.problems))
    return Dataset(task.name, rows if config.evaluate else task.problems, task)


def read_prompts(paths: Sequence[str]) -> dict[str, str]:
    """The prompts of files, by these files' names; by their paths where names are equal.

    Raises UserError if one cannot be read, or two are equal.
    """
    stems = [Path(path).stem for path in paths]
    prompts: dict[str, str] = {}
    for stem, path in zip(stems, paths, strict=True):
        name = stem if stems.count(stem) == 1 else path
        text = read_prompt(path, "--prompts", is_file=True)
        if equal := [other for other, known in prompts.items() if known == text]:
            raise UserError(f"--prompts {name} and {equal[0]} are the same text: name it once")
        prompts[name] = text
    return prompts


def with_models(config: SelectConfig, connection: Connection) -> SelectConfig:
    """The config with models; where none is named, the target, or the simulator's solvers.

    Raises UserError if one is not at the hosts, or a price is of a model that is not asked.
    """
    named = config.server.target_model
    stand_in = SOLVERS if connection.embedded and not named else (connection.roles.target,)
    models = config.models or stand_in
    connection.check_pulled(models)
    others: Iterable[str] = connection.available if config.evaluate else ()  # it may call any
    if config.mutators and connection.roles.mutator and not config.evaluate:
        others = (connection.roles.mutator,)
    asked = list(dict.fromkeys(map(short_name, [*models, *others])))
    for model in read_prices(config.price):
        if short_name(model) not in asked:
            hint = nearest(model, asked)
            raise UserError(f"--price names {model!r}, which is not asked here; {hint}")
    return replace(config, models=models)


class Selection:
    """A selection that is ready to begin; for its parts see the functions above.

    Raises UserError if a choice, the evaluation or the selector cannot be made.
    """

    def __init__(
        self,
        config: SelectConfig,
        dataset: Dataset,
        prompts: Mapping[str, str],
        connection: Connection,
    ) -> None:
        self._config, self._dataset, self._connection = config, dataset, connection
        self._prompts = prompts
        self._ray_folder: Path | None = None
        self._on_ray = Lock()
        """Held while tasks run."""
        self.failure = ""
        """Why there is no winner, although the selection went through."""
        self.first: list[Call] = []
        """One question to each model, as the selection asks it; none of a user's own evaluation."""
        of_each = {"model": config.models, "prompt": tuple(prompts), "mutator": config.mutators}
        choices = {name: several for name, several in of_each.items() if several}
        with as_user_error(ValueError):
            mutators = load_mutators(config.mutators or ("noop",))
            evaluate, points = self._evaluation(choices), dataset.datapoints
            self.selector = make_selector(
                config.selector, choices, points, evaluate, **config.settings()
            )
        if len(self.selector.combinations) == 1 and config.selector != "brute_force":
            raise UserError(
                f"{label_of(self.selector.combinations[0])} alone is no choice: name several "
                "--models, --prompts or --mutators, or score it on every datapoint with "
                "--selector brute_force"
            )
        self.size = len(self.selector.combinations) * len(points)
        """How many evaluations there are at most."""
        calls_each = 1 + max(mutator.calls for mutator in mutators)
        self.most_calls = None if config.evaluate else self.size * calls_each
        """None: a user's function makes them."""

    def use_ray(self, session: Session) -> None:
        """Evaluate on a Ray cluster, a combination a task, until the session ends.

        The session's folder has to be on storage that all machines share.

        Raises:
            UserError: Ray is not installed, or there is no such cluster.
        """
        session.stack.enter_context(join_ray(self._config.engine.ray_address))
        # After Ctrl-C the tasks have the time to keep the replies that are under way.
        session.stack.callback(self._on_ray.acquire, timeout=2 * END_S)
        self._ray_folder = session.folder.path.absolute()

    def run(self, recorder: SearchRecorder) -> Found:
        """Select, and record each round; raises what no combination is to blame for."""
        selector, done, evaluate = self.selector, 0, self.evaluate
        if self._ray_folder:
            evaluate = partial(self._evaluate_on_ray, self._ray_folder, recorder.limit)
        while cells := selector.ask():
            outcomes: list[Outcome] = []

            def tick(count: int, before: int = done) -> None:
                recorder.advance(before + count)

            with closing(evaluate(cells, tick)) as found:
                for outcome in found:
                    outcomes.append(outcome)
                    if not done and len(outcomes) == min(FIRST, len(cells)):
                        self._check_function(outcomes)
            played = selector.tell(outcomes)
            done = played.evaluations
            metrics = {
                "select/best": played.best,
                "select/survivors": played.survivors,
                "select/evaluations": done,
                "select/errors": played.errors,
            }
            recorder.record(played.number, metrics, done=done, best=played.best)
        return self._found()

    def evaluate(
        self, cells: Sequence[Cell], tick: Tick = lambda _done: None
    ) -> Generator[Outcome, None, None]:
        """The outcome of each cell, in their order; exceptions in place of scores."""
        return iterate_parallel(self.selector.outcome, cells, self._config.max_concurrent, tick)

    def _evaluation(self, choices: Mapping[str, Sequence[str]]) -> Evaluate:
        """What a combination does at a datapoint."""
        config, dispatcher = self._config, self._connection.dispatcher
        cap = dispatcher.servers.new_cap(config.max_concurrent)
        every: dict[str, Any] = {
            "generate": partial(dispatcher.generate, cap=cap),
            "prices": read_prices(config.price),
            "prompts": self._prompts,
            "options": config.calls.options,
            "think": think_of(config.calls.think),
            "seed": config.search.seed,
        }
        task = self._dataset.task
        if config.evaluate or not task:
            return load_evaluation(str(config.evaluate), Models(**every))
        rewords = self._connection.roles.mutator
        evaluation = TaskEvaluation(**every, task=task, mutator_model=rewords)
        evaluation.check(choices)
        prompt, problem = next(iter(self._prompts), SEED_INSTRUCTIONS), task.problems[0]
        self.first = [evaluation.question(problem, model, prompt) for model in choices["model"]]
        return evaluation

    def _evaluate_on_ray(
        self, folder: Path, limit: FailureLimit, cells: Sequence[Cell], tick: Tick
    ) -> Generator[Outcome, None, None]:
        """As `evaluate`, on Ray."""
        config = replace(self._config, server=self._connection.for_jobs(self._config.server))
        job = partial(evaluate_arm, config=config, prompts=self._prompts, folder=folder)
        arms: dict[int, list[int]] = {}
        for arm, index in cells:
            arms.setdefault(arm, []).append(index)
        outcomes: dict[Cell, Outcome] = {}
        requests, hosts = list(arms.items()), self._connection.dispatcher.hosts
        running = run_on_ray(job, requests, hosts, lambda: tick(len(outcomes)))
        with self._on_ray, closing(running) as results:
            for (arm, indices), (found, failed) in zip(requests, results, strict=True):
                limit.add(failed)
                for index, outcome in zip(indices, found, strict=True):
                    is_failure = isinstance(outcome, Failure)
                    outcomes[arm, index] = outcome.error() if is_failure else outcome
        yield from (outcomes[cell] for cell in cells)

    def _check_function(self, outcomes: Sequence[Outcome]) -> None:
        """Raise ScorerError if a user's function failed at all of the first evaluations."""
        if all(isinstance(outcome, OwnError) for outcome in outcomes):
            raise ScorerError(
                f"--evaluate {self._config.evaluate!r} failed wherever it was tried first: "
                f"{outcomes[0]}; expected 0 to 1, and 0 for a bad reply"
            )

    def _found(self) -> Found:
        """The results, and apart from them the seconds, which a resumed run may find otherwise."""
        config, connection = self._config, self._connection
        try:
            found = self.selector.results()
            says = f"best {found.best.score:.3f}: {label_of(found.best.combination)}"
        except NoWinnerError as error:
            found, says = error.results, "no winner"
            self.failure = f"{error}: mend that, or go on with --resume and a larger --max-errors"
        write_stderr(f"evaluations: {found.evaluations} made, {one_line(says)}")
        settings = {"selector": config.selector, "seed": config.search.seed}
        results = {**settings, "dataset": self._dataset.name, **found.to_dict()}
        priced = set(map(short_name, read_prices(config.price)))
        trails, latencies = self._trails(), {}
        for row in results["combinations"]:
            row["trail"] = trails[row["index"]]
            latencies[str(row["index"])] = row.pop("latency_s")
            if short_name(self.selector.combinations[row["index"]]["model"]) not in priced:
                row["price"] = row["price"] or None  # it may have paid for another model
            # A server's address may be another one each time.
            for address, name in zip(connection.dispatcher.hosts, connection.servers, strict=True):
                row["first_error"] = (row["first_error"] or "").replace(address, name) or None
        return Found(results=results, spent={"latency_s": latencies})

    def _trails(self) -> list[list[list[float]]]:
        """How each combination's interval narrowed: [n, mean, low, high] after n = 1, 2, 4, ..."""
        table = self.selector.table
        ends = [*(2**k for k in range((table.size - 1).bit_length())), table.size]
        intervals = {end: self.selector.intervals(end) for end in ends}
        trails = []
        for arm in table.arms:
            seen = table.seen(arm)
            points = {min(end, len(seen)): end for end in ends if len(seen)}
            trails.append(
                [[n, float(seen[:n].mean()), *intervals[end][arm]] for n, end in points.items()]
            )
        return trails


def evaluate_arm(
    hosts: tuple[str, ...],
    request: tuple[int, list[int]],
    *,
    config: SelectConfig,
    prompts: Mapping[str, str],
    folder: Path,
) -> tuple[list[Any], list[str]]:
    """A job on Ray: evaluate a combination at some datapoints, on a connection of its own.

    The request is the index of the combination, and the indices of the datapoints.

    Returns:
        The outcome at each datapoint, and why calls failed, as `CallOutcomes.read` says it.

    Raises:
        UserError: a file that the config names cannot be used on this machine.
        Exception: what no combination is to blame for.
    """
    arm, indices = request
    server = connect(config.server, at=hosts, simulated_target=SOLVERS[0])
    with interruptible(), server as connection, ExitStack() as stack:
        digests = connection.digests("", *config.models)
        replies = stack.enter_context(ReplyLog(task_log(folder, arm), digests=digests))
        keep_replies(replies, config.search.cache, connection, digests, stack)
        selection = Selection(config, read_dataset(config), prompts, connection)
        calls = CallOutcomes(replies, connection.dispatcher, SPARED)
        cells = [(arm, index) for index in indices]
        try:
            with closing(selection.evaluate(cells)) as found:
                outcomes = [Failure(x) if isinstance(x, Exception) else x for x in found]
        except (Interrupted, Exception):
            connection.dispatcher.cancel()
            raise
        return outcomes, calls.read()
