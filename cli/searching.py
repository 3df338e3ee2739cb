"""What every command that searches does: connect, open the folder, keep replies, search, report.

A command opens a session, says what identifies its models (`keep_replies`), runs its search
(`run`), and shows what it found (`report`). The search is done on a thread of its own: a signal
interrupts the wait for it, and never the search itself.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TextIO

from cli.formats import Parts, print_parts, prints_on_stderr, write_report
from cli.search_settings import MAY_CHANGE, SearchConfig
from ollama_utils.checkup import check_reply
from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import OllamaError
from ollama_utils.monitor import counted
from ollama_utils.on_ray import whole_run
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.types import Call
from records.errors import RunStoppedError
from records.failures import FailureLimit
from records.interrupt import Interrupt, Interrupted, interruptible
from records.json_lines import JsonLines
from records.metrics import CallRates, MetricsWriter
from records.resume import check_fingerprints, check_options, resume_line
from records.run_folder import REPLIES, SUMMARY, ResumableError, RunFolder
from records.settings import resolved
from records.terminal import write_stderr
from search.progress import SearchProgress
from search.task import ScorerError

LIMIT_WINDOWS, LEAST_WINDOW = 8, 64
"""--max-failed is judged over so many times the calls side by side, and so many more: failing calls
end last, as they are tried again."""


class NobodyWaitsError(Exception):
    """The search is to end: nobody waits for it any more."""


class CallOutcomes:
    """Whether the calls of a search failed, from its log of replies, from now on.

    Args:
        log: the run's.
        dispatcher: where the calls go.
        spared: errors that the search itself takes into account: they count as none.
    """

    def __init__(self, log: ReplyLog, dispatcher: Dispatcher, spared: Iterable[type[OllamaError]]) -> None:
        self._log, self._dispatcher = log, dispatcher
        self._spared = {kind.__name__ for kind in spared}
        self._row, self._hits = log.last(), self._cache_hits()

    def read(self) -> list[str]:
        """Why each call that ended since the last look failed, oldest first; "" if it did not.

        Calls whose reply was known count: a resumed search repeats what failed, and little else.
        """
        row, hits = self._log.last(), self._cache_hits()
        errors = self._log.latest(row - self._row, since=self._row)[::-1]
        known = [""] * (hits - self._hits)
        self._row, self._hits = row, hits
        return known + ["" if error.partition(":")[0] in self._spared else error for error in errors]

    def _cache_hits(self) -> int:
        return int(self._dispatcher.totals()["cache_hits"])


class SearchRecorder:
    """Takes the rounds of a search; a resumed one plays all of them again, so the files begin anew.

    Args:
        folder: the run's.
        dispatcher: where the calls go.
        progress: shows how far the search is.
    """

    def __init__(self, folder: RunFolder, dispatcher: Dispatcher, progress: SearchProgress) -> None:
        lines = JsonLines(folder.path / "metrics.jsonl")
        self._metrics = MetricsWriter(lines, folder.tensorboard)
        self._dispatcher, self._progress = dispatcher, progress
        self._stopped = False
        self._lock = threading.Lock()
        self._rates = CallRates(dispatcher.totals())

    def record(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        *,
        done: int,
        best: float | None = None,
        status: str | None = None,
    ) -> None:
        """Write down one round.

        Args:
            step: its number.
            metrics: by TensorBoard's names; None and what is not finite is left out there.
            done: how much of the search is done, in the unit of its progress line.
            best: the best score so far, if there is another one.
            status: how well the search does, in words, in the place of a best score.

        Raises:
            NobodyWaitsError: nothing is to be recorded any more.
        """
        with self._lock:
            if self._stopped:
                raise NobodyWaitsError
            totals = self._dispatcher.totals()
            spent = {**self._rates.metrics(totals), "time/wall_s": self._rates.wall_s}
            self._rates.restart(totals)
            self._metrics.write(step, {**metrics, **spent})
        self._progress.advance(done, best, status)

    def advance(self, done: int) -> None:
        """Say how much of the search is done, within a round; cheap.

        Raises:
            NobodyWaitsError: nobody waits for it any more.
        """
        if self._stopped:
            raise NobodyWaitsError
        self._progress.advance(done)

    def stop(self) -> None:
        """Record nothing from now on, and close the files."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._metrics.close()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found."""

    results: Mapping[str, Any]
    """Equal for equal seeds and replies, however often it was resumed: without times; the report is
    made of it. `simulated` is added."""
    spent: Mapping[str, Any] = field(default_factory=dict)
    """What may differ."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that are written into the folder, by the files' names."""
    failure: str = ""
    """Why it did not find what it was for, although it went through; said after the report."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search that is ready to begin."""

    config: SearchCommand
    """As it is resolved: `--config` reads it back."""
    says: str
    """What it is, in a few words."""
    what: str
    """What its progress is counted in, as in "generations"."""
    total: int
    """How many of these there are at most."""
    calls_each: int = 0
    """Calls that one of these takes at most, shown as it goes on; 0 shows none."""
    most_calls: int | None
    """Calls of the whole search at most, failed attempts left out; None: nobody knows."""
    width: int
    """Calls side by side at most."""
    fingerprints: Mapping[str, str]
    """What identifies the parts that a config only names, by their names."""
    run: Callable[[SearchRecorder], Found]
    first: Sequence[Call] = ()
    """Questions to the target models that show, before the search begins, whether they answer."""
    spared: Sequence[type[OllamaError]] = ()
    """Failures of a call that the search itself takes into account: they do not end it."""
    elsewhere: Callable[[], Sequence[str]] = tuple
    """Why calls of Ray tasks failed, since it was asked last, as `CallOutcomes.read` says it."""


