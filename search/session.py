"""What every search does: keep its calls and rounds on record, show how far it is, end in time.

A search is made on a thread of its own: a signal interrupts the wait for it, never the search
itself, which ends at its next call or record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from ollama_utils.checkup import check_reply
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError, OllamaError
from ollama_utils.monitor import CallMonitor
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.session import Found, Session, open_session
from ollama_utils.types import Call
from records.failures import FailureLimit
from records.json_lines import JsonLines
from records.metrics import CallRates, MetricsWriter
from records.progress import ProgressDisplay, Status
from records.resume import check_fingerprints, check_options
from records.run_folder import METRICS, ResumableError
from records.terminal import write_stderr
from search.config import SearchConfig
from search.task import ScorerError

MAY_CHANGE = ("rate-limit-per-minute", "max-failed", "format", "scorer")
"""Options that any resumed search may change, beside those of hosts and limits: no reply depends on
them. A resumed search is played again from its start over its log of replies, so with another
scorer it may take other turns, and asks for the replies that it then lacks."""
PARTS = "parts.json"
LIMIT_WINDOWS, LEAST_WINDOW = 8, 64
"""--max-failed is judged over 8 times the calls made concurrently, and 64 more. Calls that fail are
retried, so they end last and together: among fewer calls their share would look too large."""


class SearchProgress(ProgressDisplay):
    """Shows how far a search is, how fast, how well it does, and what is known of the servers.

    Args:
        what: what is counted, as in "generations".
        total: how many there are at most.
        dispatcher: where the calls go.
        calls_each: replies that one of them takes at most; unless it is 0, those so far are shown.
        lanes: calls that it makes side by side at most; None: nothing is said of servers' slots.
        slots_setting: what gives a server more slots, up to their number.
    """

    def __init__(
        self,
        what: str,
        total: int,
        dispatcher: Dispatcher,
        *,
        calls_each: int = 0,
        lanes: int | None = None,
        slots_setting: str = "",
    ) -> None:
        super().__init__()
        self._dispatcher, self._calls_each = dispatcher, calls_each
        self._monitor = CallMonitor(dispatcher, lanes=lanes, slots_setting=slots_setting)
        self._best: list[float] = []
        self._score = ""
        self._has_called = False
        """Whether it made a call: a resumed search repeats what it knows, which takes no time."""
        self._whole, self._completions_before = 0, dispatcher.completions
        """How many are done, and the completions that there were then."""
        self.begin(what, total, self._describe)

    def advance(self, done: int, best: float | None = None, status: str | None = None) -> None:
        """Show how many are done, and the best score where there is another, or a status."""
        if best is not None:
            self._best.append(best)
            self._score = f"best {best:.3f}"
        self._score = status or self._score
        self._whole, self._completions_before = done, self._dispatcher.completions
        self._update()

    def tick(self) -> None:
        """Bring the rate up to date, and print news of the servers; to be called now and then."""
        for line in self._monitor.news():
            write_stderr(line)
        self._update()

    def _update(self) -> None:
        if not self._has_called and self._dispatcher.totals()["calls"]:
            self._has_called = True
            self.restart_pace()
        self.update(self._whole + self._part() / max(1, self._calls_each))

    def _describe(self) -> Status:
        part = self._part()
        within = f"then {part} of at most {self._calls_each} calls" if part else ""
        return Status(
            outcome=within, score=self._score, trend=self._best, calls=self._monitor.line()
        )

    def _part(self) -> int:
        """Completions since the last one was done, at most those that one takes."""
        if self._whole >= self._total:
            return 0
        return min(self._dispatcher.completions - self._completions_before, self._calls_each)


class CallOutcomes:
    """Whether the calls of a search failed, from its log of replies, from now on.

    Errors of the kinds `spared` count as none: the search itself takes them into account.
    """

    def __init__(
        self, log: ReplyLog, dispatcher: Dispatcher, spared: Iterable[type[OllamaError]]
    ) -> None:
        self._log, self._dispatcher = log, dispatcher
        self._spared = {kind.__name__ for kind in spared}
        self._row, self._hits = log.last(), dispatcher.totals()["cache_hits"]

    def read(self) -> list[str]:
        """Why each call since the last time failed, oldest first; "" if it did not.

        Calls whose reply was known count: a resumed search repeats what failed, and little else.
        """
        row, hits = self._log.last(), self._dispatcher.totals()["cache_hits"]
        known = [""] * int(hits - self._hits)
        errors = self._log.latest(row - self._row, since=self._row)[::-1]
        self._row, self._hits = row, hits
        return known + ["" if each.partition(":")[0] in self._spared else each for each in errors]


class SearchRecorder:
    """Writes the rounds of a search; a resumed one plays all of them again, into new files.

    `limit` judges the calls.
    """

    def __init__(self, session: Session, progress: SearchProgress, limit: FailureLimit) -> None:
        folder, self._dispatcher = session.folder, session.connection.dispatcher
        self._metrics = MetricsWriter(JsonLines(folder.path / METRICS), folder.tensorboard)
        self._rates = CallRates(self._dispatcher.totals())
        self._progress, self.limit = progress, limit
        self._lock = threading.Lock()
        self._is_closed = False

    def record(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        *,
        done: int,
        best: float | None = None,
        status: str | None = None,
    ) -> None:
        """Write the metrics of a round, by TensorBoard's names, and show how far the search is.

        `done`, `best` and `status` are those of `SearchProgress.advance`.

        Raises:
            CallCancelledError: nobody waits for the search any more.
        """
        with self._lock:
            self._check()
            totals = self._dispatcher.totals()
            spent = {**self._rates.metrics(totals), "time/wall_s": self._rates.wall_s}
            self._rates.restart(totals)
            self._metrics.write(step, {**metrics, **spent})
        self._progress.advance(done, best, status)

    def advance(self, done: int) -> None:
        """Say how much of the search is done, within a round; raises as `record` does."""
        self._check()
        self._progress.advance(done)

    def close(self) -> None:
        """Record nothing from now on, and close the files."""
        with self._lock:
            self._is_closed = True
            self._metrics.close()

    def _check(self) -> None:
        if self._is_closed:
            raise CallCancelledError("the search was stopped")


@contextmanager
def open_search(
    command: str,
    config: Any,  # noqa: ANN401 - of any search
    may_change: Iterable[str],
    simulated_target: str = "sim-solver",
    named_by: str = "--target-model",
) -> Iterator[Session]:
    """A session of a search, see `open_session`; a resumed one is checked to be the same.

    `search` and `server` are fields of the command's config; `may_change` names options of this
    command that a resumed search may change.

    Raises:
        UserError: it cannot begin.
    """
    search: SearchConfig = config.search
    if search.resume:
        check_options(config, search.resume, {*MAY_CHANGE, *may_change}, run_dir=search.run_dir)
    names = {"simulated_target": simulated_target, "named_by": named_by}
    with open_session(command, search, config.server, **names) as session:
        rate = session.connection.dispatcher.rate
        session.stack.enter_context(rate.limited(search.rate_limit_per_minute or None))
        log = logging.FileHandler(session.folder.path / "log.txt", encoding="utf-8", delay=True)
        log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger = logging.getLogger("search")
        logger.setLevel(logging.INFO)
        logger.addHandler(log)
        session.stack.callback(log.close)
        session.stack.callback(logger.removeHandler, log)
        yield session


def run_search(  # noqa: PLR0913 - each is one fact of a search
    session: Session,
    config: Any,  # noqa: ANN401 - of any search
    run: Callable[[SearchRecorder], Found],
    *,
    says: str,
    what: str,
    total: int,
    most_calls: int | None,
    at_once: int,
    inputs: Mapping[str, object],
    calls_each: int = 0,
    first: Sequence[Call] = (),
    spared: Sequence[type[OllamaError]] = (),
) -> Found:
    """Check that the models answer, search, and write the results; see `Session.play`.

    Args:
        session: of `open_search`.
        config: that of the command, as it is resolved: `--config` reads it back.
        run: searches.
        says: what it is, in a few words.
        what: what its progress is counted in, as in "generations".
        total: how many of these there are at most.
        calls_each: calls that one of these takes at most, shown as it goes on; 0 shows none.
        most_calls: of the whole search, failed attempts left out; None: nobody knows.
        at_once: the most calls at once.
        inputs: what else it reads, by name, as plain data: a resumed search has to have the same.
        first: questions to the target models that show whether they answer.
        spared: see `CallOutcomes`.

    Raises:
        UserError: a model does not answer, or a resumed search is not the one that began.
        RunStoppedError: it stopped itself, saved.
        Interrupted: a signal stopped it, saved.
    """
    folder, connection = session.folder, session.connection
    dispatcher = connection.dispatcher
    for reply in list(map(dispatcher.generate, first)):
        check_reply("target", reply, required=len(first) == 1)
    fingerprints = {f"model {name}": digest for name, digest in session.digests.items()}
    for name, value in inputs.items():
        fingerprints[name] = sha256(repr(value).encode()).hexdigest()
    if config.search.resume and (folder.path / PARTS).exists():  # else killed before
        check_fingerprints(fingerprints, folder)
    config = replace(config, server=connection.resolve(config.server))
    session.begin(config, says, most_calls=most_calls)
    folder.write_json(PARTS, fingerprints)
    window = LIMIT_WINDOWS * at_once + LEAST_WINDOW
    limit = FailureLimit(config.search.max_failed, window, what="calls failed", flag="--max-failed")

    def play() -> Found:
        progress = SearchProgress(
            what,
            total,
            dispatcher,
            calls_each=calls_each,
            lanes=at_once,
            slots_setting=connection.slots_setting,
        )
        outcomes = CallOutcomes(session.replies, dispatcher, spared)

        def look(_done: int = 0) -> None:
            progress.tick()
            limit.add(outcomes.read())

        with progress, closing(SearchRecorder(session, progress, limit)) as recorder:
            try:
                (found,) = iterate_parallel(run, [recorder], 1, look)
            except ScorerError as error:
                raise ResumableError(str(error)) from error
            look()
            limit.check()
        return found

    return session.play(play)
