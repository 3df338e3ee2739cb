"""What TensorBoard shows of a training beside its numbers: charts in order, and the queries by meaning.

The charts stand on its page "Custom Scalars", the return first. The page "Projector" has a point for each
training query, placed by its embedding; "Color by" there takes a column of what came of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ollama_utils.batching import batch_encode_queries
from ollama_utils.encoders import Encoder
from records.run_folder import RunFolder
from records.terminal import one_line

MOST_POINTS = 1000
"""Queries that are shown, those that were met most often: TensorBoard sends all of them to the browser."""
COLUMNS = ("query", "outcome", "success", "episodes", "mutator")
"""Of a query: how its last step ended, the share of its episodes that succeeded, and the mutator that most of
these ended with."""
_CONFIG = """embeddings {
  tensor_name: "training queries"
  tensor_path: "queries.tsv"
  metadata_path: "queries-outcomes.tsv"
}
"""

Layout = dict[str, dict[str, tuple[str, list[str]]]]
"""For each group its charts, each with its kind and its tags, as `torch.utils.tensorboard` takes them."""


def layout(mutators: Sequence[str], *, kept: bool) -> Layout:
    """The charts of a training.

    Args:
        mutators: those that the policy chooses from.
        kept: whether the gain is measured, on queries kept from learning.
    """
    gain = {
        "gain over the best fixed mutator": ("Margin", [f"gain/gain{end}" for end in ("", "_low", "_high")])
    }
    rates = ("refusal", "partial_refusal", "undetermined", "filtered", "drifted", "unscored")
    return {
        "Return": {
            "return of an episode": _lines("rollout/ep_rew_mean"),
            **(gain if kept else {}),
            "steps of an episode": _lines("rollout/ep_len_mean"),
        },
        "Outcomes": {
            "success": _lines("rollout/success_rate"),
            "refused, unscored and others": _lines(*(f"outcome/{rate}_rate" for rate in rates)),
        },
        "Mutators": {
            "chosen": _lines(*(f"mutators/{re.escape(name)}" for name in mutators)),
            "rewordings that were not adopted": _lines("rejected/.*"),
        },
        "Reward": {"parts": _lines("reward/.*")},
        "Server": {
            "slots busy": _lines("calls/busy_slots", "calls/slots_.*"),
            "calls and steps a second": _lines("calls/per_s", "time/env_steps_per_s"),
            "wait for a slot, s": _lines("calls/slot_wait_s"),
            "cache hits": _lines("calls/cache_hit_rate"),
        },
        "Learning": {
            "losses": _lines("train/.*loss"),
            "KL divergence": _lines("train/approx_kl"),
            "explained variance": _lines("train/explained_variance"),
        },
    }


def _lines(*tags: str) -> tuple[str, list[str]]:
    """A chart with a line for each tag; these are regular expressions."""
    return "Multiline", list(tags)


class QueryOutcomes:
    """What came of each training query so far."""

    def __init__(self, transitions: Iterable[Mapping[str, Any]]) -> None:
        self._met: Counter[str] = Counter()
        self._successes: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._mutators: dict[str, Counter[str]] = {}
        for line in transitions:
            self._count(line)

    def queries(self) -> list[str]:
        """Those that are shown, the ones met most often first."""
        return [query for query, _ in self._met.most_common(MOST_POINTS)]

    def row(self, query: str) -> tuple[str, ...]:
        """The `COLUMNS` of a query."""
        episodes, successes = self._met[query], self._successes[query]
        best = self._mutators.get(query, Counter()).most_common(1)
        share = f"{successes / episodes:.2f}" if episodes else "0.00"
        return query, self._last[query], share, str(episodes), best[0][0] if best else "none"

    def _count(self, line: Mapping[str, Any]) -> None:
        """Count a line of transitions.jsonl."""
        query = line["original_query"]
        self._met[query] += line["terminated"] or line["truncated"]
        self._last[query] = "undetermined" if line.get("undetermined") else line["outcome"]
        if line["success"]:
            self._successes[query] += 1
            self._mutators.setdefault(query, Counter())[line["mutator"]] += 1


def write_projector(folder: RunFolder, encoder: Encoder) -> None:
    """Write the files that TensorBoard's projector reads; none where no step was made.

    Args:
        folder: the run's.
        encoder: the run's, which has embedded the queries already.

    Raises:
        EncodingError: a query's embedding is not to be had any more.
        OSError: the folder cannot be written.
    """
    outcomes = QueryOutcomes(folder.transitions.read())
    queries = outcomes.queries()
    if not queries:
        return
    rows = (outcomes.row(query) for query in queries)
    folder.write_text("tb/queries.tsv", _tsv(_numbers(batch_encode_queries(encoder, queries))))
    folder.write_text("tb/queries-outcomes.tsv", _tsv([COLUMNS, *rows]))
    folder.write_text("tb/projector_config.pbtxt", _CONFIG)


def _numbers(embeddings: NDArray[Any]) -> Iterable[list[str]]:
    """The rows (N, D) as text: more digits nobody sees."""
    return ([f"{value:.4g}" for value in row] for row in embeddings)


def _tsv(rows: Iterable[Sequence[str]]) -> str:
    return "".join("\t".join(map(one_line, row)) + "\n" for row in rows)
