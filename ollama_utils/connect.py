"""How a command gets its models: the flags of the server, an open connection, the roles, the kept replies.

`ServerConfig` names hosts and models. `connect` opens the dispatcher to them, with the embedded simulator
where it is named or nothing is, and checks that the models are there. `Roles` are the models that play the
target, the mutator and the judge. `keep_replies` writes every reply into the run's folder and into the
cache that runs share.

Commands' settings inherit `ServerConfig`. Hence annotations here are types, not strings, for the flags are
read off them in other modules.
"""

import contextlib
import difflib
import math
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ollama_utils.errors import NotInLogError
from ollama_utils.findings import Findings
from ollama_utils.hosts import LISTED, OPENAI, expand_hosts, server_url, speaks_openai
from ollama_utils.model_client import ModelClient
from ollama_utils.reply_log import CACHE, ReplyLog
from ollama_utils.types import (
    CALL_ATTEMPTS,
    CALL_TIMEOUT_S,
    MAX_OUTAGE_S,
    MAX_REPLY_CHARS,
    Call,
    Completion,
    Embeddings,
    short_name,
)
from records.errors import UserError, as_user_error
from records.settings import Count, CountOrZero, absolute
from records.terminal import write_stderr
from simulator.settings import WORLDS, Settings, SimulatedServer

if TYPE_CHECKING:
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.ray_client import RayEngine
    from simulator.process import ChildServer, EmbeddedServer

EMBEDDED, SMOLLM2 = "embedded", "smollm2"
CHILDREN = (EMBEDDED, SMOLLM2)
"""Hosts that are no URL: servers that a command starts for itself."""
_SLOW_S = 5.0
"""How long a list of models is waited for without a word."""
_NAME_CHARS, _LIST_CHARS = 200, 2000
"""What is shown of a name, and of a list of names."""
_TEXT_CHARS = 60
"""What is quoted of a call that no log has a reply to."""
_MOST_ASKED = 32
"""Of no more models is asked whether they only embed."""
DRAIN_S = 5.0
"""How long a command that was stopped waits for the replies under way, which are paid for."""


def _auto_or_count(_type: Any, tokens: Sequence[Any]) -> int | Literal["auto"]:  # noqa: ANN401 - cyclopts' signature
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
    """The simulator; for `--ollama-host embedded` alone, but for the slots, which `smollm2` has too."""

    slots: Count = SimulatedServer.slots
    """Calls one model serves at once (OLLAMA_NUM_PARALLEL); also those of `--ollama-host smollm2`."""
    time_scale: float = 0.1
    """1 is 4 ms a token; the default is ten times faster, 0 answers at once."""
    max_loaded_models: CountOrZero = SimulatedServer.max_loaded_models
    """Models in memory at once (OLLAMA_MAX_LOADED_MODELS); 0 sets no limit."""

    def __str__(self) -> str:
        slots = "1 slot" if self.slots == 1 else f"{self.slots} slots"
        return (
            f"{slots} a model, world {self.world}, {self.reply_tokens} tokens a reply, "
            f"at {self.time_scale:g} of 4 ms a token"
        )

    def settings(self) -> Settings:
        """The simulator's own settings.

        Raises:
            UserError: one of them is invalid.
        """
        with as_user_error(ValueError):
            return Settings(**asdict(self))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The server and its models."""

    ollama_host: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """URL of an Ollama server (repeatable); `openai:URL` for an OpenAI-compatible one (llama.cpp, vLLM, ...);
    `@FILE` for those in a file, one a line, which join and leave the running job as the file changes;
    `smollm2` for a small real model that is started here; `embedded` for the simulator
    [OLLAMA_HOST, else embedded]."""
    target_model: str | None = None
    """The model whose answers count [the only one that is pulled; where there are several, name it]."""
    mutator_model: str | None = None
    """The model that rewords queries or prompts [the target model]."""
    judge_model: str | None = None
    """The model that judges answers, where one is asked: --reward judge, --intent-judge, --critic llm or both
    [none; the embedded simulator's own]."""
    max_in_flight: MaxInFlight = "auto"
    """Calls in flight at once, per server and model: a number, or `auto`: its slots as measured and more."""
    call_timeout_s: Annotated[float, Parameter(validator=Number(gt=0, lte=86400))] = CALL_TIMEOUT_S
    """Seconds after which one call is given up, its wait in the server's queue left out; where replies take
    seconds, since its last word."""
    call_attempts: Count = CALL_ATTEMPTS
    """How often a failing call is tried."""
    max_outage: Annotated[float, Parameter(validator=Number(gt=0))] = MAX_OUTAGE_S
    """Seconds for which an outage of all servers is waited out; then the run ends, saved (exit code 3)."""
    max_reply_chars: Count = MAX_REPLY_CHARS
    """Characters of a reply that are kept; a longer one is cut, and flagged as by --num-predict."""
    engine: Literal["threads", "ray"] = "threads"
    """What makes the calls: threads of this process, or a Ray actor for each server, on its machine."""
    ray_address: str | None = None
    """The Ray cluster, such as `auto` or `ray-head:6379` [RAY_ADDRESS, else one of this machine alone]."""
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)

    def located(self) -> "ServerConfig":
        """The same with absolute paths."""
        simulator = self.simulator
        world = (
            simulator.world if simulator.world in WORLDS else str(Path(simulator.world).absolute())
        )
        found = replace(simulator, world=world, faults=absolute(simulator.faults))
        return replace(self, simulator=found, ollama_host=tuple(map(_located, self.ollama_host)))


