"""A mission: the queries and their split, the mutators, how the target is called, what an answer is worth.

Commands' settings inherit `MissionConfig`. Hence annotations here are types, not strings, for the flags are
read off them in other modules.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from cyclopts import Parameter

from envs.queries import (
    Query,
    QueryFileError,
    QuerySplitError,
    load_queries,
    load_sides,
    split_queries,
)
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.types import ThinkWord
from records.errors import UserError, as_user_error
from records.settings import Count, NotNegative, Share, Whole, absolute, comma_list
from records.trust import kind_of
from scorers.intent import INTENT_THRESHOLD

if TYPE_CHECKING:
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import Encoder

SAMPLE = "The same text has the same embedding."
"""An encoder is known by how it embeds this."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """The query set and its split."""

    queries: str | None = None
    """A .csv, .tsv, .jsonl, .json, .parquet or .txt file of queries [the bundled set]."""
    prompt_column: str | None = None
    """The column that holds the query [found by its name]."""
    where: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Keep rows with column=value (repeatable, all must hold)."""
    group_column: str | None = None
    """Rows that agree here stay on one side of the split."""
    held_out: Share = 0.3
    """Share of the queries kept away from training."""
    split_seed: Whole = 0
    """Decides which queries those are."""


@dataclass(frozen=True, kw_only=True)
class QuerySet:
    """The queries on either side of the split, in the order of the file."""

    train: tuple[Query, ...]
    held_out: tuple[Query, ...]
    kept: tuple[Query, ...] = ()
    """Those of the training side that a training does not learn from, but measures its gain on."""

    def record(self) -> dict[str, Any]:
        """What a run keeps of its queries: `recorded_queries` reads it, and `--queries` takes it."""
        queries = (*self.train, *self.held_out, *self.kept)
        return {
            "train": [query.text for query in self.train],
            "held_out": [query.text for query in self.held_out],
            **({"kept": [query.text for query in self.kept]} if self.kept else {}),
            "groups": groups_of(queries),
            "categories": categories_of(queries),
        }


def groups_of(queries: Iterable[Query]) -> dict[str, str]:
    """The group of each query that is in one with others, by its text."""
    return {query.text: query.group for query in queries if query.group != query.text}


def categories_of(queries: Iterable[Query]) -> dict[str, str]:
    """What reports count a query by, for each that has such: its group, else its category."""
    return {query.text: query.category for query in queries if query.category} | groups_of(queries)


def recorded_queries(path: Path) -> QuerySet:
    """The queries of the run whose queries.json this is, on the sides that they were on.

    Raises:
        UserError: it is damaged.
    """
    with as_user_error(QueryFileError):
        return QuerySet(**load_sides(path))


def load_query_set(config: QueryConfig) -> QuerySet:
    """Read and split the queries.

    Raises:
        UserError: the file, a column, a filter or the split is no good.
    """
    with as_user_error(QueryFileError, QuerySplitError):
        queries = load_queries(
            config.queries,
            prompt_column=config.prompt_column,
            where=config.where,
            group_column=config.group_column,
        )
        train, held_out = split_queries(queries, held_out=config.held_out, split_seed=config.split_seed)
    return QuerySet(train=train, held_out=held_out)


