"""The bridge to Stable-Baselines3 against SB3's own vector of the same environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from envs.lanes import LaneVectorEnv
from envs.sb3 import GymnasiumVecEnv, list_infos

LANES = 3
Env = gymnasium.Env[Any, Any]
NESTED = Dict(at=Box(0, 1, (2,)), on=Discrete(3), both=Tuple((Discrete(2), Box(0, 1, (1,)))))


class Countdown(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Counts 3, 2, 1, 0 and ends; each info tells the episode and the count."""

    observation_space = gymnasium.spaces.Box(0, 3, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.episode = 0
        self.count = 3
        self.started_with: object = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.started_with = options
        self.episode += 1
        self.count = 3
        return self._seen(), {"episode_number": self.episode, "fresh": True}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.count -= 1
        info = {"episode_number": self.episode, "parts": {"count": float(self.count), "action": int(action)}}
        return self._seen(), 1.0, self.count == 0, False, info

    def greet(self, name: str, *, loud: bool = False) -> str:
        return f"{name}{'!' if loud else ''} {self.count}"

    def _seen(self) -> NDArray[np.float32]:
        return np.array([self.count], np.float32)


def short_cartpole() -> Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def vector_of(make: Callable[[], Env], *, copy: bool = True, lanes: int = LANES) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv([make] * lanes, copy=copy, autoreset_mode=AutoresetMode.SAME_STEP)


def bridge(make: Callable[[], Env] = Countdown) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(vector_of(make))


def lane_bridge(make: Callable[[], Env] = Countdown) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(LaneVectorEnv([make] * LANES, autoreset_mode=AutoresetMode.SAME_STEP))


def start(env: VecEnv) -> NDArray[np.float32]:
    return np.asarray(env.reset())


def step(
    env: VecEnv, actions: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
    """One step, with action 0 in every lane unless told otherwise."""
    observations, rewards, dones, infos = env.step(np.zeros(LANES, np.int64) if actions is None else actions)
    return np.asarray(observations), rewards, dones, infos


def test_the_bridge_gives_what_sb3s_own_vector_of_the_same_environments_gives() -> None:
    ours, theirs = bridge(short_cartpole), DummyVecEnv([short_cartpole] * LANES)
    for env in (ours, theirs):
        env.seed(7)
    np.testing.assert_array_equal(start(ours), start(theirs))
    stream = np.random.default_rng(0)
    last: list[list[float]] = []
    for _ in range(400):
        actions = stream.integers(0, 2, LANES)
        (*mine, infos), (*others, expected) = step(ours, actions), step(theirs, actions)
        for array, other in zip(mine, others, strict=True):
            np.testing.assert_array_equal(array, other)
            assert array.dtype == other.dtype
        for info, other_info in zip(infos, expected, strict=True):
            if "terminal_observation" in info:
                last.append(info.pop("terminal_observation").tolist())
                assert last[-1] == other_info.pop("terminal_observation").tolist()
            assert info == other_info
    assert len(last) > 50


def test_an_episode_cut_and_ended_in_one_step_counts_as_ended() -> None:
    env = GymnasiumVecEnv(vector_of(lambda: TimeLimit(Countdown(), 3)))
    env.reset()
    for _ in range(3):
        _, _, dones, infos = step(env)
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [False] * LANES


def test_the_info_of_a_done_lane_is_the_ended_episodes_and_the_resets_is_kept_apart() -> None:
    env = bridge()
    env.reset()
    assert env.reset_infos[0] == {"episode_number": 1, "fresh": True}
    for _ in range(3):
        obs, _, dones, infos = step(env, np.ones(LANES, np.int64))
    assert dones.all()
    assert obs.tolist() == [[3.0]] * LANES
    last = infos[1].pop("terminal_observation")
    assert last.tolist() == [0.0]
    parts = {"count": 0.0, "action": 1}
    assert infos[1] == {"episode_number": 1, "parts": parts, "TimeLimit.truncated": False}
    assert env.reset_infos[1] == {"episode_number": 2, "fresh": True}


def test_what_a_step_returned_is_not_changed_by_the_next() -> None:
    env = GymnasiumVecEnv(vector_of(Countdown, copy=False))
    first = start(env)
    second, rewards, dones, _ = step(env)
    step(env)
    *_, infos = step(env)
    step(env)
    assert first.tolist() == [[3.0]] * LANES
    assert second.tolist() == [[2.0]] * LANES
    assert infos[0]["terminal_observation"].tolist() == [0.0]
    assert rewards.tolist() == [1.0] * LANES
    assert not dones.any()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_another_autoreset_mode_is_refused(mode: AutoresetMode) -> None:
    env: VectorEnv[Any, Any, Any] = SyncVectorEnv([Countdown], autoreset_mode=mode)
    with pytest.raises(ValueError, match=r"make it with autoreset_mode=AutoresetMode\.SAME_STEP"):
        GymnasiumVecEnv(env)


def test_a_single_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a gymnasium\.vector\.VectorEnv, got 'Countdown'"):
        GymnasiumVecEnv(Countdown())  # type: ignore[arg-type] # that is the point


INFO = st.fixed_dictionaries(
    {},
    optional={
        "whole": st.integers(-(2**63), 2**63 - 1),
        "real": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "text": st.text(),
        "parts": st.fixed_dictionaries({}, optional={"real": st.floats(allow_nan=False), "_own": st.text()}),
    },
)


@given(st.lists(INFO, min_size=1, max_size=5))
def test_infos_gathered_by_gymnasium_come_back_as_they_were(infos: list[dict[str, Any]]) -> None:
    vector: VectorEnv[Any, Any, Any] = VectorEnv()
    vector.num_envs = len(infos)
    gathered: dict[str, Any] = {}
    for lane, info in enumerate(infos):
        gathered = vector._add_info(gathered, info, lane)
    rows = list_infos(gathered, len(infos))
    assert rows == infos
    for row, info in zip(rows, infos, strict=True):
        assert {key: type(value) for key, value in row.items()} == {k: type(v) for k, v in info.items()}


def test_a_key_without_a_mask_belongs_to_every_lane() -> None:
    assert list_infos({"size": np.array([1, 2])}, 2) == [{"size": 1}, {"size": 2}]


def test_vec_monitor_reports_return_and_length_of_episodes() -> None:
    env = VecMonitor(bridge())
    env.reset()
    for _ in range(3):
        *_, infos = step(env)
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(3.0, 3)] * LANES


def test_gymnasiums_episode_statistics_reach_the_ended_episodes_info() -> None:
    env = GymnasiumVecEnv(RecordEpisodeStatistics(vector_of(Countdown)))
    env.reset()
    for _ in range(3):
        *_, infos = step(env)
    assert infos[2]["episode"]["r"] == 3.0
    assert "episode" not in env.reset_infos[2]


def test_a_seed_starts_every_lane_from_its_own() -> None:
    env = bridge(short_cartpole)
    assert env.seed(5) == [5, 6, 7]
    obs = start(env)
    for lane in range(LANES):
        np.testing.assert_array_equal(obs[lane], short_cartpole().reset(seed=5 + lane)[0])
    assert (obs != start(env)).any()


def test_reset_options_reach_every_lane_once() -> None:
    env = bridge()
    env.set_options({"query": "why?"})
    env.reset()
    assert env.get_attr("started_with") == [{"query": "why?"}] * LANES
    env.reset()
    assert env.get_attr("started_with") == [None] * LANES


def test_reset_options_may_differ_by_lane_where_the_vector_takes_them() -> None:
    options: list[dict[str, Any]] = [{"query": "a"}, {"query": "b"}, {}]
    env = lane_bridge()
    env.set_options(options)
    env.reset()
    assert env.get_attr("started_with") == [{"query": "a"}, {"query": "b"}, None]
    env.set_options(options[:2])
    with pytest.raises(ValueError, match="expected 3 reset options, one a lane"):
        env.reset()
    env.close()
    env = bridge()
    env.set_options(options)
    with pytest.raises(ValueError, match="takes the same reset options for every lane"):
        env.reset()


def test_an_environment_whose_reset_takes_no_options_is_reset_without() -> None:
    class Plain(Countdown):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override] # noqa: ANN401 - no options
            return super().reset(seed=seed)

    ours, theirs = lane_bridge(Plain), DummyVecEnv([Plain] * LANES)
    for _ in range(2):
        np.testing.assert_array_equal(start(ours), start(theirs))
    ours.close()


