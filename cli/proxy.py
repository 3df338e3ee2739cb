"""Serve a model with the last user message reworded as a trained policy does.

    mutagym proxy runs/train-20260101-120000-0 --ollama-host http://127.0.0.1:11434
    OLLAMA_HOST=http://127.0.0.1:11435 ollama run llama3.2

It speaks Ollama's API and OpenAI's, passes on what is no chat, and asks the server for the user's own model.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from envs.mission import MissionConfig, RewordingConfig
from evaluation.single_queries import open_source, query_context, query_episode
from evaluation.trained_policy import RunSource
from ollama_utils.connect import Connection, ServerConfig, connect, hosts_named
from ollama_utils.hosts import is_loopback, parse_host, parse_openai_host, server_url, speaks_openai
from ollama_utils.threads import start_thread
from ollama_utils.types import is_text
from records.errors import UserError, as_user_error
from records.settings import Seed
from records.terminal import one_line, printable, write_stderr

if TYPE_CHECKING:
    from evaluation.episodes import EpisodeContext
    from ollama_utils.proxy import ProxyRewording, Reword

MOST_CHARS = 10_000
"""Characters of a text that is reworded: a longer one is a document, and no question that policies know."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """Where the proxy listens, and what it does."""

    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 11435
    """TCP port of 127.0.0.1; 0 takes a free one."""
    passthrough: Annotated[bool, Parameter(negative="")] = False
    """Reword nothing: everything is passed on as it is."""
    seed: Seed = 0
    """Of rewordings; the same text with the same seed is reworded the same way."""
    rewording: RewordingConfig = field(default_factory=RewordingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


def proxy(run: str, /, *, config: ProxyConfig = ProxyConfig()) -> None:
    """Serve a model with the last user message reworded by a trained policy, until Ctrl-C.

    Args:
        run: The folder of a training run; `run=RUN,sample=true` draws mutations by their probabilities.
            Code, hosts and files that it names have to be named again, or --trust-run uses them.
        config: Where it listens, and what it does.
    """
    from ollama_utils.proxy import ProxyServer

    _check_not_itself(config)
    source = open_source(run, config.rewording)
    source.load()  # what is wrong with it is said before anything is asked
    rewriting = replace(
        config.server,
        target_model=config.server.mutator_model or config.server.target_model,
        judge_model=None,
        call_attempts=1,  # a client waits meanwhile
    )
    with connect(rewriting, named_by="--mutator-model", waits=False) as connection:
        upstream = _only_host(connection)
        reword = None if config.passthrough else _reworder(config, source, connection)
        timeout_s = config.server.call_timeout_s
        with ProxyServer(upstream, reword, port=config.port, timeout_s=timeout_s) as server:
            if connection.simulated:
                print("SIMULATED: these words are the simulator's, not a model's")
            _announce(server.url, upstream, run, passthrough=config.passthrough)
            server.wait()


def _check_not_itself(config: ProxyConfig) -> None:
    """Check that the server is not the proxy: its clients' OLLAMA_HOST may be set here, too.

    Raises:
        UserError: it is.
    """
    for host in hosts_named(config.server):
        with as_user_error(ValueError):
            url = parse_openai_host(host) if speaks_openai(host) else parse_host(host)
        if is_loopback(url) and urlsplit(url).port == config.port:
            raise UserError(
                f"the proxy is to listen at port {config.port}, and {url} is there: it would call itself; "
                "name the model server with --ollama-host, or another --port"
            )


def _only_host(connection: Connection) -> str:
    """The one server that requests are passed on to."""
    hosts = connection.dispatcher.hosts
    if len(hosts) > 1:
        raise UserError(
            f"the proxy stands before one server, got {len(hosts)}: name the one with --ollama-host"
        )
    return hosts[0]


def _reworder(config: ProxyConfig, source: RunSource, connection: Connection) -> Reword:
    """What begins to reword a text.

    Raises:
        UserError: the encoder cannot be used.
    """
    rewording = {each.name: getattr(config.rewording, each.name) for each in fields(RewordingConfig)}
    mission = MissionConfig(**rewording, reward="keyword")  # no answer is scored: it loads no classifier
    context = query_context(mission, connection, ["a query"], config.seed)

    def reword(text: str) -> Future[ProxyRewording]:
        future: Future[ProxyRewording] = Future()
        start_thread(partial(_settle, future, context, source, text))
        return future

    return reword


def _settle(future: Future[ProxyRewording], context: EpisodeContext, source: RunSource, text: str) -> None:
    """Give a future the rewording of a text."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(_reworded(context, source, text))
    except BaseException as error:  # noqa: BLE001 - raised to whoever asks the future
        future.set_exception(error)


def _reworded(context: EpisodeContext, source: RunSource, text: str) -> ProxyRewording:
    """A text reworded as the first step of `mutagym ask` does, tried once."""
    from envs.queries import VISIBLE
    from ollama_utils.proxy import ProxyRewording

    unfit = "blank" if not VISIBLE.search(text) else "not Unicode" if not is_text(text) else ""
    unfit = unfit or ("too long" if len(text) > MOST_CHARS else "")
    if unfit:
        return ProxyRewording(text=text, why=unfit)
    episode, policy = query_episode(context, source, text)
    episode.begin(attempts=1)
    if episode.is_over:
        write_stderr(f"not reworded: {one_line(episode.attempts[-1])}")
        return ProxyRewording(text=text, why="failed")
    view = episode.view()
    action = policy.step(view)
    made = episode.reword(action)
    if made.error:
        write_stderr(f"not reworded: {one_line(f'{type(made.error).__name__}: {made.error}')}")
    why = "failed" if made.error else made.rejected or ("unchanged" if made.query == text else "")
    return ProxyRewording(text=text if why else made.query, mutator=view.mutators[action], why=why)


def _announce(url: str, upstream: str, run: str, *, passthrough: bool) -> None:
    does = "passes everything on as it is" if passthrough else f"rewords as {run} does"
    base_url = f"base_url={url}/v1"
    use = base_url if speaks_openai(upstream) else f"OLLAMA_HOST={url} or {base_url}"
    print(printable(f"a proxy of {server_url(upstream)} {does}: use {use} (Ctrl-C ends it)"), flush=True)
