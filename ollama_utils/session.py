"""A command's run, from its first call to its results: servers, run folder, signals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from ollama_utils.connect import Connection, ServerConfig, connect, keep_replies
from ollama_utils.on_ray import whole_run
from ollama_utils.reply_log import ReplyLog
from records.interrupt import Interrupt, Interrupted, interruptible
from records.resume import resume_line
from records.run_folder import REPLIES, SUMMARY, RunFolder
from records.settings import resolved
from records.terminal import counted, prints_on_stderr, write_stderr


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run found."""

    results: Mapping[str, Any]
    """results.json: plain data, equal for equal seeds and replies, however often the run was
    resumed: without times."""
    spent: Mapping[str, Any] = field(default_factory=dict)
    """More for summary.json: what may differ."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that are written into the folder, by the files' names."""


@contextmanager
def open_session(
    command: str,
    config: Any,  # noqa: ANN401 - of any command
    server: ServerConfig,
    *,
    simulated_target: str = "sim-target",
    named_by: str = "--target-model",
) -> Iterator[Session]:
    """Connect to the servers, and open the run's folder, for as long as `with` lasts.

    A signal ends what is within `with`. What a user's functions print there goes to stderr.

    Args:
        command: its name, as in `mutagym eval`.
        config: says `resume`, `run_dir` and `seed`, see `RunFolder.of`.
        server: the servers and their models.
        simulated_target: see `connect`.
        named_by: see `connect`.

    Raises:
        UserError: there is no such server or model, or the folder cannot be used.
    """
    connected = connect(server, simulated_target=simulated_target, named_by=named_by)
    with interruptible() as interrupt, connected as connection, ExitStack() as stack:
        stdout = sys.stdout
        stack.enter_context(prints_on_stderr())
        folder = stack.enter_context(RunFolder.of(command, config))
        yield Session(command, folder, connection, stack, interrupt, stdout)


@dataclass
class Session:
    """A run from its first call to its results; see `open_session`."""

    command: str
    folder: RunFolder
    connection: Connection
    stack: ExitStack
    """Closed at the end of the session."""
    _interrupt: Interrupt
    _stdout: TextIO

    def keep_replies(self, digests: Mapping[str, str], cache: Path | None) -> None:
        """Keep every reply from now on, see `connect.keep_replies`."""
        self.digests = digests
        log = ReplyLog(self.folder.path / REPLIES, digests=digests)
        self.replies = self.stack.enter_context(log)
        keep_replies(self.replies, cache, self.connection, digests, self.stack)

    def begin(
        self,
        config: Any,  # noqa: ANN401 - any config dataclass
        says: str,
        *,
        most_calls: int | None,
        copied: Collection[str] = (),
    ) -> None:
        """Write config.toml, and say what the run is. A signal from here on waits for `play`.

        Args:
            config: the settings, with hosts and models as they were found; `--config` reads them.
            says: what the run is, in a few words.
            most_calls: how many calls are still to be made at most; None: that is not known.
            copied: see `resume_line`.
        """
        self._interrupt.allow(allowed=False)
        self.folder.begin(resolved(config), simulated=self.connection.simulated)
        self.folder.go_on = resume_line(self.command, self.folder.path, config, copied)
        made = self.connection.dispatcher.completions
        cost = "" if most_calls is None else f", at most {counted(most_calls + made, 'call')}"
        write_stderr(f"run folder {self.folder.path}: {says}{cost}")

    def play(self, work: Callable[[], Found]) -> Found:
        """Do the work, write what it found, and return all that the files say.

        Whatever ends it, what was answered is kept. The counts in summary.json are of this process,
        and below `whole_run` of those before, too.

        Raises:
            UserError: something that can be mended; the run can be resumed then.
            RunStoppedError: the run stopped itself, saved.
            Interrupted: a signal stopped it, saved.
        """
        connection, folder = self.connection, self.folder
        began_s = time.monotonic()
        try:
            self._interrupt.allow(allowed=True)
            found = work()
            self._interrupt.allow(allowed=False)  # what was found is written whole
        except (Interrupted, Exception) as error:
            self._interrupt.allow(allowed=False)
            connection.dispatcher.cancel()
            raise folder.reported(error) from error
        results = {"simulated": connection.simulated, **found.results}
        spent = {
            "wall_s": round(time.monotonic() - began_s, 3),
            **connection.dispatcher.totals(),
            "whole_run": whole_run(self.replies, folder.path),
            **found.spent,
        }
        folder.write_json("results.json", results)
        folder.write_json(SUMMARY, spent)
        for name, text in found.files.items():
            folder.write_text(name, text)
        return replace(found, results=results, spent=spent)

    def printing(self) -> redirect_stdout[TextIO]:
        """Within `with`: what is printed goes to stdout again."""
        return redirect_stdout(self._stdout)
