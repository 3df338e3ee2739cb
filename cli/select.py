"""Select the best combination of models, system prompts and mutators for a task, in as few calls as will do.

Run it with `mutagym select --models llama3.2,qwen3 --prompts short.txt --prompts long.txt --task mine.jsonl`;
without any flag it compares the simulator's three solvers on the bundled task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from cyclopts import Parameter
from cyclopts.validators import Number

from cli.formats import new_table, number, with_interval
from cli.search_settings import (
    LimitedCallFlags,
    SearchConfig,
    load_task,
    located_function,
    prompt_fingerprints,
    read_prompt_file,
    task_fingerprint,
)
from cli.searching import CallOutcomes, Found, Search, SearchRecorder, open_session
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from ollama_utils.errors import BadReplyError, BadRequestError, ModelMissingError, ServerFaultError
from ollama_utils.on_ray import EngineConfig, Failure, join_ray, run_on_ray, task_log
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, short_name, think_of
from records.errors import UserError, as_user_error
from records.interrupt import Interrupted, interruptible
from records.resume import file_fingerprints
from records.settings import Count, Share, absolute, comma_list
from records.terminal import one_line, write_stderr
from search.call_pool import CallPool
from search.selectors.registry import SELECTORS, make_selector, settings_of
from search.selectors.results import Evaluation, Prices
from search.selectors.selector import Evaluate, Request, Selector
from search.selectors.task_evaluation import TaskEvaluation
from search.selectors.user_evaluation import check_prices, read_prices
from search.task import SEED_INSTRUCTIONS, Task

if TYPE_CHECKING:
    from rich.table import Table

    from search.selectors.results import Round, SelectionResults
    from search.selectors.user_evaluation import WatchedEvaluation

FLAGS = ("seed", "delta", "epsilon", "threshold", "max_errors")
"""Settings of selectors that have flags of their own."""
SPARED = (BadReplyError, BadRequestError, ModelMissingError, ServerFaultError)
"""Failures that count against a model, and do not end the selection."""
SAYS = (
    "Score: the mean over n datapoints, an error counting as 0, with an interval that holds at any time, so "
    "also where the search stopped. Seconds and tokens, and price in the currency of --price, are of one "
    "datapoint. The one that is named, marked *, has the highest lower bound among those that the search did "
    "not rule out. Verdicts are of these datapoints, on which two combinations are compared one by one; "
    "intervals are of all datapoints there might be, so that of one that is ruled out may overlap the best's."
)
SOLVERS = ("sim-solver-small", "sim-solver", "sim-solver-large")
"""What is compared where no model is named and the embedded simulator stands in."""

_OPTION = re.compile(r"(?P<name>[A-Za-z_-]+)=(?P<value>\d*\.?\d+)")

Open = Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SelectConfig:
    """All settings of `mutagym select`. Defaults < --config FILE < flags."""

    models: Annotated[tuple[str, ...], comma_list()] = ()
    """Models to choose from, by comma [the target model; on the simulator its three solvers]."""
    prompts: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A file with a system prompt to choose from (repeatable) [a plain one, and no choice]."""
    mutators: Annotated[tuple[str, ...], comma_list()] = ()
    """Mutators to choose from, by comma, which reword the question first; `noop` does not [no choice]."""
    selector: str = "arm_elimination"
    """How is searched: brute_force, random, hill_climbing, arm_elimination, threshold, epsilon_lucb, bayesian
    or matrix_ucb."""
    evaluate: str | None = None
    """FILE.py:NAME, a plain function (combination, datapoint, ask) -> float from 0 to 1, or an Evaluation;
    a datapoint is then any line of the dataset. `ask(text)` puts a text to the combination's model under its
    prompt, or to those of `model=` and `system=`, and `ask(text).text` is the reply; a mutator is named by
    `combination["mutator"]`, and not applied [the scorer of the task]."""
    price: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """MODEL=IN:OUT (repeatable): what a million tokens cost, read and written [no price]."""
    max_concurrent: Count = 20
    """Calls under way at once, over all combinations and datapoints."""
    delta: Open = None
    """How often what the selector claims may be wrong [0.05]."""
    epsilon: Share | None = None
    """How much worse than the best the named one may be, for epsilon_lucb [0.01]."""
    threshold: Open = None
    """The score that a combination has to reach, for threshold [0.75]."""
    max_errors: Share | None = None
    """A combination that fails on more than this share of the datapoints is not named, with a chance of
    error of at most a fifth of --delta where not all of them were asked [0.1]."""
    option: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """NAME=NUMBER (repeatable): another option of the selector, as in n_initial=5; the error for one that it
    has not names those that it has."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    calls: LimitedCallFlags = field(default_factory=LimitedCallFlags)
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

    def options(self) -> dict[str, Any]:
        """The settings of the selector.

        Raises:
            UserError: an --option is not written so.
        """
        named = ("delta", "epsilon", "threshold", "max_errors")
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        return given | dict(map(_option, self.option))


def select(config: SelectConfig = SelectConfig()) -> None:
    """Select the best of all combinations of models, system prompts and mutators for a task.

    Every flag can stand in a TOML file: --config FILE; flags override it. On a real server name the models
    with --models.
    """
    config = config.located()
    config.search.check_places()
    if config.evaluate and config.search.scorer:
        raise UserError("--scorer and --evaluate cannot stand together: leave one of them out")
    prompts, prices = read_prompts(config.prompts), read_prices(config.price)
    config.options()  # checked before anything is called
    by_ray = config.engine.engine == "ray"
    if by_ray and config.search.rate_limit_per_minute:
        raise UserError("--rate-limit-per-minute is kept by one process; it cannot stand beside --engine ray")
    task = _task(config)
    with open_session(
        "select",
        config,
        simulated_target=SOLVERS[0],
        named_by="--models",
        may_change=("max-concurrent", "max-errors", "evaluate"),
    ) as session:
        connection = session.connection
        models = _models(config, connection)
        connection.check_pulled(models)
        session.keep_replies(connection.digests("", *models))
        check_prices(prices, _priced(config, models, connection))
        selection = _Selection(config, models, prompts, prices, task, connection)
        selector = selection.selector
        combinations, datapoints = len(selector.combinations), len(selector.datapoints)
        tasks = None
        if by_ray:
            session.stack.enter_context(join_ray(config.engine.ray_address))
            tasks = _RayTasks(config, models, prompts, connection, session.folder.path)
        dataset = (
            task_fingerprint(task)
            if task
            else file_fingerprints("dataset", filter(None, [config.search.task]))
        )
        found = session.run(
            Search(
                config=replace(config, models=models),
                says=f"{config.selector}, {combinations} combinations, {datapoints} datapoints",
                what="evaluations",
                total=combinations * datapoints,
                most_calls=None if config.evaluate else combinations * datapoints * _calls_each(config),
                width=config.max_concurrent,
                fingerprints=dataset | prompt_fingerprints({prompt.name: prompt for prompt in prompts}),
                first=selection.first,
                run=partial(selection.run, tasks=tasks),
                spared=SPARED,
                elsewhere=tasks.failures if tasks else tuple,
            )
        )
        seconds = found.spent["latency_s"]
        rows = [row | {"latency_s": seconds[str(row["index"])]} for row in found.results["combinations"]]
        for row in rows:
            del row["trail"]
        report = {**found.results, "combinations": rows}
        parts = [([table_of(report)], f"{report['claim']} {SAYS}")]
        session.report(report, parts, problems_of(report), found.failure)


def _task(config: SelectConfig) -> Task | None:
    """The task, whose scorer may be a user's; None where a user's function evaluates lines of a file."""
    return None if config.evaluate and config.search.task else load_task(config.search)


def _models(config: SelectConfig, connection: Connection) -> tuple[str, ...]:
    """What is chosen from; where none is named, the target, or the simulator's solvers."""
    if config.models:
        return config.models
    named = config.server.target_model
    return SOLVERS if connection.embedded and not named else (connection.roles.target,)


