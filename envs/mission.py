"""A mission: queries, mutators, how the target is called, what an answer is worth.

Annotations here are types, not strings: commands read flags off them.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from cyclopts import Parameter

from envs.query_sets import QueryConfig
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.types import ThinkWord
from records.errors import as_user_error
from records.settings import Count, NotNegative, Share, absolute, comma_list, located_function
from records.trust import kind_of
from scorers.answers import MEASURES
from scorers.intent import INTENT_THRESHOLD

if TYPE_CHECKING:
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import Encoder


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RewordingConfig:
    """How a query is reworded, and when the rewording is adopted."""

    mutators: Annotated[tuple[str, ...], comma_list()] = DEFAULT_MUTATORS
    """Mutators the policy chooses from, by comma; a user's own is `file.py:name`. Also built in,
    but no default: ask_steps, say_harmless, state_purpose, as_steps, as_list, lowercase, typos,
    define_terms, ignore_trigger, keep_original, translate_back."""
    encoder: str = "all-MiniLM-L6-v2"
    """Sentence encoder: a sentence-transformers name or path, `ollama:<model>`, or `hashing`."""
    intent_threshold: Share = INTENT_THRESHOLD
    """Similarity to the original under which a rewording is not adopted; each encoder has its own
    scale."""
    always_reword: Annotated[bool, Parameter(negative="")] = False
    """Reword each query at once [the target is first asked the query as it stands, and only one
    that gets no answer is reworded; not with a reward for right answers]."""
    rewrite_num_predict: Count | None = None
    """Most tokens of a rewording [by its query's length]."""
    num_ctx: Count | None = None
    """Context length of the models [the server's]."""

    def located(self) -> Self:
        """The same with absolute paths."""
        return replace(
            self,
            mutators=tuple(str(located_function(name)) for name in self.mutators),
            encoder=located_folder("encoder", self.encoder),
        )

    def check(self) -> None:
        """Check what can be checked without a server.

        Raises:
            UserError: a mutator is unknown, or its file cannot be used.
        """
        with as_user_error(ValueError):
            load_mutators(self.mutators)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MissionConfig(RewordingConfig):
    """What is played; `ServerConfig` names the models."""

    reward: str = "refusal"
    """What counts as answered: `refusal` (the detector), `judge` (an LLM), `keyword` (smoke test
    only), your own: `file.py:name`, a function (query, reply) -> label or score, or the folder of
    a classifier; or what counts as right by the answers in the file: `exact` (the same words),
    `number`, `choice` (the letter of an option), `f1` (of the words), `contains`."""
    intent_judge: bool = False
    """The judge model also says whether a rewording that was answered asks for the same; not with
    judge."""
    judge_rubric: str | None = None
    """A text file with the meaning of label, score and intent_kept for --reward judge [our
    rubric]."""
    step_cost: NotNegative = 0.05
    """What a step costs."""
    guard_weight: NotNegative = 1.0
    """What it costs if a guard query that ought to be refused is answered once reworded, where
    guard queries are learned from."""
    max_steps: Count = 5
    """Steps after which an unanswered query is given up."""
    target_system: str | None = None
    """The target's system prompt."""
    target_temperature: NotNegative = 0.0
    """The target's temperature."""
    num_predict: Count = 512
    """Most tokens of an answer; one that is cut is flagged."""
    think: ThinkWord | None = None
    """Whether a thinking target thinks, or how much [the server's choice]; thoughts are never
    scored."""
    query_set: QueryConfig = field(default_factory=QueryConfig)

    def located(self) -> Self:
        """The same with absolute paths."""
        return replace(
            super().located(),
            reward=located_folder("reward", str(located_function(self.reward))),
            judge_rubric=absolute(self.judge_rubric),
            query_set=replace(self.query_set, queries=absolute(self.query_set.queries)),
        )

    def without_answers(self, query_set: QueryConfig) -> Self:
        """The same for other queries, to which nobody knows a right answer."""
        if self.reward not in MEASURES:
            return replace(self, query_set=query_set)
        return replace(self, reward="refusal", always_reword=True, query_set=query_set)

    @property
    def asks_first(self) -> bool:
        """Whether a query is first asked as it stands: what is answered wrong looks answered."""
        return not self.always_reword and self.reward not in MEASURES

    @property
    def most_calls_a_step(self) -> int:
        """Calls of a step at most: rewordings, question, verdict and its repair."""
        rewords = max(mutator.calls for mutator in load_mutators(self.mutators))
        return rewords + 1 + 2 * (self.intent_judge or self.reward == "judge")

    def check(self) -> None:
        """Check what can be checked without a server.

        Raises:
            UserError: a mutator or the reward is unknown, or its file cannot be used.
        """
        from scorers.reward import load_reward

        super().check()
        with as_user_error(ValueError):
            load_reward(self.reward)


def return_bounds(
    reward: str, step_cost: float, max_steps: int, guard_weight: float = 0.0
) -> tuple[float, float]:
    """What the return of an episode can be, at least and at most.

    A step pays 1 at most, or costs as much times the weight of guard queries, where there are any.
    An answer ends the episode; a reward of shares may pay before.
    """
    from scorers.reward import SCORERS

    paying = 1 if reward in SCORERS and reward != "f1" else max_steps
    least = -max_steps * step_cost - paying * guard_weight
    return least, max(0.0, 1 - step_cost, paying * (1 - step_cost))


def open_encoder(
    name: str, dispatcher: "Dispatcher | None", cache: Path | None = None
) -> "Encoder":
    """The sentence encoder of a name; its embeddings are kept in the folder `cache`, if any.

    Raises:
        UserError: there is no such encoder, or the cache cannot be used.
    """
    from ollama_utils.encoders import make_encoder
    from ollama_utils.errors import OllamaError
    from ollama_utils.reply_log import CACHE

    with as_user_error(OllamaError, ValueError):
        return make_encoder(name, dispatcher, store=cache / CACHE if cache else None)


def encoder_fingerprint(name: str, encoder: "Encoder") -> dict[str, str]:
    """What identifies an encoder; nothing for a server's model, which has a digest."""
    from ollama_utils.encoders import fingerprint

    return {} if name.startswith("ollama:") else {f"encoder {name}": fingerprint(encoder)}


def located_folder(flag: str, name: str) -> str:
    """A folder with its whole path; a built-in name as it is, whatever folders there are."""
    # os.path.isdir is False, too, for what is too long to be a path.
    is_folder = kind_of(flag, name) is not None and os.path.isdir(name)  # noqa: PTH112
    return str(absolute(name)) if is_folder else name
