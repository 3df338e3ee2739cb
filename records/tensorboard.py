"""Numbers for TensorBoard, written without torch, which takes seconds to import."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path


class TensorBoard:
    """An event file of scalars; what earlier processes wrote into the folder is hidden.

    Args:
        path: the folder of the event files; it is made.
    """

    def __init__(self, path: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
            Event,
            SessionLog,
        )
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
            EventFileWriter,
        )

        path.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(path))
        started = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=0, session_log=started))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add the numbers of one step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