@pytest.mark.parametrize("make", [bridge, lane_bridge])
def test_attributes_are_made_where_there_are_none(make: Callable[[], GymnasiumVecEnv]) -> None:
    env = make()
    env.set_attr("mark", "x", indices=[0, -1])
    assert [env.has_attr("mark"), env.get_attr("mark", indices=[0, 2])] == [False, ["x", "x"]]
    env.set_attr("mark", "y", indices=1)
    env.set_attr("colour", [1, 2])
    assert env.get_attr("mark") == ["x", "y", "x"]
    assert env.get_attr("colour") == [[1, 2]] * LANES
    env.close()


@pytest.mark.parametrize("make", [bridge, lane_bridge])
@pytest.mark.parametrize("space", [NESTED, Tuple(tuple(NESTED.spaces.values()))], ids=["dict", "tuple"])
def test_actions_may_be_a_list_of_each_environments_own(
    space: gymnasium.Space[Any], make: Callable[[Callable[[], Env]], GymnasiumVecEnv]
) -> None:
    class Told(Countdown):
        action_space = space  # type: ignore[assignment]
        actions: list[Any] = []  # noqa: RUF012 - each is made anew below

        def reset(self, **more: Any) -> Any:  # noqa: ANN401 - Gymnasium's
            self.actions = []
            return super().reset(**more)

        def step(self, action: Any) -> Any:  # noqa: ANN401 - Gymnasium's
            assert action in self.action_space
            self.actions.append(action)
            return super().step(np.int64(0))

    env = make(Told)
    env.reset()
    space.seed(1)
    each = [space.sample() for _ in range(LANES)]
    empty: Any = create_empty_array(space, LANES)
    batch: Any = concatenate(space, each, empty)
    env.step(each)  # type: ignore[arg-type] # SB3 says array, and takes lists
    env.step(batch)
    told = env.get_attr("actions")
    assert all(data_equivalence(list(lane), [action] * 2) for lane, action in zip(told, each, strict=True))
    with pytest.raises(ValueError, match=r"expected 3 actions|zip\(\) argument 2"):
        env.step(each[:2])  # type: ignore[arg-type]
    env.close()


