"""Test whether a server does what a run relies on, by some calls within a bounded time, read-only.

    mutagym doctor --ollama-host http://127.0.0.1:11434 --target-model llama3.2 --num-processes 16
    mutagym doctor --ollama-host openai:http://127.0.0.1:8000/v1 --seconds 30
    mutagym doctor --target-model llama3.2 --mutator-model qwen3:0.6b --encoder
    ollama:nomic-embed-text

There is a row for each thing that a run relies on (`ollama_utils/server_checks.py`): whether it
holds, what was seen, what follows, and what helps. Nothing is pulled, deleted or unloaded; what
will be sent is said before. How fast a run is under each schedule, `mutagym bench` measures.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cyclopts import Parameter

from cli.output import print_tables, write_json
from mutators.registry import load_mutators
from ollama_utils.connect import Connection, NoModelNamedError, ServerConfig, connect, hosts_named
from ollama_utils.parallel import map_parallel
from ollama_utils.server_checks import (
    QUESTIONS,
    STEPS,
    TOKENS,
    ServerUnderTest,
    most_calls,
    rows_of,
    run_checks,
)
from ollama_utils.threads import POLL_S, start_thread
from ollama_utils.types import Call, short_name
from records.errors import UserError
from records.outputs import check_writable
from records.settings import Count, JsonPlace, Lanes, Positive
from records.terminal import write_stderr
from report.table import Table

CLOSE_S = 1.0
"""For how long a connection is waited for to close, once the time is over."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The run that is meant, and for how long its servers may be tested."""

    seconds: Positive = 120
    """The most seconds that it takes in all, connecting included."""
    num_processes: Lanes = 16
    """Lanes of the run."""
    encoder: str = "hashing"
    """Its encoder: the model of `ollama:MODEL` has to stay loaded beside the others."""
    num_ctx: Count | None = None
    """Context length of the models [the server's]."""
    num_predict: Count = 512
    """Most tokens of an answer of the run."""
    json: JsonPlace = None
    """Write the rows here, as JSON; `-` is stdout, in the place of the tables."""
    server: ServerConfig = field(default_factory=ServerConfig)


@dataclass
class Examination:
    """What a thread of its own has found so far: it hangs where a server does."""

    servers: list[ServerUnderTest] = field(default_factory=list)
    unnamed: str | None = None
    """What to name, where models are there and none is named."""
    is_simulated: bool = False
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)


def doctor(config: DoctorConfig = DoctorConfig()) -> None:
    """Test whether a server does what a run relies on."""
    check_writable(config.json)
    began_s, found = time.monotonic(), Examination()
    end_s = began_s + config.seconds
    start_thread(lambda: _find(found, config, end_s))
    while not found.ended.wait(POLL_S) and time.monotonic() < end_s:
        pass
    for server in found.servers:
        server.client.abort()
    found.ended.wait(CLOSE_S)
    if found.error:
        raise found.error
    if not found.servers:
        hosts = ", ".join(hosts_named(config.server)) or "the embedded simulator"
        late = f"{hosts} did not list its models within {config.seconds:g} s"
        raise UserError(f"{late}: allow more (--seconds), or start it anew")
    servers = [{"host": each.name, "rows": rows_of(each)} for each in found.servers]
    calls = {
        "announced": sum(map(most_calls, found.servers)),
        "sent": sum(each.sent for each in found.servers),
    }
    seconds = time.monotonic() - began_s
    report = {"simulated": found.is_simulated, "unnamed": found.unnamed, "servers": servers}
    if not write_json({**report, "calls": calls, "seconds": seconds}, config.json):
        rest = f"the rest needs a model: {found.unnamed}"
        line = rest if found.unnamed else f"{calls['sent']} calls in {seconds:.0f} s"
        print_tables(map(_table, servers), [line], simulated=found.is_simulated)


def _find(found: Examination, config: DoctorConfig, end_s: float) -> None:
    """Connect, say what will be sent, and make the checks at all servers at once."""
    try:
        with _connected(config) as (connection, found.unnamed):
            found.is_simulated = connection.simulated
            servers = _servers(config, connection, end_s, is_named=found.unnamed is None)
            if most := sum(map(most_calls, servers)):
                models, hosts = ", ".join(servers[0].models), ", ".join(connection.servers)
                write_stderr(
                    f"will send {models} at {hosts} at most {most} calls, most of {TOKENS} tokens "
                    f"or less, within {config.seconds:g} s in all (--seconds); nothing is pulled, "
                    "deleted or unloaded"
                )
            found.servers = servers
            map_parallel(run_checks, servers)
    except Exception as error:  # noqa: BLE001 - raised where the command waits
        found.error = error
    finally:
        found.ended.set()


@contextmanager
def _connected(config: DoctorConfig) -> Iterator[tuple[Connection, str | None]]:
    """Within `with`: the open servers, and what to do where models are there and none is named."""
    patience_s = min(config.seconds, config.server.call_timeout_s)
    server = replace(config.server, call_timeout_s=patience_s)
    with ExitStack() as stack:
        try:
            yield stack.enter_context(connect(server, waits=False)), None
        except NoModelNamedError as error:
            named = replace(server, target_model=error.one)
            yield stack.enter_context(connect(named, waits=False)), str(error)


def _servers(
    config: DoctorConfig, connection: Connection, end_s: float, *, is_named: bool
) -> list[ServerUnderTest]:
    """The servers, and the models and calls of the run."""
    roles, hosts = connection.roles, connection.dispatcher.servers.all
    is_embedding = config.encoder.startswith("ollama:")
    embedding = short_name(config.encoder.removeprefix("ollama:")) if is_embedding else None
    connection.check_pulled([embedding] if embedding else [])
    called = (roles.target, roles.mutator, config.server.judge_model, embedding)
    options = {"num_ctx": config.num_ctx} if config.num_ctx else {}
    return [
        ServerUnderTest(
            name=name,
            client=host.client,
            target=roles.target if is_named else None,
            models=tuple(dict.fromkeys(short_name(model) for model in called if model)),
            embedding=embedding,
            options=options,
            available=tuple(connection.available),
            lanes=math.ceil(config.num_processes / len(hosts)),
            slots_setting=replace(connection, hosts=(name,)).slots_setting,
            stated_slots=config.server.simulator.slots if connection.child else None,
            is_simulated=connection.simulated,
            step=_step(config, roles.target, options) if roles.mutator == roles.target else None,
            end_s=end_s,
        )
        for name, host in zip(connection.servers, hosts, strict=False)
    ]


def _step(
    config: DoctorConfig, model: str, options: Mapping[str, Any]
) -> tuple[list[Call], list[Call]]:
    """Rewordings and answers of one model, as the steps of a run ask for them."""
    (mutator,) = load_mutators(["paraphrase"])
    rewordings, answers = [], []
    for text in QUESTIONS[:STEPS]:
        shown, own = mutator.prompt(text, (), 0), {**options, "num_predict": config.num_predict}
        asked = Call(model=model, prompt=shown.text, system=shown.system, examples=shown.examples)
        rewordings.append(replace(asked, options={**own, **shown.options}, think=False))
        answers.append(Call(model=model, prompt=text, options={**own, "temperature": 0}))
    return rewordings, answers


def _table(server: Mapping[str, Any]) -> Table:
    columns = ("what a run relies on", "", "what was seen", "what follows, and what helps")
    rows = [
        (
            each["claim"],
            each["verdict"],
            each["seen"],
            f"{each['follows']}; {each['do']}".strip("; "),
        )
        for each in server["rows"]
    ]
    return Table(caption=server["host"], columns=columns, rows=rows, names=len(columns))
