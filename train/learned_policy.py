"""What a run learned, in use from Python: a query in, the mutator to reword it with out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from envs.mission import open_encoder
from envs.observation import Memory, observation
from envs.queries import VISIBLE
from ollama_utils.types import is_text
from records.errors import UserError
from records.trust import kind_of
from train.bandit import BanditPolicy
from train.rollouts import BLOCK_ROWS, in_blocks
from train.trained_run import TrainedRun, load_run

if TYPE_CHECKING:
    from ollama_utils.dispatcher import Dispatcher
    from ollama_utils.encoders import Encoder


def load_policy(
    run: str | Path,
    *,
    encoder: str | Encoder | None = None,
    dispatcher: Dispatcher | None = None,
    trusted: bool = False,
) -> LearnedPolicy:
    """The policy of a training run, by any algorithm.

    Nothing of the run is executed: its weights are tensors. Only its sentence encoder may hold code, where
    it is none of ours: it is not loaded before you name it, or trust the run.

    Args:
        run: the folder of a `mutagym train` run.
        encoder: the sentence encoder that it was trained with, by name or open already [the run's].
        dispatcher: reaches the server of an `ollama:` encoder; no host that the run names is called.
        trusted: load the encoder that the run names, whatever it is.

    Raises:
        UserError: this is no training run, it has no policy yet, a file of it is damaged, or its encoder
            cannot be used.
    """
    found = load_run(run)
    found.load_network()  # what is wrong with it is said before an encoder is opened
    name = _encoder_named(found, encoder, trusted=trusted)
    if name is None:
        return LearnedPolicy(found, encoder)  # type: ignore[arg-type] # no name: it is open
    if name.startswith("ollama:") and dispatcher is None:
        raise UserError(
            f"the run {str(found.path)!r} was trained with the encoder {name!r}, a model of a server: pass "
            "dispatcher=Dispatcher([HOST])"
        )
    return LearnedPolicy(found, open_encoder(name, dispatcher))


class LearnedPolicy:
    """Chooses as `mutagym ask` and `mutagym eval` do at the beginning of an episode; threads may share it.

    Args:
        run: the run that learned it.
        encoder: the sentence encoder that it was trained with.

    Raises:
        UserError: the run's network cannot be loaded.
    """

    def __init__(self, run: TrainedRun, encoder: Encoder) -> None:
        self.run = run
        self.encoder = encoder
        self._network = run.load_network()

    @property
    def mutators(self) -> tuple[str, ...]:
        """The names that it chooses from: those of `mutators.registry.load_mutators`."""
        return self.run.mutators

    def choose(self, query: str) -> str:
        """The name of the mutator to reword a query with: the same one each time.

        Raises:
            ValueError: the query is blank, or not valid Unicode.
            EncodingError: it cannot be embedded.
            UserError: the encoder is of another size than the one that the policy was trained with.
        """
        return self.choose_many([query])[0]

    def choose_many(self, queries: Sequence[str]) -> list[str]:
        """`choose` for N queries, each of which goes as it would alone."""
        return [self.mutators[action] for action in self.scores(queries).argmax(axis=1)]

    def probabilities(self, query: str) -> dict[str, float]:
        """How likely the policy is to draw each mutator in training; the likeliest is what `choose` says.

        Raises:
            ValueError: it learned by a bandit, which has none: see `scores`; or as `choose` says.
        """
        if isinstance(self._network.policy, BanditPolicy):
            raise ValueError(  # noqa: TRY004 - of a run, not of an argument
                f"the run {str(self.run.path)!r} learned by a bandit, which has no probabilities: "
                "use scores([query])"
            )
        chances = np.exp(self.scores([query])[0].astype(np.float64))
        return dict(zip(self.mutators, (chances / chances.sum()).tolist(), strict=True))

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """What each mutator is worth for N queries (N, mutators), of which the highest is chosen.

        Of PPO log-probabilities, of a bandit expected rewards. Raises as `choose` does.
        """
        for query in queries:
            if not is_text(query) or not VISIBLE.search(query):
                raise ValueError(f"expected a query that is not blank, in valid Unicode, got {query!r:.80}")
        count = len(self.mutators)
        if not queries:
            return np.zeros((0, count), np.float32)
        rows = self.encoder.encode(queries)
        shown = np.stack([observation(row, count, Memory(), 0.0) for row in rows])
        # Each in the first row of a block of its own, as `mutagym ask` has it: so the bits are the same.
        places = range(0, BLOCK_ROWS * len(queries), BLOCK_ROWS)
        (scores,) = in_blocks(lambda block: (self._network(torch.from_numpy(block).clone()),), shown, places)
        return np.asarray(scores, np.float32)


def _encoder_named(run: TrainedRun, encoder: str | Encoder | None, *, trusted: bool) -> str | None:
    """The encoder to be opened; None: it is open.

    Raises:
        UserError: it is not the run's, or the run alone names what may be code.
    """
    if encoder is not None and not isinstance(encoder, str):
        return None
    if encoder is not None and encoder != run.encoder:
        raise UserError(
            f"the run {str(run.path)!r} was trained with the encoder {run.encoder!r}, got {encoder!r}: name "
            "that of the run, or leave it out"
        )
    if encoder is None and kind_of("encoder", run.encoder) and not trusted:
        raise UserError(
            f"the run {str(run.path)!r} names the encoder {run.encoder!r}, which may hold code: pass "
            f"encoder={run.encoder!r} if you know it, or trusted=True"
        )
    return run.encoder