class SearchCommand(Protocol):
    """The config of a command that searches."""

    @property
    def search(self) -> SearchConfig:
        """What all searches share."""
        ...

    @property
    def server(self) -> ServerConfig:
        """The server and its models."""
        ...


@contextmanager
def open_session(
    command: str,
    config: SearchCommand,
    *,
    simulated_target: str,
    named_by: str = "--target-model",
    may_change: Sequence[str] = (),
) -> Iterator[SearchSession]:
    """Connect to the servers, and open the run's folder.

    Args:
        command: its name, as in `mutagym evolve`.
        config: what was said.
        simulated_target: the target if none is named and the embedded simulator answers.
        named_by: the flag that names the target.
        may_change: options of this command that a resumed search may change.

    Raises:
        UserError: it cannot begin.
    """
    search = config.search
    if search.resume:
        check_options(config, search.resume, {*MAY_CHANGE, *may_change}, run_dir=search.run_dir)
    server = connect(config.server, simulated_target=simulated_target, named_by=named_by)
    with interruptible() as interrupt, server as connection, ExitStack() as stack:
        stdout = sys.stdout
        stack.enter_context(prints_on_stderr())
        opened = RunFolder.of(command, resume=search.resume, run_dir=search.run_dir, seed=search.seed)
        yield SearchSession(
            command=command,
            config=search,
            folder=stack.enter_context(opened),
            connection=connection,
            interrupt=interrupt,
            stack=stack,
            stdout=stdout,
        )


