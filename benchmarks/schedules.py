"""How fast each schedule plays the same steps, and where a step's CPU time goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.results import LOGNORMAL, MODEL, Check, Table, at_least, at_most, mutagym, run
from envs.queries import load_queries
from mutators.registry import model_mutators
from ollama_utils.batching import batch_query_target_model
from ollama_utils.dispatcher import Dispatcher
from ollama_utils.encoders import make_encoder
from simulator.process import EmbeddedServer
from simulator.settings import Settings

ABOUT = """\
Simulated: the server is the embedded simulator, a process of its own that speaks Ollama's HTTP API
over loopback and takes 4 ms a token in each of its slots. Replies have
`lognormal:mean=50,sigma=1.0` tokens: a call holds a slot for 200 ms on average, and some for
seconds. A step makes two calls, a rewording and a question, to one model. Mutators by rule and the
cache of replies are left out, so every schedule has the same calls to make; actions are random, and
the same under every schedule.

*Equal transitions* says whether a row made the same steps, with the same texts, as the first row of
its seed. *Slots busy* is counted by the server. What is idle under lanes is the end of the rollout,
when some lanes have made their steps and others have not. CPU time is that of mutagym's threads and
worker processes."""
LANES, SLOTS = 16, 8
OTHERS = {"phased": 1.6, "gym-async": 1.4, "sb3-subproc": 1.4}
"""What lanes are compared with, and how many times as fast they are to be."""


def measure(*, quick: bool) -> Iterator[Table | Check]:
    """All tables."""
    yield from time_schedules(*((4, 1, 0.1) if quick else (32, 3, 1.0)))
    yield from time_ppo(*((64, 0.005) if quick else (1024, 0.05)))
    yield from time_evaluation(*((4, 0.1) if quick else (40, 1.0)))
    yield from split_cpu(*((4, 0.1) if quick else (16, 1.0)))


def time_schedules(num_steps: int, seeds: int, time_scale: float) -> Iterator[Table | Check]:
    """The same rollout under each schedule."""
    rows = mutagym(
        "bench",
        ollama_host="embedded",
        schedules=",".join(["sequential", "lanes", *OTHERS]),
        num_processes=LANES,
        slots=SLOTS,
        num_steps=num_steps,
        seeds=seeds,
        reply_tokens=LOGNORMAL,
        time_scale=time_scale,
    )
    rows = [row for row in rows if row["seed"] is not None]
    columns = {
        "schedule": "schedule",
        "seed": "seed",
        "env_steps": "steps",
        "env_steps_per_s": "steps/s",
        "slot_utilisation": "slots busy",
        "cpu_ms_per_step": "CPU ms a step",
        "memory_mib": "MiB",
        "equal_transitions": "equal transitions",
    }
    yield Table(
        title=f"Schedules: {LANES} lanes on {SLOTS} slots",
        about=(
            "`mutagym bench`. `phased` is a barrier after each phase; `gym-async` is Gymnasium's "
            "AsyncVectorEnv and `sb3-subproc` SB3's SubprocVecEnv, the same environments in "
            f"{LANES} processes with a barrier after each step; `lanes` has one barrier, at the "
            "end. Making and resetting the environments is not timed."
        ),
        rows=[{title: row[key] for key, title in columns.items()} for row in rows],
    )
    pace = {(row["schedule"], row["seed"]): row["env_steps_per_s"] for row in rows}
    for schedule, times in {"sequential": 7.0, **OTHERS}.items():
        ratios = [pace["lanes", seed] / pace[name, seed] for name, seed in pace if name == schedule]
        yield at_least(f"steps/s of lanes over {schedule}, median", times, median(ratios))
    busy = [row["slot_utilisation"] for row in rows if row["schedule"] == "lanes"]
    yield at_least("slots busy under lanes, median", 0.85, median(busy))
    yield at_most("rows with other transitions", 0, sum(not r["equal_transitions"] for r in rows))


class SlowCartPole(gymnasium.Wrapper[NDArray[np.float32], int, NDArray[np.float32], int]):
    """A CartPole whose steps take lognormal times with sigma 1, as those of a model do."""

    def __init__(self, lane: int, mean_s: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._chance, self._median_s = np.random.default_rng(lane), mean_s / np.exp(0.5)

    def step(self, action: int) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """The environment's own step, later."""
        time.sleep(self._median_s * self._chance.lognormal())
        return self.env.step(action)


