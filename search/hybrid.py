"""The hybrid search: an actor picks prompts, candidates are drawn, a critic picks one, and all of them learn.

A step is asked and told. `ask` lets the actor choose K prompts of the population for a query; their replies
are generated and scored by the critic, at once where `parallel_eval` says so, and the same either way; `tell`
takes the feedback on the reply that was chosen, rewards the K candidates, updates the fitness of their
prompts, teaches actor and critic, and lets the population evolve when it is time. A candidate without a score
takes part in none of that. The whole is a pure function of the seed and of the replies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from cyclopts import Parameter

from ollama_utils.encoders import Encoder, make_encoder
from ollama_utils.types import Completion, Think
from records.settings import Count, CountOrZero, NotNegative, Share, without_flag
from scorers.critic import RidgeCritic
from scorers.json_replies import Model
from search.candidates import MAX_TOKENS, TEMPERATURE, CandidateSettings, do_all, raise_if_cancelled
from search.chance import seed_of
from search.optimizing.actors import ENTROPY, LEARNING_RATE, Actor, PolicyActor
from search.optimizing.prompts import PromptPopulation, Reword
from search.optimizing.rewards import (
    AskedStep,
    Candidate,
    CandidateReward,
    FeedbackAggregator,
    RewardFn,
    RewardWeights,
    Scoring,
    Signal,
    Signals,
    StepResult,
    Tried,
    given_score,
    mean,
    scored,
    teach,
)
from search.task import SEED_INSTRUCTIONS

__all__ = ["ActorCriticParams", "HybridOptimizationFlow", "RewardWeights", "StepResult"]


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class ActorCriticParams:
    """What `HybridOptimizationFlow.from_params` builds a flow from; a number is checked where it is used."""

    num_candidates: Count = 5
    """Prompts that are tried for a question (the flow's `top_k_prompts`)."""
    update_interval: Count = 10
    """The prompts evolve after so many steps that brought a reward."""
    exploration: Share = 0.1
    """The share of the actor's draws that pay no heed to what it learned."""
    parallel_eval: bool = False
    """Candidates are drawn and scored side by side; the results are the same either way."""
    max_workers: Count | None = None
    """The most calls at once [as many as keep the server busy]."""
    max_tokens: Count = MAX_TOKENS
    """A candidate is cut after so many, thoughts included, as by --num-predict elsewhere."""
    temperature: NotNegative = TEMPERATURE
    """Of the candidates; the final comparison is made at 0."""
    feedback_for_all: bool = False
    """A feedback function (on the command line the scorer of the task) judges every candidate, not the chosen
    one alone."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Of the parts of a reward."""
    learning_rate: NotNegative = LEARNING_RATE
    """Of the actor."""
    entropy: NotNegative = ENTROPY
    """What the entropy of the actor's policy is worth beside a reward."""
    population_size: Count = 10
    """How many prompts there are, always."""
    elite_size: CountOrZero = 2
    """The best prompts, kept as they are."""
    mutation_rate: Share = 0.3
    """The chance that a section of a child is mutated."""
    crossover_rate: Share = 0.5
    """The chance that a child has two parents."""
    model_share: Share = 0.5
    """The share of mutations that the mutator model makes; the others are by rule."""
    seed: Annotated[int, without_flag()] = 0
    """Of all chance."""


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, kw_only=True)
class HybridSettings(ActorCriticParams):
    """The settings of `mutagym optimize`: the same defaults, but for two that cost nothing there."""

    parallel_eval: bool = True
    """Candidates are drawn and scored side by side; the results are the same either way."""
    feedback_for_all: bool = True
    """The scorer of the task judges every candidate, not the chosen one alone; that costs no call. (In Python
    the default is no: there feedback may come from people.)"""