def _calls_each(config: SelectConfig) -> int:
    """Calls of an evaluation at most: a rewording where a model makes one, and the question."""
    return 1 + any(mutator.kind == "model" for mutator in load_mutators(config.mutators or ("noop",)))


def _priced(config: SelectConfig, models: Sequence[str], connection: Connection) -> tuple[str, ...]:
    """Whom a price may be of: a function of the user's may call any model."""
    if config.evaluate:
        return (*models, *connection.available)
    rewords = bool(config.mutators) and connection.roles.mutator
    return (*models, rewords) if rewords else tuple(models)


class _Selection:
    """A selection that is ready to begin.

    Raises:
        UserError: a choice, the evaluation or the selector cannot be made.
    """

    def __init__(
        self,
        config: SelectConfig,
        models: Sequence[str],
        prompts: Sequence[NamedPrompt],
        prices: Prices,
        task: Task | None,
        connection: Connection,
    ) -> None:
        from search.selectors.user_evaluation import UserEvaluation, WatchedEvaluation, read_lines

        evaluate: Evaluate
        self._config, self._prices, self._task = config, prices, task
        self.first: list[Call] = []
        """One question to each model, as the selection asks it; none of a user's own evaluation."""
        self._pool = CallPool(connection.dispatcher, config.max_concurrent)
        self._names = dict(zip(connection.dispatcher.hosts, connection.servers, strict=True))
        search, choices = config.search, make_choices(models, prompts, config.mutators)
        dataset: Sequence[Any]
        if config.evaluate:
            evaluate = UserEvaluation(
                config.evaluate,
                self._pool,
                prices,
                search.seed,
                options=config.calls.options,
                think=think_of(config.calls.think),
            )
            if search.task:
                dataset = read_lines(Path(search.task))
            else:
                dataset = [asdict(problem) for problem in (task or load_task(search)).problems]
        else:
            task = task or load_task(search)
            evaluate = on_task = TaskEvaluation(
                self._pool,
                task,
                prices,
                prompt=SEED_INSTRUCTIONS,
                mutator_model=connection.roles.mutator,
                options=config.calls.options,
                think=think_of(config.calls.think),
                seed=search.seed,
            )
            with as_user_error(ValueError):
                on_task.check(choices)
            prompt = choices.get("prompt", [SEED_INSTRUCTIONS])[0]
            self.first = [on_task.question(task.problems[0], model, prompt) for model in models]
            dataset = list(task.problems)
        self._watched: WatchedEvaluation = WatchedEvaluation(evaluate, config.evaluate)
        options = {"seed": search.seed, **config.options()}
        self.selector = make(config.selector, choices, dataset, self._watched, options)

    def evaluate(self, number: int, places: Sequence[int]) -> list[Evaluation | float | Failure]:
        """What a combination does at these datapoints.

        Raises:
            Exception: what ends the search, see `WatchedEvaluation`.
        """
        selector = self.selector
        self._watch()

        def outcome(place: int) -> Evaluation | float | Failure:
            try:
                return self._watched(selector.combinations[number], selector.datapoints[place])
            except Exception as error:  # noqa: BLE001 - it counts as an error of the combination
                self._watched.check()
                return Failure(error)

        with closing(iterate_parallel(outcome, places, self._pool.callers)) as outcomes:
            return list(outcomes)

    def _watch(self) -> None:
        """Have the first evaluations decide whether a user's function works."""
        selector = self.selector
        cells = ((number, place) for number, places in selector.ask() for place in places)
        self._watched.watch((selector.combinations[n], selector.datapoints[k]) for n, k in cells)

    def run(self, recorder: SearchRecorder, tasks: _RayTasks | None = None) -> Found:
        """Select, and record each round; on Ray where there are tasks."""
        from search.selectors.results import NoWinnerError, interval_trail

        selector, done = self.selector, 0

        def evaluated() -> None:
            nonlocal done
            self._watched.check()
            done += 1
            recorder.advance(done)

        def record_round(played: Round) -> None:
            best = _best(selector, played)
            metrics = {
                "select/best": best,
                "select/survivors": len(played.survivors),
                "select/evaluations": played.evaluations_so_far,
                "select/errors": played.errors,
            }
            recorder.record(played.number, metrics, done=done, best=best)

        def tick() -> None:
            recorder.advance(done)

        self._watch()
        try:
            if tasks:
                while asked := selector.ask():
                    played = selector.tell(tasks.evaluate(asked, tick))
                    done += played.evaluations
                    record_round(played)
                found = selector.results()
            else:
                found = selector.select_best(
                    parallel=True,
                    max_concurrent=self._pool.max_concurrent,
                    max_begun=self._pool.callers,
                    on_round=record_round,
                    on_evaluation=evaluated,
                )
            best, failure = f"best {found.best.score:.3f}: {found.best.combination.label}", ""
        except NoWinnerError as error:
            found, best = error.results, "none can be named"
            failure = (
                f"{selector.no_winner_reason()}: mend that, or go on with --resume and a larger --max-errors"
            )
        write_stderr(f"evaluations: {done} made, {one_line(best)}")
        results, spent = split_results(found, self._names, self._prices)
        for row in results["combinations"]:
            row["trail"] = interval_trail(selector.cells, selector.delta, row["index"])
        search = self._config.search
        dataset = self._task.name if self._task else Path(search.task or "").stem
        named = {"selector": self._config.selector, "seed": search.seed, "dataset": dataset}
        return Found(results=named | results, spent=spent, failure=failure)


