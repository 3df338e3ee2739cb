"""How a command gets its models: the server's flags, an open connection, the roles, kept replies.

`ServerConfig` names hosts and models. `connect` opens the dispatcher to them, with the embedded
simulator where it is named or nothing is, and checks that the models are there. `keep_replies` has
every reply written into the run's folder and into the cache that runs share.

Annotations here are types, not strings: commands read their flags off them.
"""

import contextlib
import difflib
import os
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ollama_utils.hosts import EMBEDDED, GGUF, OPENAI, is_child, server_url, speaks_openai
from ollama_utils.reply_log import CACHE, ReplyLog
from ollama_utils.thoughts import read_marks
from ollama_utils.types import (
    CALL_ATTEMPTS,
    CALL_TIMEOUT_S,
    MAX_OUTAGE_S,
    MAX_REPLY_CHARS,
    MEMORY_BYTES,
    THINK_BUDGET,
    ThinkWord,
    short_name,
    think_of,
)
from records.errors import UserError, as_user_error
from records.settings import Count, CountOrZero, NotNegative, Positive, absolute
from records.terminal import counted, write_stderr
from simulator.settings import WORLDS, Settings, SimulatedServer

if TYPE_CHECKING:
    from ollama_utils.dispatcher import Dispatcher
    from simulator.process import ChildServer, EmbeddedServer

SLOW_S = 5.0
"""Seconds for which a list of models is waited for without a word."""
MOST_ASKED = 32
"""The target is found only among so many models: each is asked whether it does more than embed."""
DRAIN_S = 5.0
"""How long a command that was stopped waits for the replies under way, which are paid for."""


def _auto_or_count(_type: object, tokens: Sequence[Any]) -> int | Literal["auto"]:
    """A whole number above 0, or the word."""
    value = str(tokens[0].value)
    if value == "auto":
        return "auto"
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"expected 'auto' or a whole number above 0, got {value!r}")
    return int(value)


MaxInFlight = Annotated[int | Literal["auto"], Parameter(converter=_auto_or_count, n_tokens=1)]


