"""What TensorBoard shows of a training is read back as TensorBoard reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.data_provider import (  # type: ignore[import-untyped]
    MultiplexerDataProvider,
)
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from tensorboard.backend.event_processing.plugin_event_multiplexer import (  # type: ignore[import-untyped]
    EventMultiplexer,
)
from tensorboard.plugins.base_plugin import TBContext  # type: ignore[import-untyped]
from tensorboard.plugins.custom_scalar import layout_pb2  # type: ignore[import-untyped]
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin  # type: ignore[import-untyped]
from werkzeug.test import Client

from ollama_utils.encoders import make_encoder
from scorers.statistics import Interval
from simulator.process import EmbeddedServer
from tests.runs import WORLD, lines, train
from train.board import COLUMNS, MOST_POINTS, QueryOutcomes, layout
from train.gain import Look

FLAGS = (
    *("--encoder", "hashing:64", "--num-processes", "4", "--num-steps", "16", "--num-env-steps", "192"),
    *("--ppo-epoch", "1"),
)
NAMES = ("rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate", "time/fps", "train/value_loss")
"""Numbers that have a name in Stable-Baselines3."""


@pytest.fixture(scope="module")
def run(simulator: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training."""
    folder = tmp_path_factory.mktemp("board") / "run"
    assert train(simulator.host, folder, *WORLD, *FLAGS) == 0
    return folder


@pytest.fixture(scope="module")
def events(run: Path) -> EventAccumulator:
    """What TensorBoard reads of it."""
    return EventAccumulator(str(run / "tb")).Reload()


def test_numbers_have_the_names_of_sb3_where_it_has_them(run: Path, events: EventAccumulator) -> None:
    for name in NAMES:
        told = [line[name] for line in lines(run, "metrics.jsonl") if name in line]
        assert [scalar.value for scalar in events.Scalars(name)] == pytest.approx(told)
        assert told


def test_every_chart_has_numbers_and_the_return_comes_first(events: EventAccumulator) -> None:
    (written,) = events.Tensors("custom_scalars__config__")
    charts = layout_pb2.Layout.FromString(written.tensor_proto.string_val[0])
    assert [group.title for group in charts.category][:2] == ["Return", "Outcomes"]
    tags = set(events.Tags()["scalars"])
    first = charts.category[0].chart[0]
    assert list(first.multiline.tag) == ["rollout/ep_rew_mean"]
    for chart in (chart for group in charts.category for chart in group.chart):
        named = [
            *chart.multiline.tag,
            *(end for s in chart.margin.series for end in (s.value, s.lower, s.upper)),
        ]
        assert any(re.fullmatch(pattern, tag) for pattern in named for tag in tags), chart.title


def test_where_the_gain_is_measured_its_chart_has_its_interval() -> None:
    kind, tags = layout(["noop"], kept=True)["Return"]["gain over the best fixed mutator"]
    interval = Interval(0.1, 0.0, 0.2)
    look = Look(steps=1, success=0.5, rival="noop", gain=interval, slope=None, kept_steps=1)
    told = look.metrics()
    assert (kind, [told[tag] for tag in tags]) == ("Margin", [0.1, 0.0, 0.2])


def test_the_projector_shows_each_query_where_its_embedding_is_with_what_came_of_it(run: Path) -> None:
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(run)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(run))
    plugin = ProjectorPlugin(
        TBContext(logdir=str(run), data_provider=provider, multiplexer=multiplexer, flags=None)
    )
    routes = plugin.get_plugin_apps()
    (info,) = json.loads(Client(routes["/info"]).get("/?run=tb").data)["embeddings"]
    asked = f"/?run=tb&name={info['tensorName']}"
    header, *rows = Client(routes["/metadata"]).get(asked).data.decode().splitlines()
    assert tuple(header.split("\t")) == COLUMNS
    points = np.frombuffer(Client(routes["/tensor"]).get(asked).data, np.float32)
    points = points.reshape(info["tensorShape"])
    queries = [row.split("\t")[0] for row in rows]
    assert sorted(queries) == sorted({line["original_query"] for line in lines(run)})
    expected = make_encoder("hashing:64").encode(queries)
    np.testing.assert_allclose(points, expected, rtol=1e-3, atol=1e-6)
    last = {line["original_query"]: line["outcome"] for line in lines(run)}
    outcomes = {row.split("\t")[0]: row.split("\t")[1] for row in rows}
    assert all(outcomes[query] in {last[query], "undetermined"} for query in queries)


def test_no_more_queries_are_shown_than_a_browser_bears() -> None:
    step = {"terminated": True, "truncated": False, "outcome": "answered", "success": True, "mutator": "noop"}
    often = [{**step, "original_query": "often"}] * 2
    many = [{**step, "original_query": f"query {k}"} for k in range(2 * MOST_POINTS)]
    outcomes = QueryOutcomes([*many, *often])
    assert len(outcomes.queries()) == MOST_POINTS
    assert outcomes.queries()[0] == "often"
    assert outcomes.row("often") == ("often", "answered", "1.00", "2", "noop")
