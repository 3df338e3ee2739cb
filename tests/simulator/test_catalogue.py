"""A model's digest: what it stands for, and what leaves it as it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import simulator
from simulator.models import REPLIES_VERSION, Catalogue
from simulator.personas.persona_file import parse_persona
from tests.personas import SHIPPED

MODELS = ("sim-target:latest", "sim-mutator:latest")
DIGESTS = f"""
from simulator.models import Catalogue
from simulator.personas.persona_file import load_persona
print(*[Catalogue(load_persona(None), "0 64").digest(model) for model in {MODELS!r}])
"""


def digests(persona: str = 'extends = "cautious"', stamp: str = "0 64", version: int = 1) -> list[str]:
    catalogue = Catalogue(parse_persona(persona), stamp, version)
    return [catalogue.digest(model) for model in MODELS]


def test_a_digest_depends_on_model_persona_settings_and_version() -> None:
    other_persona = 'extends = "cautious"\n[judge]\nerror_rate = 0.06'
    every = [digests(), digests(other_persona), digests(stamp="1 64"), digests(version=2)]
    assert len({digest for each in every for digest in each}) == len(every) * len(MODELS)
    assert digests() == digests()


def test_an_edit_of_the_simulators_code_alone_leaves_the_digests(tmp_path: Path) -> None:
    copied = tmp_path / "simulator"
    shutil.copytree(Path(simulator.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for source in copied.rglob("*.py"):
        source.write_text(f"{source.read_text('utf-8')}\n# edited\n", "utf-8")
    told = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", DIGESTS], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    catalogue = Catalogue(SHIPPED, "0 64", REPLIES_VERSION)
    assert told.stdout.split() == [catalogue.digest(model) for model in MODELS]
