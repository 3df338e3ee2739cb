"""What the documents say of the code is so: their examples run, the files and imports they name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LIBRARY = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = (
    "benchmarks|cli|docs|envs|evaluation|mutators|ollama_utils|records|report|scorers|search|simulator"
    "|tests|train"
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![/\w])(?:{FOLDERS})/(?:[\w/]*/|[\w/]*\.\w+)?(?!\w)", text)
    linked = [path.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing + [str(link) for link in linked if not link.exists()] == []


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


def test_the_example_of_a_slow_environment_learns_and_can_be_driven_by_hand() -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL) if "LanePPO(" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "library.md", "exec"), names)  # noqa: S102 - our own document
    assert names["model"].num_timesteps == 1024
    assert len(names["arrivals"].lanes) >= 4
    names["lanes"].close(terminate=True)


def test_the_example_of_a_search_evolves_a_prompt_and_names_the_better_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL) if "run_evolution" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "library.md", "exec"), names)  # noqa: S102 - our own document
    shown = capsys.readouterr().out
    assert names["controller"].results["best_prompt"] in shown
    assert shown.endswith("Combination(model=b)\n")


def test_the_example_of_the_hybrid_flow_ends_with_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL) if "from_params" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "library.md", "exec"), names)  # noqa: S102 - our own document
    assert names["flow"].rewarded_steps == 50
    assert capsys.readouterr().out.strip() in names["flow"].population.prompts