def _located(host: str) -> str:
    """A host as it was named; a file of hosts by its absolute path."""
    return f"{LISTED}{absolute(host.removeprefix(LISTED))}" if host.startswith(LISTED) else host


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which model plays which part."""

    target: str
    mutator: str
    judge: str | None


class NoModelNamedError(UserError):
    """The hosts have several models that could be the target, and none is named.

    Args:
        said: the message.
        one: one of the models.
    """

    def __init__(self, said: str, one: str) -> None:
        super().__init__(said)
        self.one = one


def find_roles(
    config: ServerConfig,
    available: Sequence[str],
    hosts: Sequence[str],
    *,
    simulated_target: str | None,
    named_by: str = "--target-model",
    completes: Callable[[str], bool],
) -> Roles:
    """The models named by flag; the simulator's own where it stands in, else the only one that there is.

    Args:
        config: names them.
        available: what the hosts have.
        hosts: for the error.
        simulated_target: the target where none is named; None where no simulator stands in.
        named_by: the flag that names a target.
        completes: whether a model writes replies, and does not only embed.

    Raises:
        UserError: one is not pulled; or none is named, and there are several, or none.
    """
    named = (config.target_model, config.mutator_model, config.judge_model)
    target = (
        config.target_model or simulated_target or _only_one(available, hosts, named_by, completes)
    )
    simulated = simulated_target is not None
    mutator = config.mutator_model or ("sim-mutator" if simulated else target)
    judge = config.judge_model or ("sim-judge" if simulated else None)
    check_pulled((target, mutator, *filter(None, named)), available, hosts, simulated=simulated)
    return Roles(target=target, mutator=mutator, judge=judge)


def _only_one(
    available: Sequence[str], hosts: Sequence[str], named_by: str, completes: Callable[[str], bool]
) -> str:
    """The one model there that can be a target, where no other can: those that only embed are left out.

    Raises:
        NoModelNamedError: there are several.
        UserError: there is none.
    """
    asked = len(available) <= _MOST_ASKED
    able = [short_name(name) for name in available if not asked or completes(name)]
    if len(able) == 1:
        return able[0]
    where = ", ".join(hosts)
    if able:
        such = f"{named_by} {able[0][:_NAME_CHARS]}"
        said = f"name a model, as in {such}; {where} has {len(able)}: {_some(able)}"
        raise NoModelNamedError(said, able[0])
    embed = f", but {_some(available)}, which only embeds" if available else ""
    pull = "" if any(map(_is_openai, hosts)) else ": get one with 'ollama pull MODEL'"
    raise UserError(f"{where} has no model that writes replies{embed}{pull}")


def _is_openai(host: str) -> bool:
    """Whether a host, as it is named, is an OpenAI-compatible server."""
    return host == SMOLLM2 or speaks_openai(host)


def check_pulled(
    models: Sequence[str], available: Sequence[str], hosts: Sequence[str], *, simulated: bool
) -> None:
    """Check that the hosts have these models.

    Raises:
        UserError: one is not there.
    """
    pulled = set(map(short_name, available))
    for model in models:
        if short_name(model) not in pulled:
            near = difflib.get_close_matches(short_name(model), map(short_name, available), n=1)
            mends = [f"did you mean {near[0]!r}?"] if near else []
            pulls = not simulated and not any(map(_is_openai, hosts))
            if pulls:
                mends.append(f"{'if not, ' if near else ''}run 'ollama pull {model}'")
            elif not near:
                mends.append(f"it has {_some(available)}")
            is_not = "is not pulled at" if pulls or simulated else "is not at"
            raise UserError(f"model {model!r} {is_not} {', '.join(hosts)}: {' '.join(mends)}")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An open dispatcher, the models' parts, and the simulator when there is one."""

    dispatcher: "Dispatcher"
    hosts: tuple[str, ...]
    """As they were named: by flag, by OLLAMA_HOST, `smollm2` or `embedded`; those of a file one by one."""
    named: tuple[str, ...]
    """The same with the file in place of its hosts."""
    roles: Roles
    available: Mapping[str, Sequence[str]]
    """The digests of each model at the hosts, by its name without `:latest`."""
    child: "ChildServer | None"
    """The server that was started for this command: the embedded simulator, or SmolLM2's."""
    simulated: bool
    """Whether the figures come from the simulator, the embedded one or that of `mutagym serve`."""
    simulated_target: str | None
    """The target where none is named; None where the embedded simulator does not stand in."""

    @property
    def embedded(self) -> "EmbeddedServer | None":
        """The embedded simulator, where it was started."""
        from simulator.process import EmbeddedServer

        return self.child if isinstance(self.child, EmbeddedServer) else None

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers by names that stay: one that is started here has another port each time."""
        return self.hosts if self.child else self.dispatcher.hosts

    def findings(self, lanes: int, *, apart_s: float = 0.0) -> Findings:
        """What there will be to say of the servers' slots: the simulator's are known, others' are found out.

        Args:
            lanes: environments that run side by side.
            apart_s: see `Findings`.
        """
        slots = self.embedded.settings.slots if self.embedded else None
        of_each = math.ceil(lanes / len(self.servers))
        return Findings(of_each, self.slots_setting, apart_s=apart_s, slots=slots)

    @property
    def slots_setting(self) -> str:
        """What gives the servers more slots, up to their number; of several kinds, the first's."""
        if self.child:
            return "--slots "
        return "--parallel " if speaks_openai(self.hosts[0]) else "OLLAMA_NUM_PARALLEL="

    def digests(self, encoder: str, *more: str) -> dict[str, str]:
        """What stands for the weights of each model that a run calls, by its short name.

        Args:
            encoder: the run's.
            more: models that play no part in `roles`.

        Raises:
            UserError: the hosts have different versions of one: the result would depend on who answers.
        """
        embeds = encoder.removeprefix("ollama:") if encoder.startswith("ollama:") else None
        called = (self.roles.target, self.roles.mutator, self.roles.judge, embeds, *more)
        found = {
            name: self.available.get(name, ("",)) for name in map(short_name, filter(None, called))
        }
        for name, there in found.items():
            if len(set(there)) > 1:
                which = (
                    f"{digest[:12]} at {host}"
                    for digest, host in zip(there, self.hosts, strict=True)
                )
                raise UserError(
                    f"model {name!r} is not the same at all hosts ({', '.join(which)}): "
                    "pull one version everywhere"
                )
        return {name: there[0] for name, there in found.items()}

    def roles_of(self, config: ServerConfig) -> Roles:
        """The models that another config names at these hosts.

        Raises:
            UserError: one is not pulled, or none is named.
        """
        return find_roles(
            config,
            list(self.available),
            self.hosts,
            simulated_target=self.simulated_target,
            completes=self.dispatcher.completes,
        )

    def check_pulled(self, models: Sequence[str]) -> None:
        """Check that models that play no part in `roles` are at the hosts.

        Raises:
            UserError: one is not.
        """
        check_pulled(models, list(self.available), self.hosts, simulated=self.embedded is not None)

    def resolve(self, config: ServerConfig) -> "ServerConfig":
        """The config with the hosts and models that were chosen for what it left open."""
        return replace(
            config,
            ollama_host=self.named,
            target_model=self.roles.target,
            mutator_model=self.roles.mutator,
            judge_model=self.roles.judge,
        )


