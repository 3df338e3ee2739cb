"""What the first reply of a role shows before a run costs: a missing model, a small context."""

from __future__ import annotations

from ollama_utils.dispatcher import Dispatcher
from ollama_utils.errors import ModelMissingError, OllamaError
from ollama_utils.model_client import UNAUTHORIZED, ModelClient
from ollama_utils.types import Call, Completion, Role, short_name
from records.errors import UserError, describe
from records.terminal import write_stderr

_BYTES_A_TOKEN = 4
"""Of English; of other languages a token has fewer, so that more tokens come than are foreseen."""


def check_reply(role: Role, reply: Completion, *, required: bool = True) -> None:
    """Say on stderr what is wrong with the first reply of a role.

    Args:
        role: the model's.
        reply: to its first question.
        required: whether nothing can come of the run without this model.

    Raises:
        UserError: so it is: there is no such model, or the server wants another key.
    """
    error = reply.error
    is_hopeless = isinstance(error, ModelMissingError) or (error and error.status in UNAUTHORIZED)
    if required and is_hopeless:
        raise UserError(str(error))
    if error:
        write_stderr(f"the first call to the {role} failed: {describe(error)}")
    elif reply.truncated and role == "mutator":
        write_stderr(
            "the first rewording was cut, so it is not adopted: raise --rewrite-num-predict"
        )


def check_context(dispatcher: Dispatcher, call: Call, reply: Completion, longest: str) -> None:
    """Say so on stderr if the longest prompt and its reply exceed the context that is in force.

    Args:
        dispatcher: of the call.
        call: the first one, by which the model is loaded.
        reply: to it.
        longest: what another call asks in place of its prompt.
    """
    first_tokens = reply.usage.prompt_tokens if reply.usage else 0
    more_bytes = len(longest.encode()) - (len(call.prompt.encode()) if first_tokens else 0)
    tokens = first_tokens + more_bytes // _BYTES_A_TOKEN
    most = dispatcher.with_defaults(call).options["num_predict"]
    for server in dispatcher.servers.all:
        context = context_of(server.client, call.model)
        if context and tokens + most > context:
            write_stderr(
                f"the longest query makes a prompt of some {tokens:,} tokens; with a reply of up "
                f"to {most:,} it exceeds the context of {short_name(call.model)!r} at "
                f"{server.host} ({context:,}): {server.client.larger_context}, or lower "
                "--num-predict"
            )


def context_of(client: ModelClient, model: str) -> int | None:
    """How many tokens prompt and reply of a model may have; None where its server does not say."""
    try:
        contexts = client.contexts()
    except OllamaError:  # which the calls will show
        return None
    by_name = {short_name(name): context for name, context in contexts.items()}
    return by_name.get(short_name(model))
