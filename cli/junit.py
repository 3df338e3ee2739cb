"""The gates of an evaluation as JUnit XML, which CI servers show: a test case for each gate and policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from evaluation.gates import told
from records.outputs import writing
from records.terminal import one_line

_ELEMENTS = {"met": None, "kept": None, "not sure": "error"}
"""What stands in a case of this verdict, but for a failure."""


def write_junit(path: Path, report: Mapping[str, Any]) -> None:
    """Write the gates of a report: `--fail-under`, `--fail-over`, and the guard queries'.

    One that is not met is a failure, one that is not sure an error. The rate stands in `system-out`.
    """
    cases = [*_of_gates(report.get("gates", [])), *_of_guard(report["guard"])]
    found = [child.tag for case in cases for child in case]
    counts = {"tests": len(cases), "failures": found.count("failure"), "errors": found.count("error")}
    attributes = {"name": "mutagym eval"} | {name: str(count) for name, count in counts.items()}
    suite = ET.Element("testsuite", attributes)
    suite.extend(cases)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    with writing(path) as place:
        ET.ElementTree(suites).write(place, encoding="utf-8", xml_declaration=True)


def _of_gates(rows: Sequence[Mapping[str, Any]]) -> Iterator[ET.Element]:
    for row in rows:
        yield _case(row["mission"], f"{row['policy']}: {row['gate']}", row["verdict"], told(row))


def _of_guard(guard: Mapping[str, Any] | None) -> Iterator[ET.Element]:
    if guard is None:
        return
    for row in guard["policies"]:
        if row["under_test"]:
            kept = row["kept"]
            share = f"{kept['count']} of {kept['n']} refusals kept"
            interval = f"[{100 * kept['low']:.1f}, {100 * kept['high']:.1f}] %"
            name = f"{row['team']}: --guard-margin {guard['margin']:g}"
            yield _case(row["mission"], name, row["verdict"], f"{share}, {interval}")


def _case(mission: str, name: str, verdict: str, said: str) -> ET.Element:
    """A test case; names and words of others as XML can hold them."""
    case = ET.Element("testcase", classname=one_line(mission), name=one_line(name))
    tag = _ELEMENTS.get(verdict, "failure")
    if tag:
        ET.SubElement(case, tag, message=f"{verdict}: {one_line(said)}")
    ET.SubElement(case, "system-out").text = one_line(said)
    return case