@contextlib.contextmanager
def connect(
    config: ServerConfig,
    *,
    cache_size: int = 65536,
    simulated_target: str = "sim-target",
    named_by: str = "--target-model",
    waits: bool = True,
) -> Iterator[Connection]:
    """Open the server(s), check that they have the models, and close everything at the end.

    Args:
        config: the servers and their models.
        cache_size: replies that are remembered.
        simulated_target: the target where the embedded simulator stands in, and none is named.
        named_by: the flag that names a target.
        waits: whether calls wait for a server that is away, up to `max_outage`; else each fails on its own.

    Raises:
        UserError: no server, no such model, no model named.
    """
    from ollama_utils.errors import OllamaError, ServerUnreachableError
    from simulator.process import is_simulator

    with contextlib.ExitStack() as stack:
        named = _hosts(config)
        with as_user_error(ValueError):
            hosts = tuple(expand_hosts(named))
        child = (
            stack.enter_context(_child(hosts[0], config.simulator))
            if hosts[0] in CHILDREN
            else None
        )
        try:
            engine = stack.enter_context(_engine(config))
            dispatcher = stack.enter_context(
                _dispatcher(config, named, hosts, child, cache_size, engine, waits)
            )
            with _told_when_slow(hosts, config.call_timeout_s):
                available = dispatcher.models()
            stand_in = simulated_target if hosts[0] == EMBEDDED else None
            roles = find_roles(
                config,
                list(available),
                hosts,
                simulated_target=stand_in,
                named_by=named_by,
                completes=dispatcher.completes,
            )
        except ServerUnreachableError as error:
            raise UserError(f"{error}{_meant(hosts)}") from error
        except (OllamaError, ValueError) as error:
            raise UserError(str(error)) from error
        if not (config.target_model or stand_in):
            role = named_by.removeprefix("--").replace("-", " ")
            _say(f"{role}: {roles.target}, the only one at {', '.join(hosts)}")
        is_simulated = engine.is_simulator if engine else is_simulator
        yield Connection(
            dispatcher=dispatcher,
            hosts=hosts,
            named=named,
            roles=roles,
            available={short_name(name): digests for name, digests in available.items()},
            child=child,
            simulated=any(is_simulated(server_url(host)) for host in dispatcher.hosts),
            simulated_target=stand_in,
        )


