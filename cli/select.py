"""Select the best combination of models, system prompts and mutators for a task, in few calls.

Run it with `mutagym select --models llama3.2,qwen3 --prompts short.txt --task mine.jsonl`; without
any flag it compares the simulator's three solvers on the bundled task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from ollama_utils.errors import (
    ENDS_THE_RUN,
    BadReplyError,
    BadRequestError,
    ModelMissingError,
    ServerFaultError,
)
from ollama_utils.on_ray import EngineConfig, Failure, join_ray, run_on_ray, task_log
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call, short_name, think_of
from records.errors import UserError, as_user_error, nearest
from records.interrupt import Interrupted, interruptible
from records.resume import file_fingerprints
from records.settings import Count, Share, absolute, comma_list
from records.terminal import one_line, write_stderr
from search.evaluate import OwnError, Prices, TaskEvaluation, load_evaluation, read_prices
from search.select import (
    Evaluate,
    NoWinnerError,
    SelectionResults,
    Selector,
    check_settings,
    label_of,
    make_selector,
)
from search.strategies import Cell, Outcome
from search.task import SEED_INSTRUCTIONS, ScorerError

if TYPE_CHECKING:
    from rich.table import Table

FLAGS = ("seed", "delta", "epsilon", "threshold", "max_errors")
"""Settings of selectors that have flags of their own."""
SPARED = (BadReplyError, BadRequestError, ModelMissingError, ServerFaultError)
"""Failures that count against a model, and do not end the selection."""
SAYS = (
    "Score: the mean over n datapoints, an error counting as 0, with an interval for the mean over "
    "all datapoints that there might be. The intervals hold all together, so that of the named "
    "combination, marked *, does, too. Seconds, tokens, and price (as of --price) are of "
    "one datapoint. Verdicts are of these datapoints, on which combinations are compared one by "
    "one: the interval of one that is ruled out may overlap the best's."
)
SOLVERS = ("sim-solver-small", "sim-solver", "sim-solver-large")
"""What is compared where no model is named and the embedded simulator stands in."""
FIRST = 3
"""Where so many evaluations fail that come first, the user's function is at fault."""
OPTION = re.compile(r"(?P<name>[A-Za-z_-]+)=(?P<value>\d*\.?\d+)")

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
    """Mutators to choose from, by comma, which reword the question first; `noop` does not
    [no choice]."""
    selector: str = "arm_elimination"
    """How is searched: brute_force, random, hill_climbing, arm_elimination, threshold,
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
    """How much worse than the best the named one may be, for epsilon_lucb [0.01]."""
    threshold: Open = None
    """The score that a combination has to reach, for threshold [0.75]."""
    max_errors: Share | None = None
    """A combination that fails on more than this share of the datapoints is not named [0.1]."""
    option: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """NAME=NUMBER (repeatable): another option of the selector, as in n_initial=5; the error for
    one that it has not names those that it has."""
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

    def settings(self) -> dict[str, Any]:
        """The settings of the selector, checked.

        Raises:
            UserError: one is not written so, not the selector's, or out of range.
        """
        settings: dict[str, Any] = {"seed": self.search.seed}
        for name in FLAGS[1:]:
            if getattr(self, name) is not None:
                settings[name] = getattr(self, name)
        for text in self.option:
            if not (parts := OPTION.fullmatch(text)):
                raise UserError(f"--option is {text!r}; expected NAME=NUMBER, as in n_initial=5")
            name, value = parts["name"].replace("-", "_"), parts["value"]
            if name in FLAGS:
                flag = f"--{name.replace('_', '-')} {value}"
                raise UserError(f"--option {text} has a flag of its own: write {flag}")
            settings[name] = int(value) if value.isdecimal() else float(value)
        with as_user_error(ValueError):
            check_settings(self.selector, settings)
        return settings


def select(config: SelectConfig = SelectConfig()) -> None:
    """Select the best of all combinations of models, system prompts and mutators for a task.

    Every flag can stand in a TOML file: --config FILE; flags override it. On a real server name the
    models with --models.
    """
    config = config.located()
    config.search.check_places()
    if config.evaluate and config.search.scorer:
        raise UserError("--scorer and --evaluate cannot stand together: leave one of them out")
    prompts, prices = read_prompts(config.prompts), read_prices(config.price)
    config.settings()
    by_ray = config.engine.engine == "ray"
    if by_ray and config.search.rate_limit_per_minute:
        raise UserError("--rate-limit-per-minute is kept by one process; it cannot stand beside --engine ray")
    name, _, fingerprints = _dataset(config)
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
        _check_prices(config, prices, models, connection)
        selection = Selection(config, models, prompts, connection)
        failures: list[str] = []
        evaluate: Callable[[Sequence[Cell], Tick], Generator[Outcome, None, None]]
        evaluate = selection.evaluate
        if by_ray:
            session.stack.enter_context(join_ray(config.engine.ray_address))
            job = partial(
                evaluate_arm,
                config=replace(config, server=connection.for_jobs(config.server)),
                models=models,
                prompts=prompts,
                folder=session.folder.path.absolute(),
            )
            evaluate = partial(_evaluate_on_ray, job, connection.dispatcher.hosts, failures)

        def run(recorder: SearchRecorder) -> Found:
            found, failure = _run(selection.selector, evaluate, recorder, config.evaluate)
            results, latencies = _results(selection.selector, found, connection, prices)
            named = {"selector": config.selector, "seed": config.search.seed, "dataset": name}
            spent = {"latency_s": latencies}
            return Found(results=named | results, spent=spent, failure=failure)

        def read_failures() -> list[str]:
            found = failures.copy()
            del failures[: len(found)]
            return found

        cells = selection.selector.table.scores
        rewords = max(each.calls for each in load_mutators(config.mutators or ("noop",)))
        combinations, datapoints = cells.shape
        found = session.run(
            Search(
                config=replace(config, models=models),
                says=f"{config.selector}, {combinations} combinations, {datapoints} datapoints",
                what="evaluations",
                total=cells.size,
                most_calls=None if config.evaluate else cells.size * (1 + rewords),
                width=config.max_concurrent,
                fingerprints=fingerprints | prompt_fingerprints(prompts),
                first=selection.first,
                run=run,
                spared=SPARED,
                elsewhere=read_failures,
            )
        )
        rows = [
            {**row, "latency_s": found.spent["latency_s"][str(row["index"])]}
            for row in found.results["combinations"]
        ]
        for row in rows:
            del row["trail"]
        report = {**found.results, "combinations": rows}
        parts = [([table_of(report)], f"{report['claim']} {SAYS}")]
        session.report(report, parts, problems_of(report), found.failure)


Tick = Callable[[int], None]
"""Is called now and then with how many evaluations of a round are done."""


def _dataset(config: SelectConfig) -> tuple[str, Sequence[Any], dict[str, str]]:
    """The name of the dataset, its datapoints, and what identifies it."""
    search = config.search
    if not config.evaluate or not search.task:
        task = load_task(search)
        rows = [asdict(problem) for problem in task.problems] if config.evaluate else task.problems
        return task.name, rows, task_fingerprint(task)
    from envs.query_files import read_table

    table = read_table(Path(search.task))
    rows = [dict(cells) for _, cells in table.rows(table.columns)]
    return Path(search.task).stem, rows, file_fingerprints("dataset", [search.task])


def _models(config: SelectConfig, connection: Connection) -> tuple[str, ...]:
    """What is chosen from; where none is named, the target, or the simulator's solvers."""
    if config.models:
        return config.models
    named = config.server.target_model
    return SOLVERS if connection.embedded and not named else (connection.roles.target,)


