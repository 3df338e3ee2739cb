"""How calls share a machine: prompts read in chunks, replies written in steps common to all.

One loaded model works on one batch. A step gives every sequence that writes one token; a chunk reads up to
`num_batch` tokens of the prompts that wait, first come, first served, and nobody writes meanwhile. After a
chunk one step is due before the next, as in Ollama's own runner, whose batches hold both. A chunk stalls the
decoders of its own model; the batches of several models, which are processes of their own, share the
machine's time equally, as a GPU slices it: none gets throughput for nothing.

What is approximated: steps are a fluid. A sequence that joins or leaves does not wait for the running step
to end; the rest of the step goes on at the new pace. So each of them can move a moment by a step at most, no
work is lost or gained, and time is computed from one event to the next, never token by token.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import count

from simulator.agenda import Action, Agenda, Entry
from simulator.profiles import Pace


class Sequence:
    """One call's tokens: first its prompt is read, then its reply is written.

    Args:
        prompt_tokens: to be read; 0 or more.
        reply_tokens: to be written; 0 or more.
        read: is called when the prompt is read and writing begins.
        ended: is called when the last token is written.
    """

    def __init__(self, prompt_tokens: int, reply_tokens: int, read: Action, ended: Action) -> None:
        self.prompt_tokens = prompt_tokens
        self.unread = prompt_tokens
        self.read = read
        self.marks: list[tuple[float, Action]] = [(reply_tokens, ended)]
        """What is to be called after how many tokens."""
        self.began: float | None = None
        """The batch's step at which writing began."""
        self.gone = False


LEAST_CHUNK = 32
"""Prompt tokens in a chunk at least (an assumption): on a real server, too, `num_batch` 0 does no harm."""


class Batch:
    """The sequences that one loaded model works on, by the seconds of the machine's time that it gets.

    Args:
        pace: how long reading and writing take.
        num_batch: the most prompt tokens in a chunk; fewer than `LEAST_CHUNK` count as that many.
    """

    def __init__(self, pace: Pace, num_batch: int) -> None:
        self._pace = pace
        self._num_batch = max(num_batch, LEAST_CHUNK)
        self._steps = 0.0
        self._writing = 0
        self._context = 0.0
        self._marks: list[tuple[float, int, Sequence, Action]] = []
        self._order = count()
        self._unread: deque[Sequence] = deque()
        self._chunk: list[Sequence] | None = None
        self._chunk_s = 0.0
        self._next_chunk = 0.0
        """The step before which no chunk begins while somebody writes."""

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in: its prompt is the last to be read."""
        self._unread.append(sequence)

    def remove(self, sequence: Sequence) -> float:
        """Let go of a sequence that has ended or was given up; a chunk under way goes on.

        Gives how many tokens of it are written.
        """
        sequence.gone = True
        if sequence in self._unread:
            self._unread.remove(sequence)
        written = 0.0
        if sequence.began is not None:
            written = self._steps - sequence.began
            self._writing -= 1
            self._context -= sequence.prompt_tokens + written
        return written

    def mark(self, sequence: Sequence, tokens: float, action: Action) -> None:
        """Have an action called when so many tokens of a sequence are written, or at once if they are."""
        if sequence.began is None:
            sequence.marks.append((tokens, action))
        else:
            moment = max(sequence.began + tokens, self._steps)
            heapq.heappush(self._marks, (moment, next(self._order), sequence, action))

    def due_s(self) -> float:
        """Seconds of the machine's time until something happens; infinite when there is nothing to do."""
        if self._chunk is not None:
            return self._chunk_s
        if self._reads_next():
            return 0.0
        goal = self._goal() if self._writing else math.inf
        if goal == math.inf:
            return math.inf
        return self._pace.steps_s(max(0.0, goal - self._steps), self._writing, self._context)

    def advance(self, work_s: float) -> None:
        """Work for some seconds, at most `due_s()`."""
        if work_s <= 0:
            return
        if self._chunk is not None:
            self._chunk_s -= work_s
        elif self._writing:
            self._move_to(self._steps + self._pace.steps_in(work_s, self._writing, self._context))

    def happen(self) -> list[Action]:
        """Let what is due happen, as if exactly `due_s()` had been worked; gives what is to be called."""
        if self._chunk is not None:
            return self._end_chunk(self._chunk)
        if self._reads_next():
            self._begin_chunk()
            return []
        self._move_to(max(self._steps, self._goal()))
        return self._take_marks()

    def _goal(self) -> float:
        """The step at which something happens: a mark is reached, or it is a chunk's turn again."""
        while self._marks and self._marks[0][2].gone:
            heapq.heappop(self._marks)
        mark = self._marks[0][0] if self._marks else math.inf
        return min(mark, self._next_chunk) if self._unread else mark

    def _move_to(self, step: float) -> None:
        self._context += (step - self._steps) * self._writing
        self._steps = step

    def _take_marks(self) -> list[Action]:
        actions = []
        while self._marks and self._marks[0][0] <= self._steps:
            _, _, sequence, action = heapq.heappop(self._marks)
            if not sequence.gone:
                actions.append(action)
        return actions

    def _reads_next(self) -> bool:
        """Whether it is a chunk's turn.

        To begin one is an event of its own, so that whoever comes at the same moment is in it.
        """
        return bool(self._unread) and (not self._writing or self._steps >= self._next_chunk)

    def _begin_chunk(self) -> None:
        room, self._chunk = self._num_batch, []
        while self._unread and room:
            sequence = self._unread[0]
            part = min(room, sequence.unread)
            sequence.unread -= part
            room -= part
            if not sequence.unread:
                self._chunk.append(self._unread.popleft())
        self._chunk_s = self._pace.read_s(self._num_batch - room)

    def _end_chunk(self, chunk: list[Sequence]) -> list[Action]:
        """The sequences that are read in full now begin to write."""
        self._chunk = None
        self._next_chunk = self._steps + 1
        present = [sequence for sequence in chunk if not sequence.gone]
        for sequence in present:
            sequence.began = self._steps
            self._writing += 1
            self._context += sequence.prompt_tokens
            for tokens, action in sequence.marks:
                self.mark(sequence, tokens, action)
        return [sequence.read for sequence in present]


