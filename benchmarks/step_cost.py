"""What a step of a lane costs in CPU time, with and without the HTTP client and the encoder.

python -m benchmarks.step_cost
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from envs.queries import load_queries
from mutators.registry import load_mutators
from ollama_utils.client import OllamaClient
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import HashingEncoder
from ollama_utils.simulator.process import EmbeddedServer
from ollama_utils.simulator.settings import Settings
from ollama_utils.types import Call
from train.bench import MODEL
from train.bench_environments import World
from train.bench_plan import Setting
from train.bench_rows import Steps, measure

LANES = 32
SLOTS = 8
NUM_STEPS = 16
REPLY_TOKENS = "lognormal:mean=50,sigma=1.0"
TIME_SCALE = 0.25
"""What a step costs does not depend on how long replies take: 50 ms on average here."""
RUNS = 3


def rows(
    *, lanes: int = LANES, num_steps: int = NUM_STEPS, time_scale: float = TIME_SCALE, runs: int = RUNS
) -> list[dict[str, Any]]:
    """One row: CPU milliseconds a step of all threads of this process, medians over runs of different seeds.

    `cpu_ms_per_step` is that of a rollout under `lanes`; `http_cpu_ms_per_step` that of the same requests
    sent right after it by as many threads through a bare client; `encode_cpu_ms_per_step` that of encoding
    the same texts, each once. What is left, `own_cpu_ms_per_step`, is spent by environments, schedule and
    dispatcher.
    """
    settings = Settings(slots=SLOTS, reply_tokens=REPLY_TOKENS, time_scale=time_scale)
    with EmbeddedServer(settings) as server:
        measured = [_measure(server, lanes, num_steps, seed) for seed in range(runs)]
    medians = {key: round(median(each[key] for each in measured), 3) for key in measured[0]}
    steps = {"env_steps": lanes * num_steps, "runs": runs, "simulated": True}
    return [{"num_processes": lanes, "slots": SLOTS} | steps | medians]


def _measure(server: EmbeddedServer, lanes: int, num_steps: int, seed: int) -> dict[str, float]:
    """One run's parts, in milliseconds a step."""
    setting = Setting(schedule="lanes", num_processes=lanes, max_workers=None, seed=seed)
    queries = tuple(query.text for query in load_queries(None))
    world = World(host=server.host, model=MODEL, queries=queries, encoder="hashing", judge=False)
    with Dispatcher([server.host], max_in_flight=max(64, lanes), cache_size=0) as dispatcher:
        row, steps = measure(world, server, dispatcher, setting, num_steps)
    spent_s = _http_cpu_s(server.host, _calls(steps), lanes), _encode_cpu_s(steps)
    http, encoding = (1000 * each / row["env_steps"] for each in spent_s)
    return {
        "cpu_ms_per_step": row["cpu_ms_per_step"],
        "http_cpu_ms_per_step": http,
        "encode_cpu_ms_per_step": encoding,
        "own_cpu_ms_per_step": row["cpu_ms_per_step"] - http - encoding,
    }


def _infos(steps: Steps) -> list[Mapping[str, Any]]:
    return [info for row in steps for info, _ in row]


def _calls(steps: Steps) -> list[Call]:
    """Requests like those of the rollout: for each step a rewrite, which has a seed, and a question."""
    calls = []
    for number, info in enumerate(_infos(steps)):
        mutator = load_mutators([info["mutator"]])[0]
        prompt = mutator.prompt(info["query_before"], [], number)
        calls.append(Call(model=MODEL, prompt=prompt, options={"seed": number, "temperature": 0.8}))
        calls.append(Call(model=MODEL, prompt=info["mutated_query"], options={"seed": 0, "temperature": 0.0}))
    return calls


def _http_cpu_s(host: str, calls: Sequence[Call], threads: int) -> float:
    client = OllamaClient(host)

    def send(mine: Sequence[Call]) -> None:
        for call in mine:
            client.generate(call)

    with ThreadPoolExecutor(threads) as pool:
        spent_s = _cpu_s(lambda: list(pool.map(send, [calls[k::threads] for k in range(threads)])))
    client.close()
    return spent_s


def _encode_cpu_s(steps: Steps) -> float:
    texts = {info[key] for info in _infos(steps) for key in ("original_query", "mutated_query")}
    encoder = HashingEncoder()
    return _cpu_s(lambda: [encoder.encode([text]) for text in texts])


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


if __name__ == "__main__":
    json.dump(rows(), sys.stdout, indent=2)
    print()