def _check_prices(
    config: SelectConfig, prices: Prices, models: Sequence[str], connection: Connection
) -> None:
    """Check that every price is of a model that may be called; a user's function may call any.

    Raises:
        UserError: one is not.
    """
    others: Iterable[str] = connection.available if config.evaluate else ()
    if config.mutators and connection.roles.mutator and not config.evaluate:
        others = (connection.roles.mutator,)
    asked = list(dict.fromkeys(map(short_name, [*models, *others])))
    for model in prices:
        if short_name(model) not in asked:
            hint = nearest(model, asked)
            raise UserError(f"--price names {model!r}, which is not asked here; {hint}")


class Selection:
    """A selection that is ready to begin.

    Args:
        config: the selection's.
        models: what is chosen from.
        prompts: likewise, texts by their names.
        connection: to the servers.

    Raises:
        UserError: a choice, the evaluation or the selector cannot be made.
    """

    def __init__(
        self,
        config: SelectConfig,
        models: Sequence[str],
        prompts: Mapping[str, str],
        connection: Connection,
    ) -> None:
        search, dispatcher = config.search, connection.dispatcher
        self._max_concurrent = config.max_concurrent
        generate = partial(dispatcher.generate, cap=dispatcher.new_cap(config.max_concurrent))
        every: dict[str, Any] = {
            "prices": read_prices(config.price),
            "prompts": prompts,
            "options": config.calls.options,
            "think": think_of(config.calls.think),
            "seed": search.seed,
        }
        of_each = {"model": models, "prompt": tuple(prompts), "mutator": config.mutators}
        choices = {name: several for name, several in of_each.items() if several}
        self.first: list[Call] = []
        """One question to each model, as the selection asks it; none of a user's own evaluation."""
        evaluate: Evaluate
        _, datapoints, _ = _dataset(config)
        with as_user_error(ValueError):
            load_mutators(config.mutators or ("noop",))
            if config.evaluate:
                evaluate = load_evaluation(config.evaluate, generate, **every)
            else:
                task, rewords = load_task(search), connection.roles.mutator
                on_task = TaskEvaluation(generate=generate, task=task, mutator_model=rewords, **every)
                on_task.check(choices)
                prompt = next(iter(prompts), SEED_INSTRUCTIONS)
                self.first = [on_task.question(task.problems[0], each, prompt) for each in models]
                evaluate = on_task
            settings = config.settings()
            self.selector = make_selector(config.selector, choices, datapoints, evaluate, **settings)
        if len(self.selector.combinations) == 1 and config.selector != "brute_force":
            raise UserError(
                f"{label_of(self.selector.combinations[0])} alone is no choice: name several "
                "--models, --prompts or --mutators, or score it on every datapoint with "
                "--selector brute_force"
            )

    def evaluate(self, cells: Sequence[Cell], tick: Tick) -> Generator[Outcome, None, None]:
        """What comes of each cell, in their order; exceptions in place of scores.

        Raises:
            Exception: what no combination is to blame for.
        """
        return iterate_parallel(self._outcome, cells, self._max_concurrent, tick)

    def _outcome(self, cell: Cell) -> Outcome:
        outcome = self.selector.outcome(cell)
        if isinstance(outcome, (*ENDS_THE_RUN, ScorerError)):
            raise outcome
        return outcome


