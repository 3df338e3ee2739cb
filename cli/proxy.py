"""Serve a model with the last user message reworded as a trained policy does.

    mutagym proxy runs/train-20260101-120000-0 --ollama-host http://127.0.0.1:11434
    OLLAMA_HOST=http://127.0.0.1:11435 ollama run llama3.2

It speaks Ollama's API and OpenAI's, passes on what is no chat, and asks the server for the user's
own model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from envs.mission import MissionConfig, RewordingConfig
from evaluation.single_queries import open_source, query_context, reword_once
from ollama_utils.connect import Connection, ServerConfig, connect, hosts_named
from ollama_utils.hosts import (
    is_child,
    is_loopback,
    parse_host,
    parse_openai_host,
    server_url,
    speaks_openai,
)
from ollama_utils.threads import submit
from records.errors import UserError, as_user_error
from records.settings import Port, Seed
from records.terminal import printable
from scorers.labels import REFUSALS
from scorers.refusal import label_refusal

if TYPE_CHECKING:
    from evaluation.policies import PolicySource
    from ollama_utils.proxy import Reword


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """Where the proxy listens, and what it does."""

    port: Port = 11435
    """TCP port of 127.0.0.1; 0 takes a free one."""
    passthrough: Annotated[bool, Parameter(negative="")] = False
    """Reword nothing: everything is passed on as it is."""
    seed: Seed = 0
    """Seed of rewordings: the same text with the same seed is reworded alike."""
    rewording: RewordingConfig = field(default_factory=RewordingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


def proxy(run: str, /, *, config: ProxyConfig = ProxyConfig()) -> None:
    """Serve a model with the last user message reworded by a trained policy, until Ctrl-C.

    Args:
        run: The folder of a training run; `run=RUN,sample=true` draws mutations by their
            probabilities. Code, hosts and files that it names have to be named again, or
            --trust-run uses them.
        config: Where it listens, and what it does.
    """
    from ollama_utils.proxy import ProxyServer

    _check_not_itself(config)
    source = open_source(run, config.rewording)
    rewriting = replace(
        config.server,
        target_model=config.server.mutator_model or config.server.target_model,
        judge_model=None,
        call_attempts=1,  # a client waits meanwhile
    )
    with connect(rewriting, named_by="--mutator-model", waits=False) as connection:
        hosts = connection.dispatcher.hosts
        if len(hosts) > 1:
            raise UserError(
                f"the proxy stands before one server, got {len(hosts)}: name it with --ollama-host"
            )
        reword = None if config.passthrough else _reworder(config, source, connection)
        timeout_s = config.server.call_timeout_s
        refuses = None if config.rewording.always_reword else _refuses
        with ProxyServer(
            hosts[0], reword, refuses, port=config.port, timeout_s=timeout_s
        ) as server:
            if connection.simulated:
                print("SIMULATED: these words are the simulator's, not a model's")
            rewords = f"rewords {'all' if refuses is None else 'what is refused'} as {run}"
            does = "passes everything on as it is" if config.passthrough else rewords
            base_url = f"base_url={server.url}/v1"
            only = speaks_openai(hosts[0])
            use = base_url if only else f"OLLAMA_HOST={server.url} or {base_url}"
            at = server_url(hosts[0])
            print(printable(f"a proxy of {at} {does}: use {use} (Ctrl-C ends it)"), flush=True)
            while True:
                time.sleep(0.1)


def _check_not_itself(config: ProxyConfig) -> None:
    """Check that the server is not the proxy: its clients' OLLAMA_HOST may be set here, too."""
    for host in hosts_named(config.server):
        if is_child(host):
            continue
        with as_user_error(ValueError):
            url = parse_openai_host(host) if speaks_openai(host) else parse_host(host)
        if is_loopback(url) and urlsplit(url).port == config.port:
            raise UserError(
                f"the proxy is to listen at port {config.port}, and {url} is there: it would call "
                "itself; name the model server with --ollama-host, or another --port"
            )


def _refuses(reply: str) -> bool:
    """Whether a reply refuses, in part or in full."""
    return label_refusal(reply) in REFUSALS


def _reworder(config: ProxyConfig, source: PolicySource, connection: Connection) -> Reword:
    """What begins to reword a text."""
    # No answer is scored: a reward that loads a classifier would do it for nothing.
    own = {each.name: getattr(config.rewording, each.name) for each in fields(RewordingConfig)}
    mission = MissionConfig(**own, reward="keyword")
    context = query_context(mission, connection, ["a query"], config.seed)
    return lambda text: submit(partial(reword_once, context, source, text))
