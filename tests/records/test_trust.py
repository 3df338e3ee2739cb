"""Which runs are one's own, and what of another's settings counts as code, hosts and files."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from cli.evolve import EvolveConfig
from cli.optimize import OptimizeConfig
from cli.select import SelectConfig
from evaluation.config import EvalConfig
from records.errors import UserError
from records.run_folder import RunFolder
from records.settings import flags_of, resolved
from records.trust import ALWAYS, BY_VALUE, KEY, MARK, WORDS, is_made_here, parts_of, usable_settings
from train.config import TrainConfig

SETTINGS = {"mutators": ["noop", "shorten"], "ollama-host": ["embedded"]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of this user's."""
    with RunFolder(tmp_path / "run") as folder:
        folder.write_config(SETTINGS)
    return folder.path


def write_again(run: Path, settings: dict[str, Any]) -> None:
    with RunFolder(run, resume=True) as folder:
        folder.write_config(settings)


def test_a_run_that_was_made_here_is_known_wherever_it_is_moved(run: Path, tmp_path: Path) -> None:
    assert is_made_here(run)
    assert is_made_here(run.rename(tmp_path / "elsewhere"))


def test_a_run_without_a_mark_with_a_changed_config_or_of_another_key_is_not_known(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
        assert not is_made_here(run)
    config = (run / "config.toml").read_bytes()
    (run / "config.toml").write_bytes(config + b"\n")
    assert not is_made_here(run)
    (run / "config.toml").write_bytes(config)
    assert is_made_here(run)
    (run / MARK).unlink()
    assert not is_made_here(run)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", '{"config_toml_hmac_sha256": 1}', "[" * 100_000, "\0", '{"a": 1' + "0" * 400],
)
def test_a_damaged_mark_is_no_mark(run: Path, content: str) -> None:
    (run / MARK).write_text(content)
    assert not is_made_here(run)


def test_a_config_that_is_written_anew_is_known_before_and_behind_the_moment(run: Path) -> None:
    before = (run / "config.toml").read_bytes()
    write_again(run, SETTINGS | {"ollama-host": ["http://127.0.0.1:1"]})
    assert is_made_here(run)
    (run / "config.toml").write_bytes(before)  # killed between the two writes
    assert is_made_here(run)


def test_a_strangers_config_does_not_become_known_by_the_one_that_follows_it(run: Path) -> None:
    (run / "config.toml").write_text('mutators = ["evil.py:f"]\n')
    strange = (run / "config.toml").read_bytes()
    write_again(run, SETTINGS)
    assert is_made_here(run)
    (run / "config.toml").write_bytes(strange)
    assert not is_made_here(run)


def test_the_key_is_the_users_alone(run: Path, state_folder: Path) -> None:
    key = state_folder / "mutagym" / KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    try:
        assert not is_made_here(run)
    finally:
        key.chmod(0o600)


@pytest.mark.parametrize(
    "environment",
    [
        {"XDG_STATE_HOME": "{file}/below"},
        {"XDG_STATE_HOME": "", "HOME": ""},
        {"XDG_STATE_HOME": "a", "HOME": "b"},
    ],
)
def test_without_a_place_for_the_key_a_run_is_written_unmarked_and_one_line_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
) -> None:
    (tmp_path / "file").touch()
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(file=tmp_path / "file"))
    with RunFolder(tmp_path / "run") as folder:
        folder.write_config(SETTINGS)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: the run is not marked as made here")
    assert "--trust-run" in line
    assert (tmp_path / "run" / "config.toml").exists()
    assert not (tmp_path / "run" / MARK).exists()


@pytest.mark.parametrize(
    ("flag", "value", "kind"),
    [
        ("mutators", "noop", None),
        ("mutators", "mine.py:shout", "code"),
        ("mutators", "mine:shout", "code"),
        ("encoder", "all-MiniLM-L6-v2", None),
        ("encoder", "hashing:64", None),
        ("encoder", "ollama:nomic-embed-text", None),
        ("encoder", "someone/a-model", "code"),
        ("encoder", "/there", "code"),
        ("encoder", "hashing/../there", "code"),
        ("reward", "judge", None),
        ("reward", "folder", "code"),
        ("reward", "mine.py:grade", "code"),
        ("policy", "ucb1,proportion=0.5", None),
        ("policy", "llm:hf.co/some/model", None),
        ("policy", "class=os.system", "code"),
        ("policy", "run=there", "files"),
        ("policy", "there", "files"),
        ("baselines", "noop", None),
        ("baselines", "class=mine.py:P", "code"),
        ("mission", "there.toml", "files"),
        ("mission", "name=a,mutators=mine.py:f", "code"),
        ("world", "drawn", None),
        ("world", "drawn.toml", "files"),
        ("ollama-host", "embedded", None),
        ("ollama-host", "127.0.0.1", "hosts"),
        ("ollama-host", "@hosts.txt", "hosts"),
        ("ollama-host", "openai:http://a/v1", "hosts"),
        ("ollama-host", "", "hosts"),
        ("engine", "threads", None),
        ("engine", "ray", None),
        ("ray-address", "10.0.0.1:6379", "hosts"),
        ("seed-prompt", "Answer in one word.", None),
        ("seed-prompt", "notes.txt", "files"),
        ("seed-prompt", __file__, "files"),
        ("json", "5", "files"),
        ("queries", "5", "files"),
        ("lr", "0.5", None),
        ("think", "True", None),
        ("target-system", "You are /etc/passwd.", None),
        ("a-flag-of-the-future", "text", "files"),
    ],
)
def test_what_a_setting_is(flag: str, value: str, kind: str | None) -> None:
    assert [part.kind for part in parts_of({flag: [value]})] == ([kind] if kind else [])