def _run(
    selector: Selector,
    evaluate: Callable[[Sequence[Cell], Tick], Generator[Outcome, None, None]],
    recorder: SearchRecorder,
    own: str | None,
) -> tuple[SelectionResults, str]:
    """Select, and record each round; what was found, and why nobody can be named."""
    done = 0
    while cells := selector.ask():
        outcomes: list[Outcome] = []
        before = done
        with closing(evaluate(cells, lambda count: recorder.advance(before + count))) as found:  # noqa: B023 - called within the round
            for outcome in found:
                outcomes.append(outcome)
                if not before and len(outcomes) == min(FIRST, len(cells)):
                    _check_function(own, outcomes)
        played = selector.tell(outcomes)
        done = played.evaluations
        metrics = {
            "select/best": played.best,
            "select/survivors": played.survivors,
            "select/evaluations": played.evaluations,
            "select/errors": played.errors,
        }
        recorder.record(played.number, metrics, done=done, best=played.best)
    try:
        results, failure = selector.results(), ""
        says = f"best {results.best.score:.3f}: {label_of(results.best.combination)}"
    except NoWinnerError as error:
        results, says = error.results, "none can be named"
        failure = f"{error}: mend that, or go on with --resume and a larger --max-errors"
    write_stderr(f"evaluations: {done} made, {one_line(says)}")
    return results, failure


def _check_function(own: str | None, outcomes: Sequence[Outcome]) -> None:
    """Check that a user's function works anywhere, after the first evaluations.

    Raises:
        ScorerError: it does not.
    """
    if all(isinstance(outcome, OwnError) for outcome in outcomes):
        raise ScorerError(
            f"--evaluate {own!r} failed wherever it was tried first: {outcomes[0]}; expected 0 to "
            "1, and 0 for a bad reply"
        )


def _evaluate_on_ray(
    job: Callable[[tuple[str, ...], tuple[int, list[int]]], tuple[list[Any], list[str]]],
    hosts: Sequence[str],
    failures: list[str],
    cells: Sequence[Cell],
    tick: Tick,
) -> Generator[Outcome, None, None]:
    """As `Selection.evaluate`, an arm a Ray task; why calls failed there is added to `failures`."""
    arms: dict[int, list[int]] = {}
    for arm, place in cells:
        arms.setdefault(arm, []).append(place)
    outcomes: dict[Cell, Outcome] = {}
    requests = list(arms.items())
    with closing(run_on_ray(job, requests, hosts, lambda: tick(len(outcomes)))) as results:
        for (arm, places), (found, failed) in zip(requests, results, strict=True):
            failures += failed
            for place, outcome in zip(places, found, strict=True):
                is_failure = isinstance(outcome, Failure)
                outcomes[arm, place] = outcome.error() if is_failure else outcome
    yield from (outcomes[cell] for cell in cells)