class _RayTasks:
    """Evaluates the requests of a round as Ray tasks; this process has joined a cluster.

    Args:
        config: the selection's.
        models: what is chosen from.
        prompts: likewise.
        connection: to the servers, which are dealt out among the tasks.
        folder: the run folder, on storage that all machines share.
    """

    def __init__(
        self,
        config: SelectConfig,
        models: Sequence[str],
        prompts: Sequence[NamedPrompt],
        connection: Connection,
        folder: Path,
    ) -> None:
        self._job = partial(
            evaluate_arm,
            config=replace(config, server=connection.for_jobs(config.server)),
            models=models,
            prompts=prompts,
            folder=folder.absolute(),
        )
        self._hosts = connection.dispatcher.hosts
        self._failures: list[str] = []

    def evaluate(self, asked: Sequence[Request], tick: Callable[[], None]) -> list[list[Any]]:
        """The outcomes of each request, as `Selector.tell` takes them."""
        rows = []
        with closing(run_on_ray(self._job, asked, self._hosts, tick)) as results:
            for outcomes, failures in results:
                self._failures += failures
                rows.append([each.error() if isinstance(each, Failure) else each for each in outcomes])
        return rows

    def failures(self) -> list[str]:
        """Why calls failed, as `CallOutcomes.read` says it; those since it was asked last."""
        found, self._failures = self._failures, []
        return found


