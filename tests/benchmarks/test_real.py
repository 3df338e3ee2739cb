"""What the benchmark on a small real model makes of an evaluation's files."""

from __future__ import annotations

from benchmarks.real import TARGETS, Plan, adopted, gains, with_hindsight

(TARGET, _) = TARGETS
AUTO, PPO = (f"{TARGET.name}-{algorithm}-64" for algorithm in ("auto", "ppo"))


def results(successes: dict[str, list[bool]]) -> dict[str, object]:
    """As results.json has them: every policy played as many queries, once each."""
    return {
        "teams": [{"name": name} for name in successes],
        "episodes": [
            {"team": team, "episode": number, "status": "scored", "success": success}
            for team, name in enumerate(successes)
            for number, success in enumerate(successes[name])
        ],
    }


def test_a_difference_is_called_one_only_where_the_adjusted_test_says_so() -> None:
    never, always, half = [False] * 20, [True] * 20, [True, False] * 10
    of_each = {AUTO: half, PPO: never, "noop": never, "best_fixed": always, "linucb": half}
    found = gains(TARGET, {64: results(of_each)})
    verdicts = {row["less"]: row["so"] for row in found.rows if row["policy"] == "auto"}
    assert verdicts == {
        "noop": "**gained**",
        "best_fixed": "**lost**",
        "linucb": "no difference shown",
    }
    (noop, *_) = found.rows
    assert noop["won, lost"] == "10, 0 of 20"
    assert str(noop["success, points"]).startswith("+50.0 [+")
    assert noop["p"] == "0.002"  # 2 of the 2^10 ways that ten coins fall
    assert noop["p (Holm)"] in {"0.009", "0.010"}  # five times: one of the six is smaller


def test_with_hindsight_a_query_counts_where_any_mutator_alone_succeeded() -> None:
    successes = {
        PPO: [True] * 4,
        "noop": [True, False, False, False],
        "fixed:shorten": [True, True, False, False],
        "fixed:expand": [False, False, True, False],
    }
    assert with_hindsight(results(successes))["rate"] == 0.75


def test_each_rewording_counts_once_and_by_the_reason_it_was_not_adopted_for() -> None:
    def step(
        mutator: str, text: str, rejected: str = "", *, unscored: bool = False
    ) -> dict[str, object]:
        return {
            "original_query": "q",
            "query_before": "q",
            "mutator": mutator,
            "mutated_query": text,
            "rejected": rejected,
            "unscored": unscored,
        }

    steps = [
        *[step("shorten", "a")] * 3,
        step("shorten", "b", "answered"),
        step("shorten", "q"),
        step("expand", "c"),
        step("expand", "d", unscored=True),
        step("noop", "q"),
    ]
    rows = {row["mutator"]: row for row in adopted(Plan(targets=(TARGET,)), steps).rows}
    assert rows.keys() == {"shorten", "expand", "all"}
    assert (
        rows["shorten"]["rewordings"],
        rows["expand"]["rewordings"],
        rows["all"]["rewordings"],
    ) == (
        3,
        1,
        4,
    )
    assert str(rows["shorten"]["adopted"]).startswith("33% [")
    assert (rows["all"]["answered %"], rows["all"]["unchanged %"]) == (25, 25)
