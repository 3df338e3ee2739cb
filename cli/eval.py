"""Evaluate policies: on held-out queries, side by side, compared with honest statistics.

Run it with `mutagym eval -p runs/train-... -p random`, or on several missions at once with
`mutagym eval -m small.toml -m large.toml -p runs/train-... --agents 4 --episodes 50`.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.formats import prints_on_stderr, write_report
from evaluation.config import EvalConfig
from ollama_utils.connect import Connection, connect
from ollama_utils.monitor import CallMonitor
from ollama_utils.on_ray import join_ray, whole_run
from records.errors import GateNotMetError, UserError
from records.interrupt import Interrupt, Interrupted, interruptible
from records.run_folder import SUMMARY, RunFolder, check_places
from scorers.correction import read_accuracy

if TYPE_CHECKING:
    from evaluation.run import PlayAll
    from evaluation.setup import OpenEvaluation
    from ollama_utils.reply_log import ReplyLog


def evaluate(config: EvalConfig = EvalConfig()) -> None:
    """Evaluate policies on held-out queries, and compare them.

    Every flag can stand in a TOML file: --config FILE; flags override it. The flags of a mission and of the
    server default to those of the first run that -p names. Exit code 4 says that a policy of -p was not shown
    to keep what --fail-under, --fail-over or --guard-queries ask of it; the report is written before.
    """
    from cli.eval_tables import print_tables
    from evaluation.gates import gates_missed, guard_missed, read_gates
    from evaluation.report import report  # scipy takes long to import
    from evaluation.run import begin
    from evaluation.setup import open_evaluation, read_inputs

    config = config.located()
    check_places(resume=config.resume, run_dir=config.run_dir, cache=config.cache, json=config.json)
    inputs, stdout = read_inputs(config), sys.stdout
    names = [spec.name for spec in inputs.specs]
    guards = [spec.name for spec in inputs.specs if spec.guard]
    gates = read_gates(config.gate.fail_under, config.gate.fail_over, names, guards)
    if gates and not config.policy:
        raise UserError("--fail-under and --fail-over are for the policies of -p: name one")
    accuracy = read_accuracy(config.judge_accuracy)
    with interruptible() as interrupt, connect(inputs.specs[0].server(config.server)) as connection:
        opened = RunFolder.of("eval", resume=config.resume, run_dir=config.run_dir, seed=config.seed)
        with opened as folder, ExitStack() as stack:
            stack.enter_context(prints_on_stderr())
            evaluation = stack.enter_context(open_evaluation(inputs, connection))
            play_all = _player(config, folder, connection, stack)
            replies = begin(evaluation, folder, connection, stack)
            results = _run(evaluation, folder, connection, play_all, replies, interrupt)
            found = report(
                results,
                power=config.power,
                accuracy=accuracy,
                guard_margin=config.guard.guard_margin,
                gates=gates,
            )
            with redirect_stdout(stdout):
                write_report(
                    found,
                    folder,
                    path=config.json,
                    form=config.format,
                    print_tables=lambda: print_tables(found, folder.closing_message),
                )
    if missed := "; ".join(filter(None, (gates_missed(found), guard_missed(found)))):
        raise GateNotMetError(missed)


def _player(config: EvalConfig, folder: RunFolder, connection: Connection, stack: ExitStack) -> PlayAll:
    """What plays the episodes: this process, or a Ray cluster, which is joined until the stack is closed."""
    from evaluation.run import play_here

    if config.engine.engine == "threads":
        return play_here
    from evaluation.on_ray import play_on_ray

    stack.enter_context(join_ray(config.engine.ray_address))
    return partial(play_on_ray, folder=folder.path, connection=connection)


def _run(
    evaluation: OpenEvaluation,
    folder: RunFolder,
    connection: Connection,
    play_all: PlayAll,
    replies: ReplyLog,
    interrupt: Interrupt,
) -> dict[str, Any]:
    """Fit, play, and keep the results; whatever ends it, what was answered is kept.

    The counts in summary.json are of this process, and below `whole_run` of those before it, too.
    """
    from evaluation.run import EvalProgress, run

    dispatcher, config = connection.dispatcher, evaluation.inputs.config
    monitor = CallMonitor(
        dispatcher,
        lanes=config.jobs,
        slots_setting=connection.slots_setting,
        most_calls=evaluation.inputs.most_calls,
    )
    began_s = time.monotonic()
    try:
        with EvalProgress(monitor) as progress:
            results = run(evaluation, folder, connection, progress, play_all)
        spent = {
            "wall_s": round(time.monotonic() - began_s, 3),
            **dispatcher.totals(),
            "whole_run": whole_run(replies, folder.path),
        }
    except (Interrupted, Exception) as error:
        dispatcher.cancel()
        raise folder.reported(error) from error
    interrupt.allow(allowed=False)  # the results are written whole
    folder.write_json("results.json", results)
    folder.write_json(SUMMARY, spent)
    return results
