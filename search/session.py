"""What every search does: keep its calls and rounds on record, show how far it is, end in time.

A search is made on a thread of its own: a signal interrupts the wait for it, never the search
itself, which ends at its next call or record.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

from ollama_utils.checkup import check_reply
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import CallCancelledError, OllamaError
from ollama_utils.parallel import iterate_parallel
from ollama_utils.reply_log import ReplyLog
from ollama_utils.session import Found, Session, open_session
from ollama_utils.types import Call
from records.failures import FailureLimit
from records.json_lines import JsonLines
from records.metrics import CallRates, MetricsWriter
from records.resume import check_fingerprints, check_options
from records.run_folder import METRICS, ResumableError
from search.config import SearchConfig
from search.progress import SearchProgress
from search.task import ScorerError

MAY_CHANGE = ("rate-limit-per-minute", "max-failed", "format", "scorer")
"""Options that any resumed search may change, beside those of hosts and limits: no reply depends on
them. A resumed search is played again from its start over its log of replies, so with another
scorer it may take other turns, and asks for the replies that it then lacks."""
PARTS = "parts.json"
LIMIT_WINDOWS, LEAST_WINDOW = 8, 64
"""--max-failed is judged over 8 times the calls made concurrently, and 64 more. Calls that fail are
retried, so they end last and together: among fewer calls their share would look too large."""


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


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search that is ready to begin."""

    config: Any
    """That of the command, as it is resolved: `--config` reads it back."""
    description: str
    """What it is, in a few words."""
    what: str
    """What its progress is counted in, as in "generations"."""
    total: int
    """How many of these there are at most."""
    calls_each: int = 0
    """Calls that one of these takes at most, shown as it goes on; 0 shows none."""
    most_calls: int | None
    """Calls of the whole search at most, failed attempts left out; None: nobody knows."""
    max_concurrency: int
    """The most calls at once."""
    inputs: Mapping[str, object]
    """What the search reads beside its config, such as the task, by name, as plain data; a resumed
    search has to have the same."""
    run: Callable[[SearchRecorder], Found]
    first: Sequence[Call] = ()
    """Questions to the target models that show, before the search begins, whether they answer."""
    spared: Sequence[type[OllamaError]] = ()
    """See `CallOutcomes`."""


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


def run_search(session: Session, search: Search) -> Found:
    """Check that the models answer, search, and write the results; see `Session.play`.

    Raises:
        UserError: a model does not answer, or a resumed search is not the one that began.
        RunStoppedError: it stopped itself, saved.
        Interrupted: a signal stopped it, saved.
    """
    folder, connection = session.folder, session.connection
    for reply in [connection.dispatcher.generate(call) for call in search.first]:
        check_reply("target", reply, required=len(search.first) == 1)
    fingerprints = {f"model {name}": digest for name, digest in session.digests.items()}
    for name, value in search.inputs.items():
        fingerprints[name] = sha256(repr(value).encode()).hexdigest()
    if search.config.search.resume and (folder.path / PARTS).exists():  # else killed before
        check_fingerprints(fingerprints, folder)
    config = replace(search.config, server=connection.resolve(search.config.server))
    session.begin(config, search.description, most_calls=search.most_calls)
    folder.write_json(PARTS, fingerprints)
    return session.play(partial(_search, session, search))


def _search(session: Session, search: Search) -> Found:
    """What the search finds; it is shown, recorded, and ended if its calls keep failing."""
    connection, dispatcher = session.connection, session.connection.dispatcher
    progress = SearchProgress(
        search.what,
        search.total,
        dispatcher,
        calls_each=search.calls_each,
        lanes=search.max_concurrency,
        slots_setting=connection.slots_setting,
    )
    window = LIMIT_WINDOWS * search.max_concurrency + LEAST_WINDOW
    most = search.config.search.max_failed
    limit = FailureLimit(most, window, what="calls failed", flag="--max-failed")
    outcomes = CallOutcomes(session.replies, dispatcher, search.spared)

    def look(_done: int = 0) -> None:
        progress.tick()
        limit.add(outcomes.read())

    with progress, closing(SearchRecorder(session, progress, limit)) as recorder:
        try:
            (found,) = iterate_parallel(search.run, [recorder], 1, look)
        except ScorerError as error:
            raise ResumableError(str(error)) from error
        look()
        limit.check()
    return found
