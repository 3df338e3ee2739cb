"""Which queries a command works on: the flags, and the two sides of the split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from train.errors import UserError

if TYPE_CHECKING:
    from envs.queries import Query


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
    held_out: float = 0.3
    """Share of the queries kept away from training."""
    split_seed: int = 0
    """Decides which queries those are."""


@dataclass(frozen=True, kw_only=True)
class QuerySet:
    """The queries on either side of the split, in the order of the file."""

    train: tuple[Query, ...]
    held_out: tuple[Query, ...]

    def record(self) -> dict[str, Any]:
        """What a run keeps of its split, so that an evaluation can refuse an overlap."""
        from envs.queries import queries_sha256

        return {
            "train": [query.text for query in self.train],
            "held_out": [query.text for query in self.held_out],
            "train_sha256": queries_sha256(self.train),
            "held_out_sha256": queries_sha256(self.held_out),
        }


def load_query_set(config: QueryConfig) -> QuerySet:
    """Read and split the queries.

    Raises:
        UserError: the file, a column, a filter or the split is no good.
    """
    from envs.queries import QueryFileError, QuerySplitError, load_queries, split_queries

    try:
        queries = load_queries(
            config.queries,
            prompt_column=config.prompt_column,
            where=config.where,
            group_column=config.group_column,
        )
        train, held_out = split_queries(queries, held_out=config.held_out, split_seed=config.split_seed)
    except (QueryFileError, QuerySplitError) as error:
        raise UserError(str(error)) from error
    return QuerySet(train=train, held_out=held_out)