def flags(config: type) -> Iterator[tuple[str, Any]]:
    """The flags of a config and of those in it, with their types."""
    hints, names = get_type_hints(config), flags_of(config)
    for field in fields(config):
        if is_dataclass(hints[field.name]):
            yield from flags(hints[field.name])
        elif field.name in names:
            yield names[field.name], hints[field.name]


def takes_text(hint: Any) -> bool:  # noqa: ANN401 - a type
    return hint in {str, Path} or any(takes_text(part) for part in get_args(hint) if isinstance(part, type))


@pytest.mark.parametrize("config", [TrainConfig, EvalConfig, EvolveConfig, SelectConfig, OptimizeConfig])
def test_every_flag_that_takes_a_text_is_one_that_trust_knows(config: type) -> None:
    known = WORDS | ALWAYS.keys() | BY_VALUE.keys() | {"seed-prompt"}
    assert {flag for flag, hint in flags(config) if takes_text(hint)} <= known


@pytest.mark.parametrize("config", [TrainConfig, EvalConfig, EvolveConfig, SelectConfig, OptimizeConfig])
def test_what_is_left_at_its_default_names_nothing(config: type) -> None:
    table = {flag: value for flag, value in resolved(config()).items() if value is not None}
    lists = {flag: value if isinstance(value, tuple) else [value] for flag, value in table.items()}
    assert parts_of({flag: [str(item) for item in items] for flag, items in lists.items()}) == []


def test_what_a_message_shows_of_a_strangers_settings_is_short_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    hosts = [f"http://{k}\n\x1b[2J{'a' * 500}" for k in range(500)]
    with pytest.raises(UserError) as caught:
        usable_settings(tmp_path, {"ollama-host": hosts}, trusted=False)
    assert len(str(caught.value)) < 1500
    assert str(caught.value).isprintable()


def test_what_is_trusted_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").touch()
    names = [f"{'a' * 500}{k}.py:f" for k in range(50)]
    usable_settings(tmp_path, {"mutators": names}, trusted=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert all(f"--mutators '{name}'" in line for name in names)


def test_what_ollama_host_does_not_name_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:1")
    (tmp_path / "config.toml").touch()
    settings = {"ollama-host": ["http://there"], "seed": ["0"]}
    assert usable_settings(tmp_path, settings, trusted=False) == {"seed"}
    capsys.readouterr()
    with pytest.raises(UserError, match=r"names files \(--queries 'a'\)"):
        usable_settings(tmp_path, settings | {"queries": ["a"]}, trusted=False)
    assert capsys.readouterr().err == ""


def test_links_in_a_folder_that_is_written_count_as_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("x")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").touch()
    (run / "transitions.jsonl").symlink_to(mine)
    usable_settings(run, {}, trusted=False)
    with pytest.raises(UserError, match=r"transitions\.jsonl -> .*mine\.txt"):
        usable_settings(run, {}, trusted=False, links=True)


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", ".part-config.toml", "checkpoints/last.pt", "tb", "seed-1"),
        *("seed-1/metrics.jsonl", "seed-1/checkpoints/last.pt"),
    ],
)
def test_links_that_were_put_into_ones_own_run_count_too(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(tmp_path / "mine.txt")
    with pytest.raises(UserError, match=rf"made here, but .* files \('{name} -> .*mine\.txt'\)"):
        usable_settings(run, SETTINGS, trusted=False, links=True)
    assert usable_settings(run, SETTINGS, trusted=True, links=True) == SETTINGS.keys()
    assert usable_settings(run, SETTINGS, trusted=False) == SETTINGS.keys()


def test_a_mark_says_nothing_of_the_key(run: Path, state_folder: Path) -> None:
    key = (state_folder / "mutagym" / KEY).read_bytes()
    (mark,) = json.loads((run / MARK).read_text())["config_toml_hmac_sha256"]
    assert len(mark) == 64
    assert key.hex() not in (run / MARK).read_text()