def evaluate_arm(
    hosts: tuple[str, ...],
    request: Request,
    *,
    config: SelectConfig,
    models: Sequence[str],
    prompts: Sequence[NamedPrompt],
    folder: Path,
) -> tuple[list[Evaluation | float | Failure], list[str]]:
    """A job: evaluate a combination at some datapoints, on a connection of its own.

    Args:
        hosts: those that are dealt to it.
        request: the combination and the places of the datapoints.
        config: the selection's, the server as the driver found it.
        models: what is chosen from.
        prompts: likewise.
        folder: the run folder.

    Returns:
        The outcome at each datapoint, and why calls failed, as `CallOutcomes.read` says it.

    Raises:
        UserError: a file that the config names cannot be used on this machine.
        Exception: what ends the search.
    """
    number, places = request
    server = connect(config.server, at=hosts, simulated_target=SOLVERS[0])
    with interruptible(), server as connection, ExitStack() as stack:
        digests = connection.digests("", *models)
        replies = stack.enter_context(ReplyLog(task_log(folder, number), digests=digests))
        keep_replies(replies, config.search.cache, connection, digests, stack)
        prices = read_prices(config.price)
        selection = _Selection(config, models, prompts, prices, _task(config), connection)
        calls = CallOutcomes(replies, connection.dispatcher, SPARED)
        try:
            return selection.evaluate(number, places), calls.read()
        except (Interrupted, Exception):
            connection.dispatcher.cancel()
            raise


def _best(selector: Selector, played: Round) -> float | None:
    """The score of the one that is named after the last round, before it the best so far."""
    if not selector.ask():
        named = selector.named()
        return None if named is None else selector.cells.mean(named)
    fit, means = selector.fit_ones, selector.cells.means()
    return max((float(means[number]) for number in played.survivors if fit[number]), default=None)


def _option(text: str) -> tuple[str, float]:
    """The name and the value of an --option.

    Raises:
        UserError: it is not written so, or has a flag of its own.
    """
    if not (parts := _OPTION.fullmatch(text)):
        raise UserError(f"--option is {text!r}; expected NAME=NUMBER, as in n_initial=5")
    name, value = parts["name"].replace("-", "_"), parts["value"]
    if name in FLAGS:
        raise UserError(f"--option {text} has a flag of its own: write --{name.replace('_', '-')} {value}")
    return name, int(value) if value.isdecimal() else float(value)


def table_of(report: Mapping[str, Any]) -> Table:
    """The combinations, the one that is named first."""
    rows = report["combinations"]
    names = list(rows[0]["combination"])
    title = (
        f"{report['selector']} on {report['dataset']}: {report['evaluations']} evaluations, "
        f"{100 * report['savings']:.0f} % less than brute force"
    )
    prices = ("price",) if any(row["price"] is not None for row in rows) else ()
    numbers = ("score", "seconds", "tokens", *prices, "n", "errors")
    table = new_table(title, "", *names, "verdict", *numbers, names=2 + len(names))
    for row in rows:
        seen = row["datapoints"]
        table.add_row(
            "*" if row["is_best"] else "",
            *row["combination"].values(),
            row["verdict"],
            with_interval(row, "score", "{:.3f}"),
            number(row["latency_s"] if seen else None, "{:.2f}"),
            number(row["prompt_tokens"] + row["completion_tokens"] if seen else None, "{:.0f}"),
            *[number(row[price] if seen else None, "{:.6f}") for price in prices],
            str(seen),
            str(row["errors"]),
        )
    return table


