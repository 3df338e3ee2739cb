"""The documents make a site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import ROOT


def test_the_site_builds_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("zensical.toml", "runs/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert pages == {path.stem for path in (ROOT / "docs").glob("*.md")} | {"404"}
