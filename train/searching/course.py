"""The course of every command that searches: servers, folder, log of replies, the search, its report."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ollama_utils.errors import OllamaError
from search.call_pool import callers_for
from search.task_scorers import ScorerError
from train.errors import RunStoppedError, UserError
from train.findings import Findings
from train.interrupt import Interrupt, Interrupted, interruptible
from train.reply_logs import DRAIN_S, keep_replies
from train.resume import check_options, check_parts
from train.run_folder import RunFolder, new_run_path
from train.searching.background import Background
from train.searching.config import MAY_CHANGE, Told
from train.searching.failing import FailedLimit
from train.searching.progress import SearchProgress
from train.searching.recorder import Recorder
from train.server import Connection, connect
from train.settings import resolved
from train.tables import as_json, as_yaml, print_parts
from train.transitions import account_totals

if TYPE_CHECKING:
    from rich.table import Table

_LOOK_S = 1.0
"""Seconds between two looks at what is known of the servers' slots."""
Parts = Iterable[tuple[Sequence["Table"], str]]
"""Tables of one kind, with the sentence that explains them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a search."""

    results: Mapping[str, Any]
    """Equal for equal seeds and replies: no times, nothing that depends on how often it was resumed; the
    report is made of it. `simulated` is added."""
    spent: Mapping[str, Any] = field(default_factory=dict)
    """What may differ."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that are written into the folder, by the files' names."""
    failure: str = ""
    """Why it did not come to what it was for, although it went through; told after the report."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search that is ready to begin."""

    config: Told
    """As it is resolved: `--config` reads it back."""
    says: str
    """What it is, in a few words."""
    what: str
    """What its progress is counted in, as in "generations"."""
    total: int
    """How many of these there are at most."""
    calls_each: int = 0
    """Calls that one of these takes at most, told where it takes long; 0 tells of none."""
    width: int
    """Calls side by side at most."""
    prints: Mapping[str, str]
    """What stands for the parts that a config only names, by their names."""
    run: Callable[[Recorder], Outcome]
    spared: Sequence[type[OllamaError]] = ()
    """Failures of a call that the search itself takes into account: they do not end it."""


