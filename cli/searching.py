"""The course of every command that searches: servers, folder, log of replies, the search, its report.

A search on a thread of its own: a signal interrupts the wait for it, and never the search itself.

Stops a search when calls keep failing: results that rest on failures are worth nothing.

The live progress line of a search, on stderr: a bar on a terminal, elsewhere a line now and then.

Writes a search down as it goes: metrics.jsonl, TensorBoard, the progress line.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from rich.progress import TextColumn
from rich.table import Column

from cli.search_settings import MAY_CHANGE, Told
from cli.tables import as_json, as_yaml, print_parts
from ollama_utils.connect import DRAIN_S, Connection, connect, keep_replies
from ollama_utils.dispatcher import Dispatcher, account_totals
from ollama_utils.errors import OllamaError
from ollama_utils.findings import Findings
from ollama_utils.reply_log import ReplyLog
from records.errors import RunStoppedError, UserError
from records.interrupt import Interrupt, Interrupted, interruptible
from records.json_lines import JsonLines
from records.live_bar import LiveBar, shares
from records.run_folder import RunFolder, new_run_path
from records.settings import resolved
from records.tensorboard import TensorBoard
from search.call_pool import callers_for
from search.task import ScorerError
from train.resume import check_options, check_parts

T = TypeVar("T")

LOOK_UP_S = 0.2
"""Whoever waits looks up as often: for Ctrl-C, for failing calls, to say how far it is."""


class Background(Generic[T]):
    """Work that is done while this thread waits.

    Args:
        work: done once, on a thread that never keeps the process alive.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name="search", daemon=True)

    def result(self, look_up: Callable[[bool], None]) -> T:
        """Begin the work, and wait for what comes of it.

        Args:
            look_up: called now and then, and at last with whether it is over; where it raises, nobody waits
                any more, and what the work itself raised is left untold.

        Raises:
            Exception: whatever the work raised.
        """
        self._thread.start()
        over = False
        while not over:
            self._thread.join(LOOK_UP_S)
            over = not self._thread.is_alive()
            look_up(over)
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def abandon(self, wait_s: float) -> None:
        """Give it some time to notice that it is to end; what comes of it is dropped."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def _do(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self._failure = error


_WINDOWS = 4
"""The share is judged over so many times the calls that may be under way."""


class FailedLimit:
    """Looks at the log of replies now and then; what it held before is left out.

    Calls that fail come to an end late, after all their attempts: where nothing new begins meanwhile, the
    last to end are failed ones, at most as many as may be under way. So one more than that without a single
    reply is a server that is gone, and the share is judged over several times as many.

    A call whose reply is known counts beside those that a server is asked at about that time: a resumed
    search asks again for what failed, and for little else.

    Args:
        replies: the run's.
        most: the share of recent calls that may have failed, after all their attempts.
        known: how many calls got a reply that was known, so far.
        under_way: how many calls may be under way, those that wait for their next attempt included.
        spared: errors that do not count, as the search itself takes them into account.
    """

    def __init__(
        self,
        replies: ReplyLog,
        most: float,
        known: Callable[[], int],
        under_way: int,
        spared: Sequence[type[OllamaError]] = (),
    ) -> None:
        self._replies = replies
        self._most = most
        self._known = known
        self._under_way = under_way
        self._spared = {kind.__name__ for kind in spared}
        self._since = replies.last()
        self._looks = deque([(self._since, known())])
        """At earlier looks, the last row of the log and how many replies had been known."""

    def check(self, *, over: bool = False) -> None:
        """Judge the latest calls.

        Args:
            over: the search has ended, so that fewer calls have to do.

        Raises:
            RunStoppedError: too many of them failed.
        """
        window = _WINDOWS * self._under_way
        latest = self._replies.latest(window, since=self._since)
        self._looks.append((self._replies.last(), self._known()))
        gone = latest[: self._under_way + 1]
        if len(gone) > self._under_way and len(self._failed(gone)) == len(gone):
            latest = gone
        elif not over and len(latest) < window:
            return
        errors, calls = self._failed(latest), len(latest) + self._known_since(len(latest))
        if len(errors) > self._most * calls:
            raise RunStoppedError(
                f"{len(errors) / calls:.0%} of the last {calls} calls failed "
                f"(--max-failed {self._most:g}); last error: {errors[0]}"
            )

    def _failed(self, latest: Sequence[str]) -> list[str]:
        """The errors that count."""
        return [error for error in latest if error and error.partition(":")[0] not in self._spared]

    def _known_since(self, rows: int) -> int:
        """How many replies were known since the look before the last so many rows of the log."""
        last, known = self._looks[-1]
        while len(self._looks) > 1 and self._looks[1][0] <= last - _WINDOWS * self._under_way:
            self._looks.popleft()
        before = max((look for look in self._looks if look[0] <= last - rows), default=self._looks[0])
        return known - before[1]


SILENT_S = 30.0
"""Where there is no bar, there is a plain line at least as often."""


class SearchProgress(LiveBar):
    """Tells how far a search is, how fast, how well it does, and what is found out about the servers.

    Args:
        what: what is counted, as in "generations".
        total: how many there are at most.
        dispatcher: where the calls go.
        findings: what is found out about the servers.
        calls_each: replies that one of them takes at most; where it is not 0, those so far are told.
    """

    def __init__(
        self, what: str, total: int, dispatcher: Dispatcher, findings: Findings, *, calls_each: int = 0
    ) -> None:
        # On a narrow terminal this column breaks into lines, so that the others stay whole.
        super().__init__(TextColumn("{task.fields[says]}", table_column=Column()))
        self._what, self._total = what, total
        self._dispatcher = dispatcher
        self._findings = findings
        self._task = self.progress.add_task(what, total=total, says="")
        self._shares = shares(total)
        self._standing = ""
        self._calls_each = calls_each
        self._done, self._replies_before = 0, self._replies()
        """How many are done, and the replies that there were then."""
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        """How much was done, and when, before a server was first asked."""

    def advance(self, done: int, best: float | None = None, standing: str | None = None) -> None:
        """So much is done; `best` is the best score so far, where there is another; or `standing` says it."""
        if best is not None:
            self._standing = f"best {best:.3f}, "
        if standing is not None:
            self._standing = f"{standing}, "
        self._done, self._replies_before = done, self._replies()
        self.progress.update(self._task, completed=self._far())
        if not account_totals(self._dispatcher)["calls"]:
            self._asked_from = done, time.monotonic()
        reached = {share for share in self._shares if share <= done}
        self._shares -= reached
        if reached:
            self._print()

    def tick(self) -> None:
        """Bring the rate up to date, and tell what was found out; to be called again and again."""
        for line in self._findings.news(self._dispatcher.capacities()):
            self.say(line)
        self.progress.update(self._task, completed=self._far(), says=self._says())
        if time.monotonic() - self._told_s > SILENT_S:
            self._print()

    def _says(self) -> str:
        spent = account_totals(self._dispatcher)
        rate = spent["calls"] / max(time.monotonic() - self._began_s, 1e-9)
        hits = spent["cache_hits"] / max(spent["calls"] + spent["cache_hits"], 1)
        return f"{self._within()}{self._standing}{rate:.1f} calls/s, {hits:.0%} hits"

    def _replies(self) -> int:
        """That came so far, or were known; a failed attempt brings none."""
        spent = account_totals(self._dispatcher)
        return int(spent["calls"] - spent["failures"] + spent["cache_hits"])

    def _since(self) -> int:
        """Replies since so many were done, at most those that one takes: a few may come twice."""
        if self._done >= self._total:
            return 0
        return min(self._replies() - self._replies_before, self._calls_each)

    def _within(self) -> str:
        """How far the one under way is."""
        since = self._since()
        return f"then {since} of at most {self._calls_each} calls, " if since else ""

    def _far(self) -> float:
        """How many are done, with the share of the one under way."""
        return self._done + self._since() / max(1, self._calls_each)

    def _print(self) -> None:
        """A plain line, where there is no bar."""
        self._told_s = time.monotonic()
        if not self.is_shown:
            far = f"{self._what}: {self._done} of {self._total}"
            print(f"{far}, {self._says()}{self._left()}", file=sys.stderr)

    def _left(self) -> str:
        """At the pace since a server was first asked: what a resumed search tells again takes no time."""
        (known, from_s), far = self._asked_from, self._far()
        if not known < far < self._total:
            return ""
        left_s = (time.monotonic() - from_s) * (self._total - far) / (far - known)
        return f", about {left_s:.0f} s left"

    def __enter__(self) -> Self:
        self._began_s = self._told_s = time.monotonic()
        self._asked_from = 0, self._began_s
        return super().__enter__()


class SearchStoppedError(Exception):
    """The search is told that nobody waits for it any more."""


class Recorder:
    """What a search tells its rounds to; a resumed one tells all of them again, so the files begin anew.

    Args:
        folder: the run's.
        dispatcher: where the calls go.
        progress: shows how far the search is.
    """

    def __init__(self, folder: RunFolder, dispatcher: Dispatcher, progress: SearchProgress) -> None:
        self._lines = JsonLines(folder.path / "metrics.jsonl")
        self._board = TensorBoard(folder.tensorboard)
        self._dispatcher = dispatcher
        self._progress = progress
        self._stopped = False
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._before = account_totals(dispatcher)

    def record(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        *,
        done: int,
        best: float | None = None,
        standing: str | None = None,
    ) -> None:
        """Write down one round.

        Args:
            step: its number.
            metrics: by TensorBoard's names; None and what is no finite number is left out there.
            done: how much of the search is done, in the unit of its progress line.
            best: the best score so far, where there is another one.
            standing: how well the search does, in words, in the place of a best score.

        Raises:
            SearchStoppedError: nothing is to be recorded any more.
        """
        with self._lock:
            if self._stopped:
                raise SearchStoppedError
            told = {k: v if v is not None and isfinite(v) else None for k, v in metrics.items()}
            told |= self._speed()
            self._lines.write({"step": step, **told})
            self._lines.flush()
            self._board.write(step, {name: value for name, value in told.items() if value is not None})
        self._progress.advance(done, best, standing)

    def advance(self, done: int) -> None:
        """Say how much of the search is done, within a round; cheap.

        Raises:
            SearchStoppedError: nobody waits for it any more.
        """
        if self._stopped:
            raise SearchStoppedError
        self._progress.advance(done)

    def stop(self) -> None:
        """Record nothing from now on, and close the files."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._lines.close()
                self._board.close()

    def _speed(self) -> dict[str, float | None]:
        """Calls since the last round, as the dispatcher counts them."""
        now, came_s = account_totals(self._dispatcher), time.monotonic()
        spent = {key: now[key] - self._before[key] for key in now}
        wall_s = max(came_s - self._began_s, 1e-9)
        self._before, self._began_s = now, came_s
        asked = spent["calls"] + spent["cache_hits"]
        return {
            "calls/per_s": spent["calls"] / wall_s,
            "calls/cache_hit_rate": spent["cache_hits"] / max(asked, 1),
            "calls/retries": spent["retries"],
            "calls/failures": spent["failures"],
            "calls/busy_slots": spent["busy_s"] / wall_s,
            "time/wall_s": wall_s,
        }


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
        if connection.embedded and (reason := connection.embedded.exit_reason()):
            raise RunStoppedError(reason)
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