def _engine(config: ServerConfig) -> contextlib.AbstractContextManager["RayEngine | None"]:
    """What `--engine` names, joined; None: threads of this process need nothing."""
    if config.engine == "threads":
        return contextlib.nullcontext()
    from ollama_utils.ray_client import joined_ray

    return joined_ray(config.ray_address)


def _dispatcher(
    config: ServerConfig,
    named: Sequence[str],
    hosts: Sequence[str],
    child: "ChildServer | None",
    cache_size: int,
    engine: "RayEngine | None",
    waits: bool,  # noqa: FBT001 - as `connect` has it
) -> "Dispatcher":
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.wires import open_client

    urls = {EMBEDDED: "{}", SMOLLM2: f"{OPENAI}{{}}/v1"}
    dispatcher = Dispatcher(
        [urls[host].format(child.host) if child else host for host in hosts],
        max_in_flight=config.max_in_flight,
        attempts=config.call_attempts,
        timeout_s=config.call_timeout_s,
        cache_size=cache_size,
        max_outage_s=config.max_outage if waits else None,
        ensure_running=child.ensure_running if child else lambda: None,
        hosts_now=None if tuple(named) == tuple(hosts) else partial(expand_hosts, named),
        report=_say,
        max_reply_chars=config.max_reply_chars,
        opener=engine.open_client if engine else open_client,
    )
    if engine:
        engine.start()
        _say(engine.placement())
    return dispatcher