class Command(Protocol):
    """What a command adds to the course that all searches take."""

    name: str
    simulated_target: str
    """The target where none is named and the embedded simulator stands in."""
    named_by: str
    """The flag that names the target."""
    may_change: tuple[str, ...]
    """Options of its own that a resumed search may be told anew."""

    @property
    def config(self) -> Told:
        """What it was told."""
        ...

    def digests(self, connection: Connection) -> Mapping[str, str]:
        """What stands for the weights of each model that it asks.

        Raises:
            UserError: a model is not pulled.
        """
        ...

    def search(self, connection: Connection) -> Search:
        """The search; replies are kept by now.

        Raises:
            UserError: it cannot be made.
        """
        ...

    def report(self, results: Mapping[str, Any], spent: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of the results, and of the times that go with them, as plain data."""
        ...

    def tables(self, report: Mapping[str, Any]) -> tuple[Parts, Iterable[str]]:
        """The report for people, and the lines that come last."""
        ...


def carry_out(command: Command) -> None:
    """Run a command that searches.

    Raises:
        UserError: it cannot begin.
        RunStoppedError: it stopped itself, saved.
        Interrupted: a signal stopped it, saved.
    """
    told, stdout = command.config.search, sys.stdout
    if told.resume:
        may_change = (*MAY_CHANGE, *command.may_change)
        check_options(command.config, told.resume, may_change, run_dir=told.run_dir)
    server = connect(
        command.config.server, simulated_target=command.simulated_target, named_by=command.named_by
    )
    with interruptible() as interrupt, server as connection, ExitStack() as stack:
        stack.enter_context(
            redirect_stdout(sys.stderr)
        )  # a user's functions may print; stdout is the report's
        path = told.resume or told.run_dir or new_run_path(command.name, told.seed)
        folder = stack.enter_context(RunFolder(path, resume=told.resume is not None))
        digests = command.digests(connection)
        keep_replies(folder, told.cache, connection, digests, stack)
        stack.enter_context(_logged(folder))
        search = command.search(connection)
        interrupt.allow(allowed=False)  # until it can be said how to go on
        _begin(search, digests, folder)
        outcome = _run(command.name, search, folder, connection, interrupt)
        with redirect_stdout(stdout):
            _report(command, outcome, folder)
        if outcome.failure:
            raise RunStoppedError(outcome.failure)


@contextmanager
def _logged(folder: RunFolder) -> Iterator[None]:
    """What the search logs goes to log.txt, which is made when there is something."""
    handler = logging.FileHandler(folder.path / "log.txt", encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("search")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def _begin(search: Search, digests: Mapping[str, str], folder: RunFolder) -> None:
    """Write down what the search is, config.toml first; a resumed one must be the same."""
    prints = {f"model {name}": digest for name, digest in digests.items()} | dict(search.prints)
    if search.config.search.resume and (folder.path / "parts.json").exists():  # killed before: nothing asked
        check_parts(prints, folder)
    folder.write_toml("config.toml", resolved(search.config))
    folder.write_json("parts.json", prints)
    print(f"run folder {folder.path}: {search.says}", file=sys.stderr)


def _run(
    name: str, search: Search, folder: RunFolder, connection: Connection, interrupt: Interrupt
) -> Outcome:
    """Search, and keep the results; whatever ends it, what was answered is kept.

    The counts in summary.json are of this process, and below `whole_run` of those before it, too.
    """
    began_s = time.monotonic()
    try:
        interrupt.allow(allowed=True)
        outcome = _searched(search, folder, connection, interrupt)
        interrupt.allow(allowed=False)  # what came of it is written whole
    except (Interrupted, Exception) as error:
        print(f"to go on: mutagym {name} --resume {folder.path}", file=sys.stderr)
        raise UserError(str(error)) if isinstance(error, ScorerError) else folder.reported(error) from error
    spent = {
        "wall_s": round(time.monotonic() - began_s, 3),
        **account_totals(connection.dispatcher),
        "whole_run": asdict(folder.replies.totals()),
        **outcome.spent,
    }
    results = {"simulated": connection.simulated, **outcome.results}
    return _kept(replace(outcome, results=results, spent=spent), folder)


def _searched(search: Search, folder: RunFolder, connection: Connection, interrupt: Interrupt) -> Outcome:
    """What comes of the search, which is shown, recorded, and ended when its calls keep failing."""
    dispatcher, told = connection.dispatcher, search.config.search
    if told.rate_limit_per_minute:
        dispatcher.rate_limit_per_minute = told.rate_limit_per_minute
    embedded = connection.embedded
    findings = Findings(
        search.width,
        "--slots " if embedded else "OLLAMA_NUM_PARALLEL=",
        apart_s=_LOOK_S,
        slots=embedded.settings.slots if embedded else None,
    )
    progress = SearchProgress(search.what, search.total, dispatcher, findings, calls_each=search.calls_each)
    recorder = Recorder(folder, dispatcher, progress)
    limit = FailedLimit(
        folder.replies,
        told.max_failed,
        lambda: int(account_totals(dispatcher)["cache_hits"]),
        callers_for(search.width),
        search.spared,
    )

    def look_up(over: bool) -> None:  # noqa: FBT001 - as it is called
        progress.tick()
        if connection.embedded and (obituary := connection.embedded.obituary()):
            raise RunStoppedError(obituary)
        limit.check(over=over)

    work = Background(lambda: search.run(recorder))
    try:
        with progress:
            outcome = work.result(look_up)
    except (Interrupted, Exception):
        interrupt.allow(allowed=False)
        dispatcher.cancel()
        recorder.stop()
        work.abandon(DRAIN_S)
        raise
    recorder.stop()
    return outcome


def _kept(outcome: Outcome, folder: RunFolder) -> Outcome:
    """What came of a search, written down."""
    folder.write_json("results.json", outcome.results)
    folder.write_json("summary.json", outcome.spent)
    for file, text in outcome.files.items():
        folder.write_text(file, text)
    return outcome


def _report(command: Command, outcome: Outcome, folder: RunFolder) -> None:
    """Write the report to stdout and where else it is wanted."""
    told = command.config.search
    report = command.report(outcome.results, outcome.spent)
    folder.write_json("report.json", report)
    if told.json:
        told.json.write_text(as_json(report) + "\n", encoding="utf-8")
    match told.format:
        case "table":
            parts, last = command.tables(report)
            print_parts(parts, (*last, "", folder.last_words), simulated=report["simulated"])
        case "json":
            print(as_json(report))
        case "yaml":
            print(as_yaml(report))