def evaluate_arm(
    hosts: tuple[str, ...],
    request: tuple[int, list[int]],
    *,
    config: SelectConfig,
    models: Sequence[str],
    prompts: Mapping[str, str],
    folder: Path,
) -> tuple[list[Any], list[str]]:
    """A job: evaluate a combination at some datapoints, on a connection of its own.

    Args:
        hosts: those that are dealt to it.
        request: the number of the combination, and the places of the datapoints.
        config: the selection's, the server as the driver found it.
        models: what is chosen from.
        prompts: likewise.
        folder: the run folder, on storage that all machines share.

    Returns:
        The outcome at each datapoint, and why calls failed, as `CallOutcomes.read` says it.

    Raises:
        UserError: a file that the config names cannot be used on this machine.
        Exception: what no combination is to blame for.
    """
    arm, places = request
    server = connect(config.server, at=hosts, simulated_target=SOLVERS[0])
    with interruptible(), server as connection, ExitStack() as stack:
        digests = connection.digests("", *models)
        replies = stack.enter_context(ReplyLog(task_log(folder, arm), digests=digests))
        keep_replies(replies, config.search.cache, connection, digests, stack)
        selection = Selection(config, models, prompts, connection)
        calls = CallOutcomes(replies, connection.dispatcher, SPARED)
        try:
            cells = [(arm, place) for place in places]
            with closing(selection.evaluate(cells, lambda _done: None)) as outcomes:
                found = [Failure(each) if isinstance(each, Exception) else each for each in outcomes]
        except (Interrupted, Exception):
            connection.dispatcher.cancel()
            raise
        return found, calls.read()


def _results(
    selector: Selector, found: SelectionResults, connection: Connection, prices: Prices
) -> tuple[dict[str, Any], dict[str, float]]:
    """The results, and apart from them the seconds, which a resumed run may find otherwise.

    A model that has no price, and that paid for no other, has the price None.
    """
    results = found.to_dict()
    priced = set(map(short_name, prices))
    latencies = {}
    table = selector.table
    doubling = [2**k for k in range((table.size - 1).bit_length())]
    ends = {count: selector.intervals(count) for count in [*doubling, table.size]}
    for row in results["combinations"]:
        arm, count = row["index"], row["datapoints"]
        latencies[str(arm)] = row.pop("latency_s")
        # How the interval narrowed: [datapoints, mean, low, high] after 1, 2, 4, ... and all.
        seen = table.seen(arm)
        trail = {min(end, count): [float(seen[:end].mean()), *ends[end][arm]] for end in ends if count}
        row["trail"] = [[end, *values] for end, values in trail.items()]
        if short_name(selector.combinations[arm]["model"]) not in priced:
            row["price"] = row["price"] or None
        # A server's address may be another one each time.
        for address, name in zip(connection.dispatcher.hosts, connection.servers, strict=True):
            row["first_error"] = row["first_error"] and row["first_error"].replace(address, name)
    return results, latencies


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
        tokens = row["prompt_tokens"] + row["completion_tokens"]
        table.add_row(
            "*" if row["is_best"] else "",
            *row["combination"].values(),
            row["verdict"],
            with_interval(row, "score", "{:.3f}"),
            number(row["latency_s"] if seen else None, "{:.2f}"),
            number(tokens if seen else None, "{:.0f}"),
            *[number(row[price] if seen else None, "{:.6f}") for price in prices],
            str(seen),
            str(row["errors"]),
        )
    return table


def problems_of(report: Mapping[str, Any]) -> list[str]:
    """What went wrong, a line for each combination."""
    return [
        f"errors: {' '.join(map(str, row['combination'].values()))}: {row['errors']} of "
        f"{row['datapoints']}, first {row['first_error']}"
        for row in report["combinations"]
        if row["errors"]
    ]


def read_prompts(paths: Sequence[str]) -> dict[str, str]:
    """The prompts of files, by these files' names; by their paths where names are equal.

    Raises:
        UserError: one cannot be read, or two are equal.
    """
    stems = [Path(path).stem for path in paths]
    prompts: dict[str, str] = {}
    for stem, path in zip(stems, paths, strict=True):
        name = stem if stems.count(stem) == 1 else path
        text = read_prompt_file(Path(path), "--prompts")
        if equal := [other for other, known in prompts.items() if known == text]:
            raise UserError(f"--prompts {name} and {equal[0]} are the same text: name each prompt once")
        prompts[name] = text
    return prompts