def problems_of(report: Mapping[str, Any]) -> list[str]:
    """What went wrong, a line for each combination."""
    return [
        f"errors: {' '.join(map(str, row['combination'].values()))}: {row['errors']} of {row['datapoints']}, "
        f"first {row['first_error']}"
        for row in report["combinations"]
        if row["errors"]
    ]


class NamedPrompt(str):
    """A system prompt that tables call by the name of its file."""

    __slots__ = ("name",)

    def __new__(cls, name: str, text: str) -> Self:
        """The text, with a name."""
        made = super().__new__(cls, text)
        made.name = name
        return made

    name: str

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """How it is pickled."""
        return type(self), (self.name, str(self))


def read_prompts(paths: Sequence[str]) -> list[NamedPrompt]:
    """The prompts of files, called by these files' names; by their paths where names are equal.

    Raises:
        UserError: one cannot be read, or two are equal.
    """
    stems = [Path(path).stem for path in paths]
    names = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)]
    prompts: list[NamedPrompt] = []
    for name, path in zip(names, paths, strict=True):
        prompt = NamedPrompt(name, read_prompt_file(Path(path), "--prompts"))
        if equal := [other.name for other in prompts if other == prompt]:
            raise UserError(f"--prompts {name} and {equal[0]} are the same text: name each prompt once")
        prompts.append(prompt)
    return prompts


def make_choices(
    models: Sequence[str], prompts: Sequence[NamedPrompt], mutators: Sequence[str]
) -> dict[str, list[Any]]:
    """What is chosen from, by name; what there is no choice of is not among them, but for the model.

    Raises:
        UserError: a choice is named twice, or a mutator is not there.
    """
    for flag, several in (("--models", models), ("--mutators", mutators)):
        for choice in several:
            if list(several).count(choice) > 1:
                raise UserError(f"{flag} names {choice!r} twice; name each choice once")
    with as_user_error(ValueError):
        load_mutators(mutators or ("noop",))
    choices: dict[str, list[Any]] = {"model": list(models)}
    if prompts:
        choices["prompt"] = list(prompts)
    if mutators:
        choices["mutator"] = list(mutators)
    return choices


def make(
    name: str,
    choices: Mapping[str, Sequence[Any]],
    dataset: Sequence[Any],
    evaluate: Evaluate,
    settings: Mapping[str, Any],
) -> Selector:
    """The selector of this name.

    Raises:
        UserError: there is none, it has no such settings, cannot be made with them, or has no choice.
    """
    _check_settings(name, settings)
    with as_user_error(TypeError, ValueError):
        selector = make_selector(name, choices, dataset, evaluate, **settings)
    if len(selector.combinations) == 1 and name != "brute_force":
        raise UserError(
            f"{selector.combinations[0].label} alone is no choice: name several --models, --prompts or "
            "--mutators, or score it on every datapoint with --selector brute_force"
        )
    return selector


def _check_settings(name: str, settings: Mapping[str, Any]) -> None:
    known = settings_of(name) if name in SELECTORS else settings
    for setting in settings:
        if setting in known:
            continue
        if setting in FLAGS:
            raise UserError(f"the selector {name} has no setting {setting!r}: leave --{setting} out")
        own = [option for option in known if option not in FLAGS]
        accepted = f"there are {', '.join(own)}" if own else "there is none"
        raise UserError(f"the selector {name} has no --option {setting!r}; {accepted}")


def split_results(
    found: SelectionResults, names: Mapping[str, str], prices: Prices
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results, and apart from them what a resumed run finds otherwise: seconds, how slots were shared.

    Args:
        found: the results.
        names: what stands in errors for a server's address, which may be another one each time.
        prices: by model; where a model has none, and nothing else was paid, the price is None.
    """
    results = found.to_dict()
    priced = set(map(short_name, prices))
    for scored, row in zip(found.rows, results["combinations"], strict=True):
        if short_name(scored.combination["model"]) not in priced:
            row["price"] = row["price"] or None
        for address, name in names.items():
            row["first_error"] = row["first_error"] and row["first_error"].replace(address, name)
    latencies = {str(row["index"]): row.pop("latency_s") for row in results["combinations"]}
    plans = [list(each.plan) if each.plan else None for each in found.rounds]
    return results, {"latency_s": latencies, "plans": plans}
