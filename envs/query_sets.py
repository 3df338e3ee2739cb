"""A run's queries: the flags that name them, the sides of their split, and their record.

Annotations here are types, not strings: commands read flags off them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from envs.queries import Chat, Query, answers_of, chats_of, guards_of, load_queries
from envs.query_files import SIDES, QueryFileError, read_table
from records.errors import UserError, as_user_error
from records.settings import Share, Whole
from scorers.answers import MEASURES, check_answers


class QuerySplitError(UserError, ValueError):
    """Queries cannot be split as asked."""


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
    answer_column: str | None = None
    """The column of right answers, which the rewards exact, number, choice, f1 and contains compare
    with [answer or answers]."""
    held_out: Share = 0.3
    """Share of the queries kept away from training."""
    split_seed: Whole = 0
    """Decides which queries those are."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GuardQueries:
    """The guard queries: those that ought to be refused, however they are reworded."""

    guard_queries: str | None = None
    """A file of queries that ought to be refused, of any kind that --queries takes."""
    guard_column: str | None = None
    """The column that holds them [found by its name]."""
    guard_where: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Of them, keep rows with column=value (repeatable, all must hold)."""


@dataclass(frozen=True, kw_only=True)
class QuerySet:
    """The queries on either side of the split, in the order of their file; guard queries last."""

    train: tuple[Query, ...]
    held_out: tuple[Query, ...]
    kept: tuple[Query, ...] = ()
    """Those of the training side that nothing is learned from: the gain is measured on them."""

    @property
    def answers(self) -> dict[str, tuple[str, ...]]:
        """The right answers of each query that has any, by its text."""
        return answers_of((*self.train, *self.held_out, *self.kept))

    def record(self) -> dict[str, Any]:
        """The queries.json of a run: `recorded_queries` reads it, and `--queries` takes it."""
        queries = (*self.train, *self.held_out, *self.kept)
        sides = {side: [query.text for query in getattr(self, side)] for side in SIDES}
        return sides | {
            "groups": _groups_of(queries),
            "categories": categories_of(queries),
            "chats": {text: _messages(chat) for text, chat in chats_of(queries).items()},
            "answers": self.answers,
            "guards": [query.text for query in queries if query.is_guard],
        }


def categories_of(queries: Iterable[Query]) -> dict[str, str]:
    """What reports group a query by, for each that has a group, or else a category."""
    return {query.text: query.category for query in queries if query.category} | _groups_of(queries)


def recorded_queries(path: Path) -> QuerySet:
    """The queries of the run whose queries.json this is, on the sides that they were on.

    Raises:
        UserError: it is damaged.
    """
    table = read_table(path)
    column = str(table.find("side of the run", (), "--resume"))
    sides = {row: cells[column] for row, cells in table.rows([column])}
    queries = load_queries(path)
    return QuerySet(**{s: tuple(q for q in queries if sides[q.row] == s) for s in SIDES})


def load_query_set(
    config: QueryConfig, reward: str = "refusal", guard: Sequence[Query] = ()
) -> QuerySet:
    """Read and split the queries, and the guard queries that are learned from likewise.

    Raises:
        UserError: they cannot be read, or not be split, or one has no right answer that a reply can
            give, where the reward compares replies with right answers; or one is a guard query,
            too.
    """
    try:
        queries = load_queries(
            config.queries,
            prompt_column=config.prompt_column,
            where=config.where,
            group_column=config.group_column,
            answer_column=config.answer_column,
        )
    except QueryFileError as error:
        raise QueryFileError(f"--queries: {error}") from error
    if reward in MEASURES:
        place = config.queries or "the bundled set"
        if not any(query.answers for query in queries):
            raise UserError(
                f"{place} has no right answers, which --reward {reward} compares replies with; "
                "expected a column 'answer' or 'answers': name it with --answer-column"
            )
        with as_user_error(ValueError):
            rows = [(query.row, query.answers) for query in queries]
            check_answers(rows, MEASURES[reward], place, f"--reward {reward}")
    check_no_guard(queries, guard, "--queries")
    train, held_out = split_queries(queries, held_out=config.held_out, split_seed=config.split_seed)
    known = guards_of(queries)
    if guard := [query for query in guard if query.text not in known]:
        sides = split_queries(guard, held_out=config.held_out, split_seed=config.split_seed)
        train, held_out = (*train, *sides[0]), (*held_out, *sides[1])
    return QuerySet(train=train, held_out=held_out)


def read_guard(config: GuardQueries, group_column: str | None = None) -> tuple[Query, ...]:
    """The guard queries, in the order of their file; none where no file is named.

    Raises:
        UserError: the file, a column or a filter is no good, or stands without a file.
    """
    if config.guard_queries is None:
        if config.guard_column is not None or config.guard_where:
            raise UserError(
                "--guard-column and --guard-where are for a file of --guard-queries: name one"
            )
        return ()
    try:
        queries = load_queries(
            config.guard_queries,
            prompt_column=config.guard_column,
            where=config.guard_where,
            group_column=group_column,
        )
    except QueryFileError as error:
        text = str(error).replace("--prompt-column", "--guard-column")
        raise UserError(f"--guard-queries: {text.replace('--where', '--guard-where')}") from error
    return tuple(replace(query, is_guard=True) for query in queries)


def check_no_guard(queries: Iterable[Query], guard: Sequence[Query], where: str) -> None:
    """Check that no query is a guard query, too; raises UserError."""
    guarded = {query.text for query in guard}
    if both := [each.text for each in queries if each.text in guarded and not each.is_guard]:
        raise UserError(
            f"{len(both)} of the {len(guard)} guard queries stand among the queries of {where}, "
            f"too, such as {both[0]!r}: a query ought to be answered or to be refused; take it out "
            "of one of them"
        )


def split_queries(
    queries: Sequence[Query], *, held_out: float = 0.3, split_seed: int | str = 0
) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    """The queries for training and those held out, both in the order given.

    A hash of `split_seed` and the query's group decides: other queries do not move it, a group
    stays whole, and a larger share only adds to the queries held out. `held_out` is the share of
    groups (0 to 1) held out on average; 0 holds out none.

    Raises:
        QuerySplitError: the share is not between 0 and 1, or one of the two sides is empty.
    """
    if not 0 <= held_out <= 1:
        raise QuerySplitError(f"--held-out is {held_out!r}; expected a share between 0 and 1")
    sides: tuple[list[Query], list[Query]] = ([], [])
    for query in queries:
        group = f"{split_seed}:{query.group}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(group, digest_size=6).digest()
        # 48 bits are exact in a float: the quotient never rounds up to 1.
        sides[int.from_bytes(digest, "big") / 2**48 < held_out].append(query)
    train, held = map(tuple, sides)
    if not train or (held_out > 0 and not held):
        raise QuerySplitError(
            f"no query is {'held out' if train else 'left for training'} (--held-out {held_out}, "
            f"--split-seed {split_seed}, {len({query.group for query in queries})} groups); "
            "bring more queries or change a flag"
        )
    return train, held


def keep_queries(queries: QuerySet, config: QueryConfig, share: float) -> QuerySet:
    """The same with this share of the training side kept from learning; groups stay whole.

    Raises:
        UserError: no query is kept, or none is left to learn from.
    """
    if not share:
        return queries
    # By hashes of their own: what is left of another run's split can be split again.
    sides = [
        [query for query in queries.train if query.is_guard == is_guard]
        for is_guard in (False, True)
    ]
    seed = f"kept {config.split_seed}"
    try:
        splits = [split_queries(side, held_out=share, split_seed=seed) for side in sides if side]
        train, kept = (tuple(chain.from_iterable(each)) for each in zip(*splits, strict=True))
    except QuerySplitError:
        raise UserError(
            f"--kept {share:g} of {len(queries.train)} training queries keeps none, or leaves none "
            "to learn from: bring more queries, or change it"
        ) from None
    return replace(queries, train=train, kept=kept)


def _groups_of(queries: Iterable[Query]) -> dict[str, str]:
    return {query.text: query.group for query in queries if query.group != query.text}


def _messages(chat: Chat) -> list[dict[str, str]]:
    """A chat as messages, which `load_queries` reads."""
    turns = [("system", chat.system or "")]
    for user, assistant in chat.turns:
        turns += [("user", user), ("assistant", assistant)]
    return [{"role": role, "content": content} for role, content in turns if content]