@dataclass(kw_only=True)
class SearchSession:
    """A search from its first call to its report; see `open_session`."""

    command: str
    config: SearchConfig
    folder: RunFolder
    connection: Connection
    interrupt: Interrupt
    stack: ExitStack
    """Closed at the end of the session."""
    stdout: TextIO
    """Where the report goes; what a user's functions print goes to stderr."""

    def keep_replies(self, digests: Mapping[str, str]) -> None:
        """Keep every reply from now on; what was answered is not asked again.

        Args:
            digests: what identifies the weights of each model that may be called.
        """
        self._digests = digests
        replies = ReplyLog(self.folder.path / REPLIES, digests=digests)
        self._replies = self.stack.enter_context(replies)
        keep_replies(replies, self.config.cache, self.connection, digests, self.stack)
        self.stack.enter_context(_log_file(self.folder))

    def run(self, search: Search) -> Found:
        """Search, and keep the results; whatever ends it, what was answered is kept.

        The counts in summary.json are of this process, and below `whole_run` of those before, too.

        Raises:
            UserError: a resumed search is not the one that began.
            RunStoppedError: it stopped itself, saved.
            Interrupted: a signal stopped it, saved.
        """
        replies = [self.connection.dispatcher.generate(call) for call in search.first]
        for reply in replies:
            check_reply("target", reply, write_stderr, required=len(replies) == 1)
        self.interrupt.allow(allowed=False)  # until it can be said how to go on
        self._begin(search)
        began_s = time.monotonic()
        try:
            self.interrupt.allow(allowed=True)
            found = self._searched(search)
            self.interrupt.allow(allowed=False)  # what it found is written whole
        except ScorerError as error:
            raise ResumableError(str(error)) from error
        except (Interrupted, Exception) as error:
            raise self.folder.reported(error) from error
        spent = {
            "wall_s": round(time.monotonic() - began_s, 3),
            **self.connection.dispatcher.totals(),
            "whole_run": whole_run(self._replies, self.folder.path),
            **found.spent,
        }
        results = {"simulated": self.connection.simulated, **found.results}
        self.folder.write_json("results.json", results)
        self.folder.write_json(SUMMARY, spent)
        for file, text in found.files.items():
            self.folder.write_text(file, text)
        return replace(found, results=results, spent=spent)

    def report(self, report: Mapping[str, Any], parts: Parts, last: Iterable[str], failure: str = "") -> None:
        """Write the report to stdout and where else it is wanted.

        Args:
            report: plain data.
            parts: the same as tables for people.
            last: lines behind the tables.
            failure: why the search did not find what it was for.

        Raises:
            RunStoppedError: there is a failure.
        """
        closing = (*last, "", self.folder.closing_message)
        with redirect_stdout(self.stdout):
            write_report(
                report,
                self.folder,
                path=self.config.json,
                form=self.config.format,
                print_tables=lambda: print_parts(parts, closing, simulated=report["simulated"]),
            )
        if failure:
            raise RunStoppedError(failure)

    def _begin(self, search: Search) -> None:
        """Write down what the search is, config.toml first; a resumed one must be the same."""
        folder = self.folder
        models = {f"model {name}": digest for name, digest in self._digests.items()}
        fingerprints = models | dict(search.fingerprints)
        if self.config.resume and (folder.path / "parts.json").exists():  # else killed before
            check_fingerprints(fingerprints, folder)
        config: Any = search.config
        config = replace(config, server=self.connection.resolve(config.server))
        folder.begin(resolved(config), simulated=self.connection.simulated)
        folder.go_on = resume_line(self.command, folder.path, config)
        folder.write_json("parts.json", fingerprints)
        preflight = self.connection.dispatcher.completions
        cost = "" if search.most_calls is None else f", {counted(search.most_calls + preflight)}"
        write_stderr(f"run folder {folder.path}: {search.says}{cost}")

    def _searched(self, search: Search) -> Found:
        """What the search finds; it is shown, recorded, and ended if its calls keep failing."""
        dispatcher = self.connection.dispatcher
        rate = search.config.search.rate_limit_per_minute or None
        self.stack.enter_context(dispatcher.rate.limited(rate))
        progress = SearchProgress(
            search.what,
            search.total,
            dispatcher,
            calls_each=search.calls_each,
            most_calls=search.most_calls,
            lanes=search.width,
            slots_setting=self.connection.slots_setting,
        )
        recorder = SearchRecorder(self.folder, dispatcher, progress)
        outcomes = CallOutcomes(self._replies, dispatcher, search.spared)
        window = LIMIT_WINDOWS * search.width + LEAST_WINDOW
        limit = FailureLimit(self.config.max_failed, window, what="calls failed", flag="--max-failed")

        def look(_done: int = 0) -> None:
            progress.tick()
            limit.add([*outcomes.read(), *search.elsewhere()])

        try:
            with progress:
                (found,) = iterate_parallel(search.run, [recorder], 1, look)
                look()
                limit.check()
        except BaseException:
            self.interrupt.allow(allowed=False)
            dispatcher.cancel()
            raise
        finally:
            recorder.stop()
        return found


@contextmanager
def _log_file(folder: RunFolder) -> Iterator[None]:
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
