"""Contextual bandits as algorithms of Stable-Baselines3: LinUCB and Thompson sampling.

Bayesian ridge regression of a step's reward on features of query, history and mutator: the hybrid
model of Li et al. 2010 (arXiv 1003.0146, algorithm 2). A mutator's features, in this order:

    9   whose weights all mutators share: 1; whether it was tried and changed the query; whether it
        was tried and left it as it was; whether that was the last step; the last outcome (3); the
        share of steps taken; how likely the query ought to be refused
    3   its own: 1; whether it was tried and left the query as it was; that likelihood
    m   its own: the principal components of the query's embedding
    A   its own: of every mutator, whether it was tried and changed the query: what did not help
        says which kind of query this is, and what is to be tried next

To leave the reply as it is earns 0 for certain: that action has no features.

The prior says: what changed the query and did not help will not help a second time, a rule that
changed nothing never will, and a query that ought to be refused had better be. How far mutators
differ, how far that depends on the query, and how much is chance, is estimated from the run's own
steps by the marginal likelihood (type II, MacKay 1992), each time that there are twice as many, for
up to 30 mutators; it begins with what was measured on two small models. 14 mutators have 471
weights, 60 have 4,749; a solution takes time with their third power.

Bandits learn with few calls, and look no further than the next step. Under `--algorithm auto` PPO
goes on with a network that is fitted to what the bandit learned: see `fit_network`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from operator import mul
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from envs.observation import LABELS, observation_size
from mutators.mutator import Mutator
from train.network import QueryPolicy
from train.ppo import FIT, UPDATE_LOCK, LanePPO, Result, Step, advantages, key_seed, stream
from train.ppo import NOISE as DRAW

Floats = NDArray[np.float64]
Observations = NDArray[np.float32]
Explore = Literal["linucb", "thompson"]

SHARED = 6 + len(LABELS)
OWN = 3
COMPONENTS = 16
"""Principal components of the training queries' embeddings, at most."""
SHARED_MEANS = (0.25, -0.5, -0.1, *(0.0,) * (SHARED - 4), -0.5)
SHARED_VARIANCES = (1.0, *(0.05,) * (SHARED - 2), 0.25)
"""The prior of the weights that all mutators share, in the order above."""
RULE_MEAN = -0.4
"""The prior mean of the weight of "it left the query as it was", for mutators by rule."""
IDLE_VARIANCE = 0.05
HARMFUL_VARIANCE = 0.05
NOISE, OWN_VARIANCE, QUERY_VARIANCE = 0.04, 0.03, 0.03
"""The prior variances that a run begins with: of what is chance, of a mutator's own weight, and of
its weights of principal components, whose values together have a mean square of 1."""
FACTORS = (0.5, 1.0, 2.0)
"""By what each of these three may change in a step of their estimation."""
LEAST_VARIANCE, MOST_VARIANCE = 0.002, 0.5
FEWEST_ROWS = 64
"""So many steps are learned from before the variances are estimated."""
MOST_WEIGHTS = 1500
"""With more weights the variances stay as they are: each likelihood takes a second or more."""
TRIED_VARIANCE = 0.02
PARTIAL_CREDIT = 0.3
"""Added to the reward of a step that was refused in part: the next mutator may do the rest. With it
the greedy choice earns the optimum in the world `cautious`, and without it 88 % of that."""
ALPHA = 1.0
"""LinUCB's."""

MOST_VISITED = 4096
"""How many of a bandit's last states are kept for `fit_network`."""
TEMPERATURE = 0.1
"""The temperature of the softmax over expected rewards."""
UPDATES, BATCH, LEARNING_RATE = 600, 128, 2e-3
VALUE_WEIGHT = 0.5
LEARNING_RATE_SHARE = 0.25
"""The share of PPO's learning rate with which it continues a fitted network."""


def credit(info: Mapping[str, Any]) -> float:
    """What is added to a step's reward, by its info."""
    return PARTIAL_CREDIT if info.get("partial") and not info.get("guard") else 0.0


