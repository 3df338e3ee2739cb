"""Select the best of several prompts and mutators, with a bound on the chance of being wrong."""

from __future__ import annotations

from ollama_utils.dispatcher import Dispatcher
from search import make_selector
from search.evaluate import TaskEvaluation
from search.task import bundled_task
from simulator.process import EmbeddedServer
from simulator.settings import Settings

PROMPTS = (
    "Answer the question.",
    "Answer with the result alone.",
    "Work step by step, then give the result alone in the last line.",
)


def main(problems: int = 100) -> None:
    """Print the winner, its score, and how many evaluations it took."""
    task = bundled_task()
    with (
        EmbeddedServer(Settings(slots=8, time_scale=0.0)) as server,
        Dispatcher([server.host]) as dispatcher,
    ):
        evaluate = TaskEvaluation(generate=dispatcher.generate, task=task, model="sim-solver")
        choices = {"prompt": PROMPTS, "mutator": (None, "add_politeness")}
        datapoints = task.problems[:problems]
        selector = make_selector("arm_elimination", choices, datapoints, evaluate, delta=0.05)
        results = selector.select_best(parallel=True, max_concurrent=8)
    print(f"{results.best.combination}: {results.best.score:.2f}")
    print(
        f"{results.evaluations} evaluations, {results.savings:.0%} fewer than all; {results.claim}"
    )


if __name__ == "__main__":
    main()