class HybridOptimizationFlow:
    """Steps of the hybrid search.

    Args:
        llm: answers the calls: a dispatcher, or a pool with a cap.
        population: the prompts, which evolve.
        actor: picks prompts for a query.
        critic: scores the candidates; learns from feedback where it can.
        reward_fn: what the parts of a candidate's reward come to; None: `RewardWeights()`.
        feedback_aggregator: what several people's feedback comes to; None: their mean.
        top_k_prompts: K, how many prompts are tried for a query.
        max_tokens: a candidate is cut after so many.
        temperature: of the candidates.
        parallel_eval: whether candidates are generated and scored, and children made, at once.
        max_workers: the most of these at once; None: as many as there are, as far as `llm` admits them.
        model: what the candidates are asked of, as the server lists it.
        update_interval: the population evolves after so many steps that brought a reward.
        feedback_for_all: whether `human_feedback`, where it is a function, is called for each candidate
            that has a score, and not for the chosen reply alone: for feedback that is computed. With
            `parallel_eval` several threads call the functions then; people are asked one by one.
        seed: of the candidates; actor and population have their own.
        options: more of Ollama's options (`num_ctx`).
        think: whether a thinking model thinks; None leaves it to the server.

    Raises:
        ValueError: no model, or a number out of range.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what the original takes, and one keyword for each thing a user can set
        self,
        llm: Model,
        population: PromptPopulation,
        actor: Actor,
        critic: Scoring,
        reward_fn: RewardFn | None = None,
        feedback_aggregator: FeedbackAggregator | None = None,
        top_k_prompts: int = 5,
        max_tokens: int = MAX_TOKENS,
        temperature: float = TEMPERATURE,
        parallel_eval: bool = False,  # noqa: FBT001, FBT002 - its place in the original
        max_workers: int | None = None,
        *,
        model: str,
        update_interval: int = 10,
        feedback_for_all: bool = False,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        think: Think | None = None,
    ) -> None:
        numbers = {"top_k_prompts": top_k_prompts, "update_interval": update_interval}
        for name, number in {**numbers, "max_workers": max_workers}.items():
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number!r}")
        self.population = population
        self.actor = actor
        self.critic = critic
        self.steps = 0
        """How many were asked."""
        self.rewarded_steps = 0
        """How many brought a reward."""
        self.unscored = 0
        """How many candidates had no score."""
        self._llm = llm
        self._workers = max_workers if parallel_eval else 1
        self._reward_fn = reward_fn or RewardWeights()
        self._aggregate = feedback_aggregator or mean
        self._feedback_for_all = feedback_for_all
        self._asking = CandidateSettings(
            model=model, max_tokens=max_tokens, temperature=temperature, options=options or {}, think=think
        )
        self._count = top_k_prompts
        self._interval = update_interval
        self._seed = seed
        self._open: set[int] = set()

    @classmethod
    def from_params(
        cls,
        params: ActorCriticParams,
        llm: Model,
        *,
        model: str,
        prompts: Sequence[str] = (SEED_INSTRUCTIONS,),
        encoder: Encoder | None = None,
        critic: Scoring | None = None,
        actor: Actor | None = None,
        reword: Reword | None = None,
        **more: Any,  # noqa: ANN401 - the flow's own keywords
    ) -> HybridOptimizationFlow:
        """The flow of a configuration.

        Args:
            params: all its numbers.
            llm: answers the calls.
            model: what the candidates are asked of.
            prompts: the population's first ones.
            encoder: for actor and critic; None: hashing, which needs no model.
            critic: None: a `RidgeCritic`, which learns from feedback alone.
            actor: None: a `PolicyActor`. One that is given keeps its own exploration.
            reword: mutates sections by model; None: by rule alone.
            more: `reward_fn`, `feedback_aggregator`, `options` and `think` of the flow.

        Raises:
            ValueError: a number is out of range.
        """
        encoder = encoder or make_encoder("hashing")
        population = PromptPopulation(
            prompts,
            size=params.population_size,
            elite_size=params.elite_size,
            mutation_rate=params.mutation_rate,
            crossover_rate=params.crossover_rate,
            seed=params.seed,
            reword=reword,
            model_share=params.model_share,
        )
        learning = PolicyActor(
            encoder,
            seed=params.seed,
            exploration=params.exploration,
            learning_rate=params.learning_rate,
            entropy=params.entropy,
        )
        return cls(
            llm,
            population,
            actor or learning,
            critic or RidgeCritic(encoder),
            top_k_prompts=params.num_candidates,
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            parallel_eval=params.parallel_eval,
            max_workers=params.max_workers,
            model=model,
            update_interval=params.update_interval,
            feedback_for_all=params.feedback_for_all,
            seed=params.seed,
            **{"reward_fn": params.weights, **more},
        )

    def step(
        self,
        query: str,
        human_feedback: Signal = None,
        coherence: Signal = None,
        tokens_used: Signal = None,
        safety_penalty: Signal = None,
    ) -> StepResult:
        """Answer a query, and learn from it: see `step_many`."""
        return self.step_many([query], human_feedback, coherence, tokens_used, safety_penalty)[0]

    def step_many(
        self,
        queries: Sequence[str],
        human_feedback: Signal = None,
        coherence: Signal = None,
        tokens_used: Signal = None,
        safety_penalty: Signal = None,
    ) -> list[StepResult]:
        """Answer several queries under the policy as it is, and learn from them in their order.

        All their candidates are generated and scored side by side, which keeps more slots busy than one
        query's can.

        Args:
            queries: what is asked.
            human_feedback: 0 to 1, or a function of query and reply, called once the replies are there. A
                value speaks of the chosen reply; the critic foresees the feedback on the others.
            coherence: 0 to 1, or a function.
            tokens_used: or a function; None: what the server reported.
            safety_penalty: not negative, or a function.

        Raises:
            ValueError: a signal is out of range. Then, as where its function raises, no step is counted and
                nothing learned of any query: given again, they are the same calls.
            EncodingError: a query or prompt has no embedding.
            CallCancelledError: the run was stopped.
            ReplyLogError: a reply cannot be written down.
        """
        signals = Signals(human_feedback, coherence, tokens_used, safety_penalty)
        tried = self._answered([self._asked(query, self.steps + i) for i, query in enumerate(queries)])
        rewarded = self._rewards(tried, signals)
        self.steps += len(tried)
        return [self._learn(*each, rewards) for each, rewards in zip(tried, rewarded, strict=True)]

    def ask(self, query: str) -> AskedStep:
        """The prompts to try for a query; several queries may be asked for before any is told.

        Raises:
            EncodingError: the query or a prompt has no embedding.
        """
        asked = self._asked(query, self.steps)
        self.steps += 1
        self._open.add(asked.step)
        return asked

    def tell(
        self,
        asked: AskedStep,
        replies: Sequence[str | Completion | None],
        scores: Sequence[float | None] | None = None,
        **said: Signal,
    ) -> StepResult:
        """Learn from the replies to what was asked.

        Args:
            asked: what `ask` gave.
            replies: one a prompt, in order; None where there is none.
            scores: the critic's, 0 to 1, None where there is none; None for all: the critic is asked here.
            said: `human_feedback`, `coherence`, `tokens_used`, `safety_penalty`, as for `step_many`.

        Raises:
            ValueError: it was told before, there is not one reply or score a prompt, or a signal is out of
                range; nothing is learned.
        """
        if asked.step not in self._open:
            raise ValueError(f"step {asked.step} was told already, or never asked here; tell each once")
        for name, given in (("replies", replies), ("scores", scores)):
            if given is not None and len(given) != len(asked.calls):
                raise ValueError(f"expected {len(asked.calls)} {name}, one a prompt, got {len(given)}")
        completions = [Completion(text=reply) if isinstance(reply, str) else reply for reply in replies]
        bare = [Candidate(prompt=p, completion=c) for p, c in zip(asked.prompts, completions, strict=True)]
        if scores is None:
            candidates = do_all(lambda each: scored(self.critic, asked.query, each), bare, self._workers)
        else:
            candidates = [given_score(each, score) for each, score in zip(bare, scores, strict=True)]
        (rewarded,) = self._rewards([(asked, candidates)], Signals(**said))
        self._open.remove(asked.step)
        return self._learn(asked, candidates, rewarded)

    def best_prompt(self, query: str) -> str:
        """The prompt that the actor likes best for a query; nothing is drawn and nothing learned.

        Raises:
            EncodingError: the query or a prompt has no embedding.
        """
        choice = self.actor.choose(query, self.population.prompts, 1, 0)
        return choice.prompts[choice.probabilities.index(max(choice.probabilities))]

    def _asked(self, query: str, step: int) -> AskedStep:
        choice = self.actor.choose(query, self.population.prompts, self._count, step)
        calls = self._asking.calls(query, choice.chosen, seed_of(self._seed, "step", step))
        return AskedStep(step=step, query=query, choice=choice, calls=tuple(calls))

    def _answered(self, asked: Sequence[AskedStep]) -> list[Tried]:
        """What was asked, and the replies to all of it, scored."""
        tries = [(each, place) for each in asked for place in range(len(each.calls))]
        candidates = iter(do_all(lambda item: self._candidate(*item), tries, self._workers))
        return [(each, [next(candidates) for _ in each.calls]) for each in asked]

    def _candidate(self, asked: AskedStep, place: int) -> Candidate:
        """The reply to one prompt, scored."""
        completion = raise_if_cancelled(self._llm.generate(asked.calls[place]))
        return scored(self.critic, asked.query, Candidate(prompt=asked.prompts[place], completion=completion))

    def _rewards(self, tried: Sequence[Tried], signals: Signals) -> list[list[CandidateReward | None]]:
        """The rewards of the candidates of some steps, in order; None for a candidate without a score."""
        cases = [
            (asked.query, candidate, place == best)
            for asked, candidates in tried
            for best in [asked.best_of(candidates)]
            for place, candidate in enumerate(candidates)
        ]
        if self._feedback_for_all and self._workers != 1:
            rewards = do_all(lambda case: self._reward(*case, signals), cases, self._workers)
        else:  # on this thread: people are asked one by one, and nothing more once that failed
            rewards = [self._reward(*case, signals) for case in cases]
        left = iter(rewards)
        return [[next(left) for _ in candidates] for _, candidates in tried]

    def _reward(
        self,
        query: str,
        candidate: Candidate,
        is_best: bool,  # noqa: FBT001 - of a case
        signals: Signals,
    ) -> CandidateReward | None:
        text, score = candidate.text, candidate.score
        if text is None or score is None:
            return None
        asked = is_best or (self._feedback_for_all and callable(signals.human_feedback))
        feedback = signals.feedback(query, text, self._aggregate) if asked else None
        foreseen = score if feedback is None else feedback
        parts = {"feedback": foreseen, "critic": score, **signals.parts(query, text, candidate.tokens)}
        reward = self._reward_fn(parts)
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be finite; the reward function gave {reward!r} for {parts}")
        return CandidateReward(reward=float(reward), parts=parts, feedback=feedback)

    def _learn(
        self, asked: AskedStep, candidates: Sequence[Candidate], rewarded: Sequence[CandidateReward | None]
    ) -> StepResult:
        """Tell population, critic and actor, in the order of the candidates; evolve when it is time."""
        self.unscored += rewarded.count(None)
        self.rewarded_steps += any(rewarded)
        rewards = [each.reward for each in rewarded if each is not None]
        for candidate, each in zip(candidates, rewarded, strict=True):
            if each is None:
                continue
            others = (sum(rewards) - each.reward) / (len(rewards) - 1) if len(rewards) > 1 else None
            self.population.tell(candidate.prompt, each.reward, others)
            if each.feedback is not None:
                teach(self.critic, asked.query, candidate, each.feedback)
        self.actor.learn(asked.choice, [None if each is None else each.reward for each in rewarded])
        best = asked.best_of(candidates)
        evolved = best is not None and self.rewarded_steps % self._interval == 0
        if evolved:
            self.population.evolve(self._workers)
        return StepResult.of(asked, candidates, rewarded, best, evolved=evolved)