def test_attributes_and_methods_of_chosen_lanes_are_reached() -> None:
    env = bridge()
    env.reset()
    env.set_attr("count", 9, indices=[0, 2])
    assert env.get_attr("count") == [9, 3, 9]
    assert env.get_attr("count", indices=1) == [3]
    assert env.env_method("greet", "hello", indices=[2], loud=True) == ["hello! 9"]
    assert env.env_method("greet", "hello") == ["hello 9", "hello 3", "hello 9"]
    env.set_attr("count", 4)
    assert env.get_attr("count") == [4] * LANES
    with pytest.raises(AttributeError):
        env.get_attr("nothing_of_the_kind")


def test_wrappers_of_the_lanes_are_seen() -> None:
    assert bridge().env_is_wrapped(TimeLimit) == [False] * LANES
    assert bridge(lambda: TimeLimit(Countdown(), 3)).env_is_wrapped(TimeLimit, indices=[0]) == [True]


def test_closing_the_bridge_closes_the_vector() -> None:
    vector = vector_of(Countdown)
    GymnasiumVecEnv(vector).close()
    assert vector.closed


def test_sb3s_own_ppo_trains_through_the_bridge() -> None:
    model = PPO("MlpPolicy", bridge(short_cartpole), n_steps=8, batch_size=24, n_epochs=1, device="cpu")
    assert model.learn(48).num_timesteps == 48
