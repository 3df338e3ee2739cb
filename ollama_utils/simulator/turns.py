"""One call's way through the server in virtual time: into memory, into a slot, through the machine, out.

A slot passes on, and a model falls idle, at the very moment a call ends, not when anybody looks: late
wake-ups do not add up. A queue of n calls of s seconds on one slot ends after n * s.

Left out: prompt caches, so that every prompt is read in full; and the one to three milliseconds that Ollama
itself spends on a call, in whose place stands what this server spends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ollama_utils.simulator.agenda import Action, Agenda
from ollama_utils.simulator.counters import Counters, Hold
from ollama_utils.simulator.decoding import Batch, Machine, Sequence
from ollama_utils.simulator.durations import keep_alive_s
from ollama_utils.simulator.profiles import Pace
from ollama_utils.simulator.residence import Residence
from ollama_utils.simulator.runners import Limits, Model, Request, Runner, RunnerOptions
from ollama_utils.simulator.wire import Body


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a call asks of the server's time."""

    model: str
    prompt_tokens: int = 0
    reply_tokens: int = 0
    options: RunnerOptions = field(default_factory=RunnerOptions)
    keep_alive_s: float | None = None
    """Seconds that the model stays in memory afterwards; None leaves it to the server."""

    @classmethod
    def of(cls, model: str, body: Body, *, prompt_tokens: int = 0, reply_tokens: int = 0) -> Call:
        """The call that a request asks for, whose options and `keep_alive` were checked."""
        keep_alive = body.get("keep_alive")
        return cls(
            model=model,
            prompt_tokens=prompt_tokens,
            reply_tokens=reply_tokens,
            options=RunnerOptions.of(body.get("options") or {}),
            keep_alive_s=None if keep_alive is None else keep_alive_s(keep_alive),
        )


class Turn:
    """A call under way; its moments are seconds on the agenda's clock, not a number until they come.

    Args:
        call: what it asks for.
        arrived_s: when the call came.
        server: where it goes through.
        started: is called when the call holds a slot.
    """

    def __init__(self, call: Call, arrived_s: float, server: Server, started: Action) -> None:
        self.call = call
        self.arrived_s = arrived_s
        self.entered_s = server.agenda.now_s
        """When it asked for its model: the server had read the request."""
        self.loaded_s = math.nan
        """When the model was in memory for it."""
        self.started_s = math.nan
        """When it got a slot."""
        self.decoding_s = math.nan
        """When its prompt was read and decoding began."""
        self.due_s = math.nan
        """When the last token was written and the slot passed on."""
        self._server = server
        self._started = started
        self._request = Request(
            model=call.model, options=call.options, keep_alive_s=call.keep_alive_s, ready=self._take_slot
        )
        self._sequence = Sequence(call.prompt_tokens, call.reply_tokens, self._decode, self._end)
        self._runner: Runner | None = None
        self._work: tuple[Machine, Batch] | None = None
        self._hold: Hold | None = None
        self.over = False
        """Whether it gave back its slot: at its end, or because its client left."""

    @property
    def load_s(self) -> float:
        """Seconds for which it waited for its model."""
        return self.loaded_s - self.entered_s

    @property
    def prefill_s(self) -> float:
        """Seconds in its slot until the prompt was read."""
        return self.decoding_s - self.started_s

    @property
    def decode_s(self) -> float:
        """Seconds in which the reply was written."""
        return self.due_s - self.decoding_s

    @property
    def total_s(self) -> float:
        """Seconds from its arrival to its end; what the other three leave of it is the wait for a slot."""
        return self.due_s - self.arrived_s

    def begin(self) -> None:
        """Ask for the model.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        self._server.residence.ask(self._request)

    def mark(self, tokens: float, action: Action) -> None:
        """Have an action called when so many tokens are written; at once when the call has ended.

        Args:
            tokens: parts of one too; more than the reply has means its end.
            action: what is called; the call must hold a slot, or have ended.
        """
        if self.over or self._work is None:
            action()
        else:
            machine, batch = self._work
            machine.mark(batch, self._sequence, min(tokens, self.call.reply_tokens), action)

    def leave(self) -> None:
        """Give back the slot and the model, or the place in line for them; a second time does nothing."""
        if self.over:
            return
        self.over = True
        if self._runner is None:
            self._server.residence.withdraw(self._request)
            return
        if self._work is None or self._hold is None:
            self._runner.slots.give_up(self)
        else:
            machine, batch = self._work
            decoded = machine.remove(batch, self._sequence)
            # Rounded first: 31.999999 tokens are 32.
            self._server.counters.gave_back(self._hold, self._server.agenda.now_s, int(round(decoded, 6)))
            self._runner.slots.give_back()
        self._server.residence.release(self._runner)

    def _take_slot(self, runner: Runner) -> None:
        self._runner = runner
        self.loaded_s = self._server.agenda.now_s
        runner.slots.take(self, lambda: self._start(runner))

    def _start(self, runner: Runner) -> None:
        self.started_s = self._server.agenda.now_s
        self._hold = Hold(self.call.model, self.started_s)
        waited_s = self.started_s - self.loaded_s
        self._server.counters.took(self._hold, load_wait_s=self.load_s, slot_wait_s=waited_s)
        machine, batch = self._work = self._server.workplace(runner)
        machine.add(batch, self._sequence)
        self._started()

    def _decode(self) -> None:
        self.decoding_s = self._server.agenda.now_s

    def _end(self) -> None:
        self.due_s = self._server.agenda.now_s
        self.leave()


class Server:
    """The parts that every call goes through, on one agenda.

    Args:
        agenda: whose time all of them follow.
        pace: how long everything takes.
        limits: what the server's environment sets.
        models: the models that are here, by full name.
        counters: are told what happens.
    """

    def __init__(
        self, *, agenda: Agenda, pace: Pace, limits: Limits, models: Mapping[str, Model], counters: Counters
    ) -> None:
        self.agenda = agenda
        self.counters = counters
        self.residence = Residence(agenda=agenda, pace=pace, limits=limits, models=models, counters=counters)
        self._pace = pace
        self._machine = Machine(agenda)

    def begin(self, call: Call, *, started: Action, arrived_s: float | None = None) -> Turn:
        """Let a call in.

        Args:
            call: what it asks for.
            started: is called when it holds a slot.
            arrived_s: when it came; now when left out.

        Raises:
            ApiError: there is no room for the request, or none for the model.
        """
        now_s = self.agenda.now_s
        turn = Turn(call, now_s if arrived_s is None else min(arrived_s, now_s), self, started)
        turn.begin()
        return turn

    def workplace(self, runner: Runner) -> tuple[Machine, Batch]:
        """Where a call is worked on: with the model's other calls, or alone where nothing is shared."""
        if self._pace.profile.shared:
            return self._machine, runner.batch
        return Machine(self.agenda), Batch(self._pace, runner.options.num_batch)
