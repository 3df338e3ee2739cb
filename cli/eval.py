"""Evaluate policies: on held-out queries, side by side, compared with honest statistics.

Run it with `mutagym eval -p runs/train-... -p random`, or on several missions at once with
`mutagym eval -m small.toml -m large.toml -p runs/train-... --agents 4 --episodes 50`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cli.output import write_report
from evaluation.config import EvalConfig
from ollama_utils.monitor import CallMonitor
from ollama_utils.on_ray import join_ray
from ollama_utils.session import Found, Session, open_session
from records.errors import GateNotMetError, UserError
from records.run_folder import check_places
from scorers.correction import read_accuracy

if TYPE_CHECKING:
    from evaluation.run import EvalInputs


def evaluate(config: EvalConfig = EvalConfig()) -> None:
    """Evaluate policies on held-out queries, and compare them.

    Every flag can stand in a TOML file: --config FILE; flags override it. The flags of a mission
    and of the server default to those of the first run that -p names. Exit code 4 says that a
    policy of -p was not shown to keep what --fail-under, --fail-over or --guard-queries ask of it;
    the report is written before.
    """
    from evaluation.gates import gates_missed, guard_missed, read_gates
    from evaluation.report import report  # scipy takes long to import
    from evaluation.run import read_inputs
    from report.evaluations import evaluation_tables

    config = config.located()
    check_places(config)
    inputs = read_inputs(config)
    names = [mission.name for mission in inputs.missions]
    guards = [mission.name for mission in inputs.missions if mission.guard_of]
    gates = read_gates(config.gate.fail_under, config.gate.fail_over, names, guards)
    if gates and not config.policy:
        raise UserError("--fail-under and --fail-over are for the policies of -p: name one")
    accuracy = read_accuracy(config.judge_accuracy)
    with open_session("eval", config, inputs.missions[0].server(config.server)) as session:
        found = report(
            _play(inputs, session).results,
            power=config.power,
            accuracy=accuracy,
            guard_margin=config.guard.guard_margin,
            gates=gates,
        )
        tables, lines = evaluation_tables(found), [*found["notes"], *found["problems"]]
        write_report(found, session, config.json, config.format, tables=tables, lines=lines)
    unlocked = guard_missed(found) if config.guard.guard_queries else ""
    if missed := "; ".join(filter(None, (gates_missed(found), unlocked))):
        raise GateNotMetError(missed)


def _play(inputs: EvalInputs, session: Session) -> Found:
    """Fit the policies, and play all episodes: in this process, or on a Ray cluster."""
    from evaluation.on_ray import play_on_ray
    from evaluation.run import EvalProgress, begin, open_evaluation, run

    config, connection, folder = inputs.config, session.connection, session.folder
    evaluation = session.stack.enter_context(open_evaluation(inputs, connection))
    play_all = evaluation.play_all
    if config.engine.engine == "ray":
        session.stack.enter_context(join_ray(config.engine.ray_address))
        play_all = partial(play_on_ray, evaluation, folder.path)
    begin(evaluation, session)
    monitor = CallMonitor(
        connection.dispatcher,
        lanes=config.jobs,
        slots_setting=connection.slots_setting,
    )

    def work() -> Found:
        with EvalProgress(monitor) as progress:
            return Found(results=run(evaluation, folder, progress, play_all))

    return session.play(work)
