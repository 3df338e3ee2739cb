"""What share of each mutator's rewordings is adopted, and why not the others, on a model of yours.

python -m benchmarks.rewordings --ollama-host URL --model NAME --queries FILE --out OUT.jsonl

Every mutator rewords the same sampled queries once, as the first step of an episode would. Whether
what is adopted asks for the same is for a person to say: `--out` has all rewordings for reading.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.reporting import table
from envs.episode import Episode, Rules, begin_together, derive_seed, reword_together
from envs.models import ModelCalls, Models
from envs.queries import load_queries
from mutators.mutator import Mutator
from mutators.registry import DEFAULT_MUTATORS, load_mutators
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from scorers.intent import INTENT_THRESHOLD, similarity
from scorers.reward import make_scorer

JOINED = "paraphrase"
"""The mutator whose rewordings are what `crossover` joins a query with."""


@dataclass(frozen=True, kw_only=True)
class Reworded:
    """One rewording, and why it is not adopted: the episode's reason, `unchanged` or `failed`."""

    mutator: str
    query: str
    text: str
    rejected: str
    similarity: float


def reword(
    models: ModelCalls,
    mutator: Mutator,
    queries: Sequence[str],
    earlier: Mapping[str, str],
    in_flight: int,
) -> list[Reworded]:
    """The first step of an episode of each query, up to its rewording.

    Args:
        models: what is asked.
        mutator: rewords them.
        queries: N of them.
        earlier: a rewording of before, where a query has one.
        in_flight: the most calls at once.
    """
    rules = Rules(mutators=(mutator,), intent_threshold=INTENT_THRESHOLD)
    episodes = [
        Episode(
            rules=rules,
            original=query,
            seed=derive_seed(mutator.name, query),
            number=0,
            earlier=(earlier[query],) if query in earlier else (),
        )
        for query in queries
    ]
    begin_together(episodes, models)
    rewordings = reword_together(episodes, [0] * len(queries), models, in_flight)
    done = []
    for query, embedding, made in zip(queries, models.embed(queries), rewordings, strict=True):
        near = 0.0
        if not made.error and not isinstance(embedding, Exception):
            near = round(similarity(embedding, made.embedding), 3)
        unchanged = "unchanged" if made.rewrite.text == query else ""
        done.append(
            Reworded(
                mutator=mutator.name,
                query=query,
                text="" if made.error else made.rewrite.text,
                rejected="failed" if made.error else made.rejected or unchanged,
                similarity=near,
            )
        )
    return done


def rows(done: Sequence[Reworded]) -> list[dict[str, Any]]:
    """For each mutator the share that is adopted, and the shares of what is not by reason."""
    reasons = sorted({each.rejected for each in done} - {""})
    found = []
    for name in (*dict.fromkeys(each.mutator for each in done), "all"):
        mine = Counter(each.rejected for each in done if name in {each.mutator, "all"})
        shares = {why or "adopted": round(mine[why] / mine.total(), 3) for why in ("", *reasons)}
        found.append({"mutator": name, "rewordings": mine.total()} | shares)
    return found


def main() -> int:
    """Reword, print the table, write the rewordings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewordings")
    parser.add_argument("--ollama-host", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--queries", required=True, help="a file of queries")
    parser.add_argument("--where", action="append", default=[], help="keep rows with column=value")
    parser.add_argument("--number", type=int, default=50, help="queries")
    parser.add_argument("--mutators", default=",".join(DEFAULT_MUTATORS))
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for all rewordings, as JSON lines")
    given = parser.parse_args()
    texts = [query.text for query in load_queries(given.queries, where=tuple(given.where))]
    queries = random.Random(given.seed).sample(texts, min(given.number, len(texts)))
    mutators = load_mutators(given.mutators.split(","))
    earlier: dict[str, str] = {}
    done: list[Reworded] = []
    with Dispatcher([given.ollama_host]) as dispatcher:
        models = ModelCalls(
            models=Models(target=given.model, mutator=given.model, options={"num_predict": 512}),
            dispatcher=dispatcher,
            encoder=make_encoder(given.encoder, dispatcher),
            scorer=make_scorer("keyword"),
        )
        for mutator in sorted(mutators, key=lambda mutator: mutator.name == "crossover"):
            made = reword(models, mutator, queries, earlier, given.in_flight)
            if mutator.name == JOINED:
                earlier = {each.query: each.text for each in made if not each.rejected}
            done += made
    print(table(rows(done)))
    if given.out:
        lines = [json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in done]
        given.out.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