@contextlib.contextmanager
def _told_when_slow(hosts: Sequence[str], most_s: float) -> Iterator[None]:
    """Within `with`: one line says what is waited for, if it takes long."""
    line = (
        f"waiting for {_some(hosts)} to list its models, for up to {most_s:g} s (--call-timeout-s)"
    )
    timer = threading.Timer(_SLOW_S, _say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _some(names: Sequence[str]) -> str:
    """Names by comma, as many as are read: a server may list any number, of any length."""
    return textwrap.shorten(
        ", ".join(name[:_NAME_CHARS] for name in names), _LIST_CHARS, placeholder=" …"
    )


def _say(line: str) -> None:
    """A line on stderr; a progress bar that is there moves down for it."""
    write_stderr(line)


def hosts_named(config: ServerConfig) -> tuple[str, ...]:
    """The hosts named by flag, else by OLLAMA_HOST; none where neither is there."""
    found = os.environ.get("OLLAMA_HOST")
    return config.ollama_host or ((found,) if found else ())


def _hosts(config: ServerConfig) -> tuple[str, ...]:
    """The hosts that are named, else the simulator, and then loudly."""
    hosts = hosts_named(config)
    if not hosts:
        print(
            "SIMULATED: no --ollama-host and no OLLAMA_HOST, so the embedded simulator stands in for a "
            f"model; its figures say nothing about a real one ({config.simulator})",
            file=sys.stderr,
        )
        return (EMBEDDED,)
    unset = type(config.simulator)
    slots = config.simulator.slots if SMOLLM2 in hosts else unset.slots
    if EMBEDDED not in hosts and config.simulator != unset(slots=slots):
        write_stderr(
            f"note: {', '.join(hosts)} ignores what is set for the embedded simulator, here or in a run"
        )
    for child in set(hosts) & set(CHILDREN):
        if len(hosts) > 1:
            raise UserError(
                f"--ollama-host {child} cannot stand beside other hosts, got {', '.join(hosts)}"
            )
    return hosts


def _meant(hosts: Sequence[str]) -> str:
    """A hint where nobody answers and a host looks like one of our own words, mistyped."""
    named = (host.lower() for host in hosts if host not in CHILDREN)
    near = [word for host in named for word in difflib.get_close_matches(host, CHILDREN)]
    return f"; did you mean {near[0]!r}?" if near else ""


def _child(host: str, config: SimulatorConfig) -> "ChildServer":
    """The server that a word for one means, started."""
    from simulator.process import ChildError

    with as_user_error(ChildError):
        if host == SMOLLM2:
            from ollama_utils.smollm2 import SmolLM2Server

            return SmolLM2Server(config.slots)
        from simulator.process import EmbeddedServer

        return EmbeddedServer(config.settings())


def keep_replies(
    replies: ReplyLog | None,
    cache: Path | None,
    connection: Connection,
    digests: Mapping[str, str],
    stack: ExitStack,
) -> None:
    """Keep every reply from now on, and ask nothing that the run's log or the cache knows.

    Args:
        replies: the run's log, which `stack` closes; None: there is none.
        cache: a folder that runs share; None: there is none.
        connection: whose replies.
        digests: for each model that is called, what stands for its weights.
        stack: closes the files, once the replies under way have had some time to come.

    Raises:
        ReplyLogError: a file cannot be made, or is no log.
    """
    logs = [replies] if replies else []
    if cache:
        servers = ",".join(sorted(connection.servers))
        shared = ReplyLog(cache / CACHE, digests=digests, scope=servers)
        logs.append(stack.enter_context(shared))
    connection.dispatcher.keep_in(*logs)
    stack.callback(connection.dispatcher.drain, DRAIN_S)


class LogClient(ModelClient):
    """Stands where a server's client would: whatever reaches it has no reply in the log.

    Args:
        host: the name in messages.
        digests: what stands for the weights of each model, by its name.
    """

    def __init__(self, host: str, digests: Mapping[str, str]) -> None:
        self.host = host
        self._digests = dict(digests)

    def generate(
        self, call: Call, *, stream: bool = False, timeout_s: float | None = None
    ) -> Completion:
        """Raises NotInLogError, which names the call."""
        del stream, timeout_s
        raise _not_in_log(call.model, call.prompt)

    def embed(
        self, model: str, texts: Sequence[str], *, timeout_s: float | None = None
    ) -> Embeddings:
        """Raises NotInLogError, which names the first text."""
        del timeout_s
        raise _not_in_log(model, texts[0])

    def models(self) -> dict[str, str]:
        """The models of the run."""
        return dict(self._digests)

    def abort(self) -> None:
        """There is no call under way."""

    def close(self) -> None:
        """There is nothing to close."""


def _not_in_log(model: str, text: str) -> NotInLogError:
    start = text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"
    return NotInLogError(f"replies.sqlite has no reply to this call to model {model!r}: {start!r}")


@contextlib.contextmanager
def connect_to_log(
    config: ServerConfig, digests: Mapping[str, str], *, simulated: bool
) -> Iterator[Connection]:
    """A connection that sends nothing: a call whose reply no log holds fails with NotInLogError.

    Args:
        config: names the models, as the config.toml of a run does; its hosts do not count.
        digests: what stands for the weights of each model that the run called, by its short name.
        simulated: whether the replies are the simulator's.

    Raises:
        UserError: no target or no mutator is named.
    """
    from ollama_utils.dispatcher import Dispatcher

    if not config.target_model or not config.mutator_model:
        raise UserError(
            "the run's config.toml names no target-model or no mutator-model: no run wrote it"
        )
    host = "the log of replies"
    with Dispatcher([host], opener=lambda host, **_: LogClient(host, digests)) as dispatcher:
        yield Connection(
            dispatcher=dispatcher,
            hosts=(host,),
            named=(),
            roles=Roles(
                target=config.target_model, mutator=config.mutator_model, judge=config.judge_model
            ),
            available={name: (digest,) for name, digest in digests.items()},
            child=None,
            simulated=simulated,
            simulated_target=None,
        )
