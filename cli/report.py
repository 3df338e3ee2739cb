"""Make a page of any run folders: `mutagym report runs/train-... runs/eval-... -o page.html`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from records.errors import UserError
from records.outputs import check_writable, writing
from records.settings import CountOrZero
from records.terminal import write_stderr

NAME = "report.html"


def report(
    *runs: Path,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    transitions: CountOrZero | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
) -> None:
    """Make one HTML file of run folders, which needs no network: tables, charts, every transition.

    Args:
        runs: the folders, of any command. An evaluation beside the training that its -p names shows
            the baselines beside the learning curve.
        output: the file [report.html in the folder of the run; of several runs it must be named].
        transitions: as many transitions of each run are in it: the last ones [20,000 shared by the
            runs].
        open_: show it in the browser.
    """
    from report.page import make_page, runs_in

    if not runs:
        raise UserError(
            "no run is named; expected the folder of one or several, as in runs/train-..."
        )
    if output is None and len(runs) > 1:
        raise UserError(
            "the report of several runs lies in none of them: name its file with -o, as in -o "
            "both.html"
        )
    folders = [folder for run in runs for folder in runs_in(run)]
    path = output or runs[0] / NAME
    is_own = path in [folder / NAME for folder in (*runs, *folders)]
    for run in runs:
        check_writable(path, "--output", apart_from=None if is_own else run)
    page = make_page(folders, path.parent, most_steps=transitions)
    with writing(path) as place:
        place.write_text(page, encoding="utf-8")
    write_stderr(f"report: {path}, {len(page.encode()) / 1e6:.1f} MB")
    if open_ and not webbrowser.open(path.absolute().as_uri()):
        write_stderr("no browser was found: open the file yourself")
