"""Where a command keeps the replies it gets: in its own folder, and in the cache that runs share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ollama_utils.reply_log import ReplyLog
from train.run_folder import REPLIES, RunFolder
from train.server import Connection

DRAIN_S = 5.0
"""How long a command that was stopped waits for the replies under way, which are paid for."""


def keep_replies(
    folder: RunFolder | None,
    cache: Path | None,
    connection: Connection,
    digests: Mapping[str, str],
    stack: ExitStack,
) -> None:
    """Keep every reply from now on, and ask nothing that the folder or the cache knows.

    Args:
        folder: the run's, whose `replies` is set; None: there is none.
        cache: a folder that runs share; None: there is none.
        connection: whose replies.
        digests: for each model that is asked, what stands for its weights.
        stack: closes the files, once the replies under way have had some time to come.

    Raises:
        ReplyLogError: a file cannot be made, or is no log.
    """
    logs: list[ReplyLog] = []
    if folder:
        folder.replies = stack.enter_context(ReplyLog(folder.path / REPLIES, digests=digests))
        logs.append(folder.replies)
    if cache:
        servers = ",".join(sorted(connection.servers))
        shared = ReplyLog(cache / "cache.sqlite", digests=digests, scope=servers)
        logs.append(stack.enter_context(shared))
    connection.dispatcher.keep_in(*logs)
    stack.callback(connection.dispatcher.drain, DRAIN_S)