def keep_queries(queries: QuerySet, config: QueryConfig, share: float) -> QuerySet:
    """The same with this share of the training side kept from learning; no group is parted.

    Raises:
        UserError: no query is kept, or none is left to learn from.
    """
    if not share:
        return queries
    # One hash places all groups, and the held out ones lie before the others: those kept come next.
    below = config.held_out + share * (1 - config.held_out)
    try:
        train, kept = split_queries(queries.train, held_out=below, split_seed=config.split_seed)
    except QuerySplitError:
        raise UserError(
            f"--kept {share:g} of {len(queries.train)} training queries keeps none, or leaves none to learn "
            "from: bring more queries, or change it"
        ) from None
    return replace(queries, train=train, kept=kept)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RewordingConfig:
    """How a query is reworded, and when the rewording is adopted."""

    mutators: Annotated[tuple[str, ...], comma_list()] = DEFAULT_MUTATORS
    """Mutators the policy chooses from, by comma; a user's own is `file.py:name`."""
    encoder: str = "all-MiniLM-L6-v2"
    """Sentence encoder: a sentence-transformers name or path, `ollama:<model>`, or `hashing`."""
    intent_threshold: Share = INTENT_THRESHOLD
    """Similarity to the original under which a rewording is not adopted; each encoder has its own scale.
    Where a model leaves out words of the original, more is asked of it: .8 at .5, .88 at .7, nothing at 0."""
    rewrite_num_predict: Count | None = None
    """Most tokens of a rewording [by its query's length]."""
    num_ctx: Count | None = None
    """Context length of the models [the server's]."""

    def located(self) -> Self:
        """The same with absolute paths, so that its file means the same in every folder."""
        return replace(
            self,
            mutators=tuple(map(_located, self.mutators)),
            encoder=located_folder("encoder", self.encoder),
        )

    def check(self) -> None:
        """Check what can be checked without a server.

        Raises:
            UserError: a mutator is unknown, or its file is no good.
        """
        with as_user_error(ValueError):
            load_mutators(self.mutators)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MissionConfig(RewordingConfig):
    """What is played; which models play it stands in `ServerConfig`."""

    reward: str = "refusal"
    """What counts as answered: `refusal` (the detector), `judge` (an LLM), `keyword` (smoke test only), or
    your own: `file.py:name`, a function (query, reply) -> label or score, or the folder of a classifier."""
    intent_judge: bool = False
    """The judge model also says whether a rewording that was answered asks for the same; not with judge."""
    judge_rubric: str | None = None
    """A text file: what --reward judge is to mean by label, score and intent_kept [our rubric]."""
    step_cost: NotNegative = 0.05
    """What a step costs."""
    max_steps: Count = 5
    """Steps after which an unanswered query is given up."""
    target_system: str | None = None
    """The target's system prompt."""
    target_temperature: NotNegative = 0.0
    """The target's temperature."""
    num_predict: Count = 512
    """Most tokens of an answer; one that is cut is flagged."""
    think: ThinkWord | None = None
    """Whether a thinking target thinks, or how much [the server's choice]; thoughts are never scored."""
    query_set: QueryConfig = field(default_factory=QueryConfig)

    def located(self) -> Self:
        """The same with absolute paths, so that its file means the same in every folder."""
        return replace(
            super().located(),
            reward=located_folder("reward", _located(self.reward)),
            judge_rubric=absolute(self.judge_rubric),
            query_set=replace(self.query_set, queries=absolute(self.query_set.queries)),
        )

    @property
    def most_calls_a_step(self) -> int:
        """Calls of a step at most, without those that embed: rewording, question, verdict and its repair."""
        rewords = any(mutator.kind == "model" for mutator in load_mutators(self.mutators))
        return rewords + 1 + 2 * (self.intent_judge or self.reward == "judge")

    def check(self) -> None:
        """Check what can be checked without a server.

        Raises:
            UserError: a mutator or the reward is unknown, or its file is no good.
        """
        from scorers.reward import check_reward

        super().check()
        with as_user_error(ValueError):
            check_reward(self.reward)


def open_encoder(name: str, dispatcher: "Dispatcher | None", cache: Path | None = None) -> "Encoder":
    """The sentence encoder of a name; what it encodes is kept in the folder `cache`, if there is one.

    Raises:
        UserError: there is no such encoder, or the cache cannot be used.
    """
    from ollama_utils.encoders import make_encoder
    from ollama_utils.errors import OllamaError
    from ollama_utils.reply_log import CACHE

    with as_user_error(OllamaError, ValueError):
        return make_encoder(name, dispatcher, store=cache / CACHE if cache else None)


def encoder_fingerprint(name: str, encoder: "Encoder") -> dict[str, str]:
    """What identifies an encoder, by its name; one of a server's models has that model's digest instead."""
    if name.startswith("ollama:"):
        return {}
    return {f"encoder {name}": sha256(encoder.encode([SAMPLE]).tobytes()).hexdigest()}


def _located(name: str) -> str:
    """`mine.py:shout` with its file's whole path; any other name as it is."""
    file, colon, of_it = name.rpartition(":")
    return f"{absolute(file)}:{of_it}" if colon else name


def located_folder(flag: str, name: str) -> str:
    """A folder with its whole path; a name of ours as it is, also where there is a folder of that name."""
    return str(absolute(name)) if kind_of(flag, name) and Path(name).is_dir() else name