def time_ppo(total_steps: int, mean_s: float) -> Iterator[Table | Check]:
    """PPO on a slow Gymnasium environment: ours in lanes, and SB3's on its vector environments."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    from train import LanePPO

    makers: list[Callable[[], gymnasium.Env[Any, Any]]] = [
        partial(SlowCartPole, lane, mean_s) for lane in range(LANES)
    ]
    settings: dict[str, Any] = {"n_steps": total_steps // LANES // 2, "batch_size": 32, "seed": 0}
    vector = SubprocVecEnv(makers)
    models = {
        "SB3's PPO, DummyVecEnv": PPO("MlpPolicy", DummyVecEnv(makers), **settings),
        "SB3's PPO, SubprocVecEnv": PPO("MlpPolicy", vector, **settings),
        "LanePPO": LanePPO("MlpPolicy", [make() for make in makers], **settings),
    }
    seconds = {}
    for name, model in models.items():
        began_s = time.perf_counter()
        model.learn(total_steps)
        seconds[name] = time.perf_counter() - began_s
    vector.close()
    yield Table(
        title="PPO on a slow Gymnasium environment",
        about=(
            f"CartPole with {LANES} lanes whose steps take lognormal times of {mean_s * 1000:g} ms "
            "on average (sigma 1). Equal settings; the seconds are those of `learn`, its updates "
            "included. LanePPO draws its noise by lane, SB3 by row, so the transitions differ."
        ),
        rows=[
            {
                "algorithm": name,
                "steps": models[name].num_timesteps,
                "seconds": taken,
                "times as fast": next(iter(seconds.values())) / taken,
            }
            for name, taken in seconds.items()
        ],
    )
    dummy, subproc, ours = seconds.values()
    yield at_least("LanePPO over SB3's PPO with DummyVecEnv", 8.0, dummy / ours)
    yield at_least("LanePPO over SB3's PPO with SubprocVecEnv", 1.5, subproc / ours)


def time_evaluation(episodes: int, time_scale: float) -> Iterator[Table | Check]:
    """An evaluation with 1 and with 32 episodes at work at once."""
    seconds, rates = {}, []
    for jobs in (1, 32):
        began_s = time.perf_counter()
        report = mutagym(
            "eval",
            ollama_host="embedded",
            target_model=MODEL,
            slots=32,
            reply_tokens=LOGNORMAL,
            time_scale=time_scale,
            policy="random",
            baselines="",
            mutators=",".join(model_mutators()),
            encoder="hashing",
            episodes=episodes,
            jobs=jobs,
        )
        seconds[jobs] = time.perf_counter() - began_s
        rates.append(report["rates"])
    yield Table(
        title="Evaluation: 1 and 32 jobs",
        about=(
            f"`mutagym eval -p random` of {episodes} queries on 32 slots. The seconds are those of "
            "the whole command. Equal results: every rate, return and count of calls is the same."
        ),
        rows=[
            {"jobs": jobs, "seconds": taken, "equal results": found == rates[0]}
            for (jobs, taken), found in zip(seconds.items(), rates, strict=True)
        ],
    )
    yield at_least("32 jobs over 1", 8.0, seconds[1] / seconds[32])
    yield at_least("equal results with 1 and with 32 jobs", 1, rates[0] == rates[1])


def split_cpu(num_steps: int, time_scale: float) -> Iterator[Table | Check]:
    """CPU milliseconds of a step in lanes, and of its parts by themselves."""
    lanes, queries = 32, [query.text for query in load_queries(None)]
    (row,) = mutagym(
        "bench",
        ollama_host="embedded",
        schedules="lanes",
        num_processes=lanes,
        slots=SLOTS,
        num_steps=num_steps,
        reply_tokens=LOGNORMAL,
        time_scale=time_scale,
    )
    settings = Settings(slots=SLOTS, reply_tokens=LOGNORMAL, time_scale=time_scale)
    with EmbeddedServer(settings) as server, Dispatcher([server.host]) as dispatcher:
        prompts = [f"{number}: {queries[number]}" for number in range(lanes * num_steps // 2)]
        began_s = time.process_time()
        batch_query_target_model(dispatcher, prompts, model=MODEL, max_workers=lanes)
        call_ms = 1000 * (time.process_time() - began_s) / len(prompts)
    encode_ms = {}
    for name in ("hashing", "all-MiniLM-L6-v2"):
        encoder = make_encoder(name)
        encoder.encode(["Warm up."])
        began_s = time.process_time()
        for query in queries[:200]:
            encoder.encode([query])
        encode_ms[name] = 1000 * (time.process_time() - began_s) / 200
    rest_ms = row["cpu_ms_per_step"] - 2 * call_ms - encode_ms["hashing"]
    yield Table(
        title="Where a step's CPU time goes",
        about=(
            f"A step under `lanes`, {lanes} lanes on {SLOTS} slots, with the hashing encoder, and "
            "its parts by themselves in loops of their own. Code that runs now and then starts "
            "from colder caches, so the rest is too large rather than too small."
        ),
        rows=[
            {"part": "a step", "CPU ms": row["cpu_ms_per_step"]},
            {"part": "its two calls: dispatcher and HTTP client", "CPU ms": 2 * call_ms},
            {"part": "one text encoded by hashing", "CPU ms": encode_ms["hashing"]},
            {"part": "the rest: environment, mutator, scorer, schedule", "CPU ms": rest_ms},
            {"part": "one text by all-MiniLM-L6-v2", "CPU ms": encode_ms["all-MiniLM-L6-v2"]},
        ],
    )
    yield at_most("CPU ms a step", 5.0, row["cpu_ms_per_step"])


if __name__ == "__main__":
    sys.exit(run("schedules", ABOUT, measure))