@Parameter(name="*", group="Simulator")
@dataclass(frozen=True, kw_only=True)
class SimulatorConfig(SimulatedServer):
    """The simulator, for `--ollama-host embedded`; a GGUF file has the slots, too."""

    slots: Count = SimulatedServer.slots
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL), also of `smollm2` and `gguf:`."""
    time_scale: NotNegative = 0.1
    """1 is 4 ms a token; the default is ten times faster, 0 answers at once."""
    load_s: NotNegative = SimulatedServer.load_s
    """Seconds that a model takes to load, at a time scale of 1."""
    max_loaded_models: CountOrZero = SimulatedServer.max_loaded_models
    """Models in memory at once (OLLAMA_MAX_LOADED_MODELS); 0 sets no limit."""

    def __str__(self) -> str:
        return (
            f"{counted(self.slots, 'slot')} a model, world {self.world}, "
            f"{self.reply_tokens} tokens a reply, at {self.time_scale:g} of 4 ms a token"
        )

    def settings(self) -> Settings:
        """The simulator's own settings; raises UserError where one is invalid."""
        with as_user_error(ValueError):
            return Settings(**asdict(self))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The server and its models."""

    ollama_host: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """URL of an Ollama server (repeatable); `openai:URL` for an OpenAI-compatible one (llama.cpp,
    vLLM, ...); `gguf:PATH` for a model's file, which is served here, and `smollm2` for a small one
    that can be installed; `embedded` for the simulator [OLLAMA_HOST, else embedded]."""
    target_model: str | None = None
    """The model whose answers count [the only one that is pulled; of several, name one]."""
    mutator_model: str | None = None
    """The model that rewords queries or prompts [the target model]."""
    judge_model: str | None = None
    """The model that judges answers, where one is asked: --reward judge, --intent-judge, --critic
    llm or both [none; the embedded simulator's own]."""
    max_in_flight: MaxInFlight = "auto"
    """Calls in flight at once, per server and model: a number, or `auto`: its slots as measured
    and more."""
    call_timeout_s: Annotated[float, Parameter(validator=Number(gt=0, lte=86400))] = CALL_TIMEOUT_S
    """Seconds after which one call is given up, its wait in the server's queue left out; where
    replies take seconds, since its last word."""
    call_attempts: Count = CALL_ATTEMPTS
    """How often a failing call is tried."""
    max_outage: Positive = MAX_OUTAGE_S
    """Seconds for which an outage of all servers is waited out; then the run ends, saved (exit
    code 3)."""
    max_reply_chars: Count = MAX_REPLY_CHARS
    """Characters of a reply that are kept; a longer reply is cut, and flagged as one that was cut
    at --num-predict is."""
    mutator_think: ThinkWord = "off"
    """Whether, or how much, a model thinks that rewords queries or prompts."""
    judge_think: ThinkWord = "off"
    """Likewise one that judges or criticises, and one of `-p llm:`."""
    think_budget: CountOrZero = THINK_BUDGET
    """Tokens of thoughts, beside those of the answer, wherever a model is to think."""
    thought_marks: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """What opens and closes thoughts in a reply (repeatable), as '<musing>...</musing>', beside the
    marks that are known."""
    request_field: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """For an OpenAI-compatible server (repeatable): FIELD=NAME sends a field of a request by
    another name, FIELD= leaves it out, system=user puts a system prompt into the user's message,
    response_format=json_object asks for JSON without a schema [what the server refuses is found
    out]."""
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)

    def located(self) -> "ServerConfig":
        """The same with absolute paths."""
        world, faults = self.simulator.world, absolute(self.simulator.faults)
        if world not in WORLDS:
            world = str(Path(world).absolute())
        return replace(self, simulator=replace(self.simulator, world=world, faults=faults))


def _located(host: str) -> str:
    """The host with its file's absolute path, where it names one."""
    path = host.removeprefix(GGUF)
    return host if path == host else f"{GGUF}{Path(path).absolute()}"


