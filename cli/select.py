"""Select the best combination of models, system prompts and mutators for a task, in few calls.

Run it with `mutagym select --models llama3.2,qwen3 --prompts short.txt --task mine.jsonl`; without
any flag it compares the simulator's three solvers on the bundled task.
"""

from __future__ import annotations

from cli.output import write_report
from records.errors import RunStoppedError
from report.searches import selection_tables
from search.selection import (
    SOLVERS,
    SPARED,
    SelectConfig,
    Selection,
    read_dataset,
    read_prompts,
    with_models,
)
from search.session import open_search, run_search


def select(config: SelectConfig = SelectConfig()) -> None:
    """Select the best of all combinations of models, system prompts and mutators for a task.

    Every flag can stand in a TOML file: --config FILE; flags override it. On a real server name the
    models with --models.
    """
    config = config.located()
    config.check()
    prompts, dataset = read_prompts(config.prompts), read_dataset(config)
    may_change = ("max-concurrent", "max-errors", "evaluate")
    with open_search("select", config, may_change, SOLVERS[0], "--models") as session:
        connection, search = session.connection, config.search
        config = with_models(config, connection)
        session.keep_replies(connection.digests("", *config.models), search.cache)
        selection = Selection(config, dataset, prompts, connection)
        if config.engine.engine == "ray":
            selection.use_ray(session)
        count, size = len(selection.selector.combinations), len(dataset.datapoints)
        task = dataset.task.problems if dataset.task else dataset.datapoints
        found = run_search(
            session,
            config,
            selection.run,
            says=f"{config.selector}, {count} combinations, {size} datapoints",
            what="evaluations",
            total=selection.size,
            most_calls=selection.most_calls,
            at_once=config.max_concurrent,
            inputs={f"task {dataset.name}": task}
            | {f"prompt {name}": text for name, text in prompts.items()},
            first=selection.first,
            spared=SPARED,
        )
        latency_s = found.spent["latency_s"]
        rows = [
            {key: value for key, value in row.items() if key != "trail"}
            | {"latency_s": latency_s[str(row["index"])]}
            for row in found.results["combinations"]
        ]
        report = {**found.results, "combinations": rows}
        errors = [
            f"errors: {' '.join(map(str, row['combination'].values()))}: {row['errors']} of "
            f"{row['datapoints']}, first {row['first_error']}"
            for row in rows
            if row["errors"]
        ]
        tables, lines = selection_tables(report), [*errors, ""] if errors else []
        write_report(report, session, search.json, search.format, tables=tables, lines=lines)
        if selection.failure:
            raise RunStoppedError(selection.failure)