def rule_actions(mutators: Sequence[Mutator]) -> list[int]:
    """The actions whose mutator is a rule."""
    return [action for action, mutator in enumerate(mutators) if mutator.kind == "rule"]


class LinearBandit(nn.Module):
    """Learns what each of A actions earns from observations that begin with D numbers of a query.

    It computes in float64 and a row at a time, so a row's result does not depend on the others.
    `rules` are the actions whose mutator is a rule; `stop` is the one that leaves the reply as it
    is, if there is one.
    """

    centre: torch.Tensor
    directions: torch.Tensor
    means: torch.Tensor
    gram: torch.Tensor
    moments: torch.Tensor
    totals: torch.Tensor
    """Steps that it learned from, the sum of their rewards' squares, and how many steps there were
    when the variances were last estimated."""
    variances: torch.Tensor
    stop: torch.Tensor

    def __init__(
        self,
        dimension: int,
        num_actions: int,
        rules: Sequence[int] = (),
        stop: int | None = None,
    ) -> None:
        super().__init__()
        self.dimension, self.num_actions = dimension, num_actions
        components = min(COMPONENTS, dimension)
        own = OWN + components + num_actions
        size = SHARED + num_actions * own
        means = torch.zeros(size, dtype=torch.float64)
        means[:SHARED] = torch.tensor(SHARED_MEANS, dtype=torch.float64)
        means[[SHARED + action * own + 1 for action in rules]] = RULE_MEAN
        begin = [NOISE, OWN_VARIANCE, QUERY_VARIANCE]
        self.register_buffer("centre", torch.zeros(dimension, dtype=torch.float64))
        self.register_buffer("directions", torch.zeros(dimension, components, dtype=torch.float64))
        self.register_buffer("means", means)
        self.register_buffer("gram", torch.zeros(size, size, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("totals", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("variances", torch.tensor(begin, dtype=torch.float64))
        self.register_buffer("stop", torch.tensor(-1 if stop is None else stop))
        shared = np.tile(np.arange(SHARED), (num_actions, 1))
        each = SHARED + np.arange(num_actions * own).reshape(num_actions, own)
        self._places = np.concatenate([shared, each], axis=1)
        """(A, G): the places of a mutator's features among all."""
        self.register_load_state_dict_post_hook(LinearBandit._solve_again)  # type: ignore[no-untyped-call] # torch's
        self.solve()

    @property
    def has_learned(self) -> bool:
        """Whether it has learned from any step."""
        return bool(self.totals[0])

    def fit_components(self, embeddings: Observations) -> None:
        """Find the principal components of the training queries' embeddings (queries, D)."""
        rows = torch.from_numpy(embeddings.astype(np.float64))
        self.centre.copy_(rows.mean(dim=0))
        spread = rows - self.centre
        axes = torch.linalg.svd(spread, full_matrices=False)[2][: self.directions.shape[1]]
        largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
        scale = max(float(spread.square().sum(dim=1).mean().sqrt()), 1e-6)  # equal ones, or one
        self.directions[:, : len(axes)] = (axes * largest.sign()).T / scale
        self.solve()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected rewards (N, A), float32, in observations (N, size); for any thread."""
        means = [self.expect(observation)[0] for observation in observations.cpu().numpy()]
        return torch.from_numpy(np.stack(means).astype(np.float32)).to(observations.device)

    def expect(self, observation: Observations) -> tuple[Floats, Floats]:
        """Each mutator's expected reward (A,) and its deviation (A,) in an observation (size,)."""
        features = self._features(observation)
        means = (features * self._weights).sum(axis=1)
        spread = np.vecdot(self._covariances, features[:, None, :])
        return means, np.sqrt(np.maximum((spread * features).sum(axis=1), 0))

    def learn(
        self, observations: Observations, actions: NDArray[np.int64], rewards: Floats
    ) -> None:
        """Learn from N steps: observations (N, size), actions (N,), rewards with credit (N,).

        What it earns to leave a reply as it is, is known: such a step tells nothing.
        """
        rows = torch.zeros(len(actions), len(self.moments), dtype=torch.float64)
        for row, before, action in zip(rows.numpy(), observations, actions, strict=True):
            row[self._places[action]] = self._features(before)[action]
        asked = rows.any(dim=1)
        rows, earned = rows[asked], torch.from_numpy(rewards)[asked]
        self.gram += rows.T @ rows
        self.moments += rows.T @ earned
        self.totals[0] += len(earned)
        self.totals[1] += earned.square().sum()
        count, estimated = float(self.totals[0]), float(self.totals[2])
        if count >= max(FEWEST_ROWS, 2 * estimated) and len(self.moments) <= MOST_WEIGHTS:
            self.totals[2] = count
            self._estimate_variances()
        self.solve()

    def solve(self) -> None:
        """Compute weights (A, G) and covariances (A, G, G) from the buffers."""
        factor, moments = self._posterior(self.variances.tolist())
        covariance = torch.cholesky_inverse(factor).numpy()
        places = self._places
        self._weights = np.vecdot(covariance, moments.numpy())[places]
        self._covariances = covariance[places[:, :, None], places[:, None, :]]
        self._centre = self.centre.numpy()
        self._directions = np.ascontiguousarray(self.directions.numpy().T)
        self._stop = int(self.stop)

    def _posterior(self, variances: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """The Cholesky factor of the precision (W, W), and that precision times the means (W,)."""
        noise, precisions = variances[0], 1 / self._prior(variances)
        precision = self.gram / noise + torch.diag(precisions)
        return torch.linalg.cholesky(precision), self.moments / noise + precisions * self.means

    def _prior(self, variances: Sequence[float]) -> torch.Tensor:
        """The prior variances of all weights (W,), given those that are estimated."""
        _, own, query = variances
        each = [own, IDLE_VARIANCE, HARMFUL_VARIANCE]
        each += [query] * self.directions.shape[1] + [TRIED_VARIANCE] * self.num_actions
        return torch.tensor([*SHARED_VARIANCES, *each * self.num_actions], dtype=torch.float64)

    def _estimate_variances(self) -> None:
        """Climb to where the rewards so far are likeliest, in steps of a factor of two."""
        best = self.variances.tolist()
        highest = self._log_likelihood(best)
        while True:
            near = [
                [min(MOST_VARIANCE, max(LEAST_VARIANCE, each)) for each in map(mul, best, factors)]
                for factors in product(FACTORS, repeat=len(best))
            ]
            found = [self._log_likelihood(each) for each in near]
            if max(found) <= highest:
                break
            highest, best = max(found), near[int(np.argmax(found))]
        self.variances.copy_(torch.tensor(best, dtype=torch.float64))

    def _log_likelihood(self, variances: Sequence[float]) -> float:
        """The log of the marginal likelihood of all rewards, but for a constant."""
        factor, moments = self._posterior(variances)
        noise, prior = variances[0], self._prior(variances)
        solved = torch.linalg.solve_triangular(factor, moments[:, None], upper=False)
        spread = 2 * factor.diagonal().log().sum() + prior.log().sum()
        misfit = self.totals[1] / noise + (self.means.square() / prior).sum()
        misfit -= solved.square().sum()
        return -0.5 * float(self.totals[0] * math.log(noise) + spread + misfit)

    def _solve_again(self, _keys: object) -> None:
        self.solve()

    def _features(self, observation: Observations) -> Floats:
        """The features of all mutators (A, G) in an observation (size,)."""
        embedding, history = np.split(observation.astype(np.float64), [self.dimension])
        tried, idle, last = history[: 3 * self.num_actions].reshape(3, self.num_actions)
        features = np.ones(self._places.shape)
        features[:, 1], features[:, 2], features[:, 3] = tried - idle, idle, last * idle
        features[:, 4:SHARED] = history[-2 - len(LABELS) :]
        features[:, SHARED + 1], features[:, SHARED + 2] = idle, history[-1]
        centred = embedding / math.sqrt(self.dimension) - self._centre
        features[:, SHARED + OWN : -self.num_actions] = np.vecdot(self._directions, centred)
        features[:, -self.num_actions :] = tried - idle
        if self._stop >= 0 and tried[self._stop]:  # it is known what the target says
            features[self._stop] = 0.0
        return features


def explore(
    model: LinearBandit,
    how: Explore,
    observation: Observations,
    *,
    key: tuple[int, int, int],
    pending: int = 0,
    failed: Collection[int] = (),
) -> int:
    """The action in training for an observation (size,).

    `thompson` takes the highest of normal draws that `key` (seed, lane, row) decides (Agrawal and
    Goyal 2013, arXiv 1209.3352). `linucb` takes the highest mean plus ALPHA times the deviation.
    Of the `pending` choices, which the model has not learned from yet, it is taken that they were
    made here, one after another, each making its mutator better known (Desautels et al. 2014): so
    what the model is not sure of is spread over the lanes.

    Actions that `failed` in this state are left out as long as there are others.
    """
    means, deviations = model.expect(observation)
    allowed = np.ones(model.num_actions, np.bool_)
    if len(failed) < model.num_actions:
        allowed[list(failed)] = False
    if how == "thompson":
        seed, lane, row = key
        draws = stream(seed, DRAW, lane, row).standard_normal(model.num_actions)
        return int(np.argmax(np.where(allowed, means + deviations * draws, -np.inf)))
    noise = float(model.variances[0])
    action = 0
    for _ in range(pending + 1):
        action = int(np.argmax(np.where(allowed, means + ALPHA * deviations, -np.inf)))
        deviations[action] *= math.sqrt(noise / (noise + deviations[action] ** 2))
    return action


class BanditPolicy(BasePolicy):
    """Takes the mutator that `model` expects to earn most."""

    prior: torch.Tensor
    """(D + 1,): see `train.prior.Prior`; all 0 where nothing is known."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        _lr_schedule: Schedule | None = None,
        *,
        rules: Sequence[int] = (),
        stop: int | None = None,
        use_sde: bool = False,  # noqa: ARG002 - what SB3 gives every policy
    ) -> None:
        super().__init__(observation_space, action_space)
        num_actions = int(action_space.n)  # type: ignore[attr-defined] # Discrete
        (size,) = observation_space.shape  # type: ignore[misc] # a Box
        dimension = size - observation_size(0, num_actions)
        self.model = LinearBandit(dimension, num_actions, rules, stop)
        self.register_buffer("prior", torch.zeros(dimension + 1, dtype=torch.float64))

    def scores(self, observations: torch.Tensor) -> torch.Tensor:
        """The expected rewards (N, A) in observations (N, size); for any thread."""
        return self.model.forward(observations)

    def greedy(self, observation: Observations) -> int:
        """The mutator that is expected to earn most, given an observation (size,)."""
        return int(np.argmax(self.model.expect(observation)[0]))

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> torch.Tensor:  # noqa: ARG002, FBT001, FBT002 - SB3's
        return self.scores(cast("torch.Tensor", observation)).argmax(dim=1)  # a Box: no dict


class LaneBandit(LanePPO):
    """A contextual bandit in the lanes of LanePPO: it learns after each rollout.

    Args:
        envs: a Gymnasium environment a lane.
        how: see `explore`.
        embeddings: (queries, D), those of the training queries.
        rules: the actions whose mutator is a rule.
        stop: the action that leaves the reply as it is.
        keeps_visited: whether `visited` is kept, for `fit_network`.
        options: those of LanePPO: `n_steps`, `seed`, `workers`, `step_all`.
    """

    policy: BanditPolicy  # type: ignore[assignment] # SB3 names the policy that PPO has

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        how: Explore,
        *,
        embeddings: Observations,
        rules: Sequence[int] = (),
        stop: int | None = None,
        keeps_visited: bool = False,
        **options: Any,  # noqa: ANN401 - those of LanePPO
    ) -> None:
        self.how, self.keeps_visited = how, keeps_visited
        self.visited: dict[str, torch.Tensor] = {}
        """The last steps: observations (T, lanes, size); rewards, dones, scored (T, lanes)."""
        unused: dict[str, Any] = {"batch_size": 1, "normalize_advantage": False}
        kwargs = {"rules": tuple(rules), "stop": stop}
        self.failed: list[list[int]] = [[] for _ in envs]
        """For each lane the actions whose calls failed since its last scored step."""
        super().__init__(BanditPolicy, envs, policy_kwargs=kwargs, **unused, **options)
        self.policy.model.fit_components(embeddings)

    def choose(self, observation: Observations, lane: int, row: int) -> tuple[int, float, float]:
        """The next action; value and log probability are 0."""
        action = explore(
            self.policy.model,
            self.how,
            observation,
            key=(self.seed or 0, lane, row),
            pending=row % self.n_steps * self.n_envs + lane,
            failed=self.failed[lane],
        )
        return action, 0.0, 0.0

    def end_step(self, lane: int, choice: tuple[int, float, float], result: Result) -> Step:
        """See LanePPO; the reward gets its `credit`, and an action that failed is remembered."""
        step = super().end_step(lane, choice, result)
        if not step.info.get("unscored") or step.done:
            self.failed[lane].clear()
        elif step.action not in self.failed[lane]:
            self.failed[lane].append(step.action)
        return step._replace(learned_reward=step.learned_reward + credit(step.info))

    def greedy(self, observation: Observations) -> int:
        """The mutator that is expected to earn most; for any thread."""
        return self.policy.greedy(observation)

    def value(self, observation: Observations) -> float:  # noqa: ARG002 - LanePPO's
        """0: a bandit looks at the next step alone."""
        return 0.0

    def train(self) -> None:
        """Keep what was visited, and learn."""
        if self.keeps_visited:
            buffer = self.rollout_buffer
            most = -(-MOST_VISITED // buffer.n_envs)
            for name in ("observations", "rewards", "dones", "scored"):
                new = torch.from_numpy(getattr(buffer, name))
                known = self.visited.get(name, new[:0])
                self.visited[name] = torch.cat([known, new])[-most:]
        super().train()

    def update(self) -> None:
        """Learn from the scored rows of the rollout."""
        buffer, model = self.rollout_buffer, self.policy.model
        observations = buffer.observations[buffer.scored]
        actions = buffer.actions[buffer.scored][:, 0].astype(np.int64)
        model.learn(observations, actions, buffer.rewards[buffer.scored].astype(np.float64))
        self._n_updates += 1
        deviation = np.mean([model.expect(each)[1] for each in observations])
        self.logger.record("bandit/deviation", float(deviation))


def fit_network(
    policy: QueryPolicy,
    bandit: LinearBandit,
    visited: Mapping[str, torch.Tensor],
    *,
    gamma: float,
    seed: int,
) -> None:
    """Fit PPO's network to what a bandit learned.

    In the states of `LaneBandit.visited`, the actor is fitted to a softmax of the rewards that the
    bandit expects, the critic to the discounted returns.
    """
    scored = visited["scored"]
    states = visited["observations"][scored]
    expected = np.array([bandit.expect(observation)[0] for observation in states.numpy()])
    odds = torch.from_numpy(expected / TEMPERATURE).softmax(dim=1).float()
    returns = torch.from_numpy(_returns(visited, gamma))[scored]
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    policy.set_training_mode(True)
    with UPDATE_LOCK, torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(key_seed(seed, FIT))
        for _ in range(UPDATES if len(states) else 0):
            rows = torch.randint(len(states), (BATCH,))
            logits = policy.get_distribution(states[rows]).distribution.logits  # type: ignore[union-attr] # a Categorical
            values = policy.predict_values(states[rows]).flatten()
            actor_loss = -(odds[rows] * logits).sum(dim=1).mean()
            loss = actor_loss + VALUE_WEIGHT * (values - returns[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    policy.set_training_mode(False)


def _returns(visited: Mapping[str, torch.Tensor], gamma: float) -> Observations:
    """The discounted returns (T, lanes) from each step to the end of its episode, or of the rows.

    They are advantages with lambda 1 over values of 0.
    """
    rewards, dones, scored = (visited[name].numpy() for name in ("rewards", "dones", "scored"))
    values = np.zeros_like(rewards)
    return advantages(
        rewards, values, values[0], scored=scored, dones=dones, gamma=gamma, gae_lambda=1.0
    )
