"""The files, links and imports that the documents name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from evaluation.specs import NAMES
from tests.docs.snippets import DOCUMENTS, ROOT

FOLDERS = (
    "benchmarks|cli|docs|envs|evaluation|examples|mutators|ollama_utils|records|report|scorers|search|"
    "simulator|tests|train"
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![/\w])(?:{FOLDERS})/(?:[\w/]*/|[\w/]*\.\w+)?(?!\w)", text)
    linked = [path.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing + [str(link) for link in linked if not link.exists()] == []


def test_the_page_of_evaluations_names_every_kind_of_policy() -> None:
    text = (ROOT / "docs" / "evaluating.md").read_text(encoding="utf-8")
    bullet = re.search(r"^- `-p` is .*?(?=^- )", text, re.MULTILINE | re.DOTALL)
    assert bullet
    assert [kind for kind in NAMES if not re.search(rf"`{kind}[`:]", bullet[0])] == []


def test_the_citation_names_this_version() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= told.keys()  # what the format demands
    assert (told["title"], told["version"], told["license"]) == tuple(
        project[key] for key in ("name", "version", "license")
    )
    assert all("name" in author for author in told["authors"])


def test_every_import_in_the_table_of_names_works() -> None:
    lines = re.findall(
        r"`(from \w+ import [\w, ]+)`", (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    )
    assert len(lines) > 10
    for line in lines:
        exec(line, {})  # noqa: S102 - our own document