class Machine:
    """Shares its time equally between the batches that have something to do.

    Args:
        agenda: whose time it follows and where it enters what comes next.
        speed: seconds of work that it does in a second; 0 stands still.
    """

    def __init__(self, agenda: Agenda, speed: float = 1.0) -> None:
        self._agenda = agenda
        self._speed = speed
        self._busy: dict[Batch, float] = {}
        """The batches at work, with the seconds of the machine's time each needs until something happens."""
        self._since_s = agenda.now_s
        self._next: Entry | None = None
        self._happens = False

    def add(self, batch: Batch, sequence: Sequence) -> None:
        """Have a batch work on a sequence from now on."""
        self._catch_up()
        batch.add(sequence)
        self._plan(batch)

    def remove(self, batch: Batch, sequence: Sequence) -> float:
        """Have a batch let go of a sequence; gives how many tokens of it are written."""
        self._catch_up()
        written = batch.remove(sequence)
        self._plan(batch)
        return written

    def mark(self, batch: Batch, sequence: Sequence, tokens: float, action: Action) -> None:
        """Have an action called when so many tokens of a sequence are written."""
        self._catch_up()
        batch.mark(sequence, tokens, action)
        self._plan(batch)

    def set_speed(self, speed: float) -> None:
        """Work at another speed from now on."""
        self._catch_up()
        self._speed = speed
        self._enter()

    def _catch_up(self) -> None:
        """Bring every batch to the present."""
        now_s = self._agenda.now_s
        if now_s > self._since_s and self._busy:
            work_s = (now_s - self._since_s) * self._speed / len(self._busy)
            for batch in self._busy:
                batch.advance(work_s)
        self._since_s = now_s

    def _plan(self, changed: Batch) -> None:
        """Enter the next thing that happens, now that a batch has changed."""
        self._busy.setdefault(changed, 0.0)
        if not self._happens:
            self._enter()

    def _enter(self) -> None:
        self._busy = {batch: due_s for batch in self._busy if (due_s := batch.due_s()) < math.inf}
        self._agenda.cancel(self._next)
        self._next = None
        if self._busy and self._speed:
            wait_s = min(self._busy.values()) * len(self._busy) / self._speed
            self._next = self._agenda.at(self._agenda.now_s + wait_s, self._happen)

    def _happen(self) -> None:
        """Let the soonest happen; what it leads to at this moment is planned for together."""
        soonest_s = min(self._busy.values())
        due = [batch for batch, wait_s in self._busy.items() if wait_s == soonest_s]
        self._catch_up()
        self._happens = True
        for action in [action for batch in due for action in batch.happen()]:
            action()
        self._happens = False
        self._enter()