def hosts_named(config: ServerConfig) -> tuple[str, ...]:
    """The hosts named by flag, else by OLLAMA_HOST; none where neither is there."""
    found = os.environ.get("OLLAMA_HOST")
    return tuple(map(_located, config.ollama_host or ((found,) if found else ())))


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which model plays which part."""

    target: str
    mutator: str
    judge: str | None


NO_ROLES = Roles(target="", mutator="", judge=None)


class NoModelNamedError(UserError):
    """The hosts have several models that could be the target, such as `one`, and none is named."""

    def __init__(self, message: str, one: str) -> None:
        super().__init__(message)
        self.one = one


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An open dispatcher, the models' parts, and the server that was started for it, if one was."""

    dispatcher: "Dispatcher"
    hosts: tuple[str, ...]
    """As they were named, by flag or by OLLAMA_HOST."""
    roles: Roles = NO_ROLES
    available: Mapping[str, Sequence[str]]
    """The digests of each model at the servers, by its name without `:latest`."""
    child: "ChildServer | None" = None
    """The server that was started for this command: the embedded simulator, or a GGUF file's."""
    simulated: bool
    """Whether the figures come from the simulator, the embedded one or that of `mutagym serve`."""
    simulated_target: str | None = None
    """The target where none is named; None where the embedded simulator does not stand in."""
    is_guess: bool = False
    """Whether the target is the first of several models, none of which was named."""
    cache_scope: str = ""
    """The servers whose replies a cache may give."""

    @property
    def embedded(self) -> "EmbeddedServer | None":
        """The embedded simulator, where it was started."""
        from simulator.process import EmbeddedServer

        return self.child if isinstance(self.child, EmbeddedServer) else None

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers by names that stay: one that is started here has another port each time."""
        return self.hosts if is_child(self.hosts[0]) else self.dispatcher.hosts

    @property
    def slots_setting(self) -> str:
        """What gives the servers more slots, up to their number; of several kinds, the first's."""
        if is_child(self.hosts[0]):
            return "--slots "
        return "--parallel " if speaks_openai(self.hosts[0]) else "OLLAMA_NUM_PARALLEL="

    def digests(self, encoder: str, *more: str) -> dict[str, str]:
        """What stands for the weights of the models of `roles`, an encoder's, and more, by name.

        Raises:
            UserError: the servers have different versions of one, so that the result would depend
                on who answers.
        """
        embeds = encoder.removeprefix("ollama:") if encoder.startswith("ollama:") else None
        called = (self.roles.target, self.roles.mutator, self.roles.judge, embeds, *more)
        digests = {}
        for name in map(short_name, filter(None, called)):
            at_servers = self.available.get(name, ("",))
            if len(set(at_servers)) > 1:
                pairs = zip(at_servers, self.dispatcher.hosts, strict=True)
                which = ", ".join(f"{digest[:12]} at {host}" for digest, host in pairs)
                raise UserError(
                    f"model {name!r} is not the same at all hosts ({which}): "
                    "pull one version everywhere"
                )
            digests[name] = at_servers[0]
        return digests

    def roles_of(self, config: ServerConfig, named_by: str = "--target-model") -> Roles:
        """The models that a config names at these hosts; else the simulator's, or the only one.

        Raises:
            UserError: there is no such model, or none is named by the flag `named_by`.
        """
        stand_in = self.simulated_target
        target = config.target_model or stand_in or self._only_model(named_by)
        mutator = config.mutator_model or ("sim-mutator" if stand_in else target)
        judge = config.judge_model or ("sim-judge" if stand_in else None)
        self.check_pulled([target, mutator, *filter(None, [config.judge_model])])
        return Roles(target=target, mutator=mutator, judge=judge)

    def _only_model(self, named_by: str) -> str:
        """The one model that can be a target, those that only embed left out."""
        able, where = list(self.available), ", ".join(self.hosts)
        if len(able) <= MOST_ASKED:
            able = list(filter(self.dispatcher.servers.all[0].client.completes, able))
        if len(able) == 1:
            return able[0]
        if self._is_open:
            raise UserError(f"{where} does not list its models: name one with {named_by}")
        if able:
            such = f"name a model, as in {named_by} {able[0]}"
            raise NoModelNamedError(f"{such}; {where} has {len(able)}: {_shorten(able)}", able[0])
        pull = ": get one with 'ollama pull MODEL'" if self._can_pull else ""
        raise UserError(f"{where} has no model that writes replies{pull}")

    def check_pulled(self, models: Sequence[str]) -> None:
        """Raise a UserError where the hosts do not have one of these models."""
        missing = [model for model in models if short_name(model) not in self.available]
        if not missing or self._is_open:
            return
        model, where = missing[0], ", ".join(self.hosts)
        near = difflib.get_close_matches(short_name(model), self.available, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        if self._can_pull:
            says = f"is not pulled at {where}: run 'ollama pull {model}'"
        else:
            says = f"is not at {where}: it has {_shorten(self.available)}"
        raise UserError(f"model {model!r} {says}{meant}")

    @property
    def _is_open(self) -> bool:
        """Whether the list of a server says nothing, so that whoever names a model is believed."""
        says_nothing = not self.available or any("*" in name for name in self.available)
        return says_nothing and not self._can_pull

    @property
    def _can_pull(self) -> bool:
        """Whether models are got by `ollama pull`: no host is another kind of server."""
        return not any(is_child(host) or speaks_openai(host) for host in self.hosts)

    def resolve(self, config: ServerConfig) -> ServerConfig:
        """The config with hosts, models and dialect where it left them open, as they were found."""
        learned = [
            rule for each in self.dispatcher.servers.all for rule in each.client.request_fields
        ]
        return replace(
            config,
            ollama_host=self.hosts,
            target_model=self.roles.target,
            mutator_model=self.roles.mutator,
            judge_model=self.roles.judge,
            request_field=tuple(dict.fromkeys((*config.request_field, *learned))),
        )

    def for_jobs(self, config: ServerConfig) -> ServerConfig:
        """The config with which jobs connect `at` some of these servers, as Ray tasks do."""
        return replace(self.resolve(config), ollama_host=self.servers)


@contextlib.contextmanager
def connect(
    config: ServerConfig,
    *,
    memory_bytes: int = MEMORY_BYTES,
    simulated_target: str = "sim-target",
    named_by: str = "--target-model",
    waits: bool = True,
    guesses: bool = False,
    at: Sequence[str] = (),
) -> Iterator[Connection]:
    """Open the server(s), check that they have the models, and close everything at the end.

    Args:
        config: the servers and their models.
        memory_bytes: replies that are remembered.
        simulated_target: the target where the embedded simulator stands in, and none is named.
        named_by: the flag that names a target.
        waits: whether calls wait for a server that is away, up to `max_outage`; else each fails on
            its own.
        guesses: whether the first of several models is the target where none is named.
        at: the hosts that are asked, of those of another connection, which stays open: none is
            started. The config is what its `Connection.for_jobs` returned.

    Raises:
        UserError: no server, no such model, no model named.
        OutageError: the hosts `at` were away for longer than `max_outage`.
    """
    from ollama_utils.errors import OllamaError
    from simulator.process import is_simulator

    hosts = _find_hosts(config)
    if config.request_field:
        fields = ", ".join(config.request_field)
        write_stderr(f"note: requests go out with --request-field {fields}")
    with ExitStack() as stack:
        with as_user_error(OllamaError, ValueError):
            child = None
            urls: Sequence[str] = at or hosts
            if is_child(hosts[0]) and not at:
                child = stack.enter_context(_start(hosts[0], config.simulator))
                urls = [child.host if hosts[0] == EMBEDDED else f"{OPENAI}{child.host}/v1"]
            slots = config.simulator.slots if is_child(hosts[0]) else None
            dispatcher = stack.enter_context(
                open_dispatcher(config, urls, child, memory_bytes, waits=waits, slots=slots)
            )
            connection = Connection(
                dispatcher=dispatcher,
                hosts=hosts,
                available=_list_models(dispatcher, config, waits=bool(at)),
                child=child,
                simulated=any(is_simulator(server_url(host)) for host in dispatcher.hosts),
                simulated_target=simulated_target if EMBEDDED in hosts else None,
                cache_scope=",".join(sorted(hosts if at or child else dispatcher.hosts)),
            )
            try:
                roles = connection.roles_of(config, named_by)
                if not (config.target_model or connection.simulated_target):
                    role = named_by.removeprefix("--").replace("-", " ")
                    write_stderr(f"{role}: {roles.target}, the only one at {', '.join(hosts)}")
            except NoModelNamedError as error:
                if not guesses:
                    raise
                connection = replace(connection, is_guess=True)
                roles = connection.roles_of(replace(config, target_model=error.one))
        yield replace(connection, roles=roles)


def _find_hosts(config: ServerConfig) -> tuple[str, ...]:
    """The hosts that are named, else the simulator, and then loudly."""
    hosts = hosts_named(config)
    if not hosts:
        write_stderr(
            "SIMULATED: no --ollama-host and no OLLAMA_HOST, so the embedded simulator stands in "
            f"for a model; its figures say nothing about a real one ({config.simulator})"
        )
        return (EMBEDDED,)
    for child in filter(is_child, hosts):
        if len(hosts) > 1:
            raise UserError(
                f"--ollama-host {child} cannot stand beside other hosts, got {', '.join(hosts)}"
            )
    unset = type(config.simulator)
    slots = config.simulator.slots if is_child(hosts[0]) else unset.slots
    if EMBEDDED not in hosts and config.simulator != unset(slots=slots):
        write_stderr(f"note: {', '.join(hosts)} ignores what is set for the embedded simulator")
    return hosts


def _start(host: str, config: SimulatorConfig) -> "ChildServer":
    """The server that a word for one means."""
    from simulator.process import ChildError, EmbeddedServer

    with as_user_error(ChildError):
        if host == EMBEDDED:
            return EmbeddedServer(config.settings())
        from ollama_utils.gguf import GgufServer

        return GgufServer(host, config.slots)


def open_dispatcher(
    config: ServerConfig,
    urls: Sequence[str],
    child: "ChildServer | None" = None,
    memory_bytes: int = MEMORY_BYTES,
    *,
    waits: bool = True,
    slots: int | None = None,
) -> "Dispatcher":
    """The dispatcher that a config describes, to the servers at these URLs; see `connect`."""
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.wires import open_client

    return Dispatcher(
        urls,
        max_in_flight=None if config.max_in_flight == "auto" else config.max_in_flight,
        attempts=config.call_attempts,
        timeout_s=config.call_timeout_s,
        memory_bytes=memory_bytes,
        max_outage_s=config.max_outage if waits else None,
        ensure_running=child.ensure_running if child else lambda: None,
        report=write_stderr,
        max_reply_chars=config.max_reply_chars,
        think={"mutator": think_of(config.mutator_think), "judge": think_of(config.judge_think)},
        think_budget=config.think_budget,
        opener=partial(
            open_client,
            thought_marks=read_marks(config.thought_marks),
            request_fields=config.request_field,
            report=write_stderr,
        ),
        slots=slots,
    )


def _list_models(
    dispatcher: "Dispatcher", config: ServerConfig, *, waits: bool
) -> dict[str, list[str]]:
    """The models of all servers; a line says what is waited for, if it takes long.

    With `waits`, an outage is waited out, of servers that were there before.
    """
    from ollama_utils.errors import OllamaError, OutageError

    where, most_s = ", ".join(dispatcher.hosts), config.call_timeout_s
    says = f"waiting for {where} to list its models, for up to {most_s:g} s (--call-timeout-s)"
    timer = threading.Timer(SLOW_S, write_stderr, [says])
    timer.daemon = True
    timer.start()
    until_s = time.monotonic() + config.max_outage
    try:
        while True:
            try:
                return dispatcher.servers.models()
            except OllamaError as error:
                if not (waits and error.retryable):
                    raise
                if time.monotonic() >= until_s:
                    away = f"{error}: away for over {config.max_outage:g} s"
                    raise OutageError(away) from error
            time.sleep(1.0)
    finally:
        timer.cancel()


def _shorten(names: Iterable[str]) -> str:
    """Names by comma, as many as are read: a server may list any number."""
    return textwrap.shorten(", ".join(names), 1000, placeholder=" …")


def keep_replies(
    replies: ReplyLog | None,
    cache: Path | None,
    connection: Connection,
    digests: Mapping[str, str],
    stack: ExitStack,
) -> None:
    """Keep every reply from now on, and ask nothing that the run's log or the cache knows.

    Args:
        replies: the run's log, if there is one, which `stack` closes.
        cache: a folder that runs share, if there is one.
        connection: whose replies.
        digests: see `ReplyLog`.
        stack: closes the files, once the replies under way have had some time to arrive.

    Raises:
        ReplyLogError: a file cannot be made, or is no log.
    """
    logs = [replies] if replies else []
    if cache:
        shared = ReplyLog(cache / CACHE, digests=digests, scope=connection.cache_scope)
        logs.append(stack.enter_context(shared))
    connection.dispatcher.keep_in(*logs)
    stack.callback(connection.dispatcher.drain, DRAIN_S)
