"""Settings: flags, TOML and config.toml say the same, and what no flag takes is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from cyclopts import App, CycloptsError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.defaults import Defaults
from cli.evolve import EvolveConfig
from cli.main import execute
from cli.optimize import OptimizeConfig
from cli.serve import ServeConfig
from evaluation.config import EvalConfig
from records.run_folder import RunFolder
from records.settings import as_texts, as_words, flags_of, resolved
from search.selection import SelectConfig
from train.config import TrainConfig

CONFIGS = (TrainConfig, EvalConfig, EvolveConfig, SelectConfig, OptimizeConfig, ServeConfig)


def parse(config: type, tokens: list[str], file: Path | None = None) -> object:
    """What a command's flags and its `--config` come to."""

    def read(given: object = config()) -> object:
        return given

    read.__annotations__["given"] = config
    layers = (Defaults(file=file),)
    app = App(config=layers, version_flags=(), help_flags=())
    app.default(read)
    return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters=",\r"), min_size=1).filter(
    str.strip
)
FLAGS = {
    "lr": st.floats(1e-9, 1e9).map(str),
    "num-env-steps": st.integers(1, 2**62).map(str),
    "think": st.sampled_from(["off", "on", "low", "medium", "high"]),
    "target-system": TEXTS,
    "encoder": TEXTS,
    "mutators": st.lists(TEXTS.map(str.strip), min_size=1, max_size=3),
    "where": st.lists(TEXTS, max_size=3),
    "ollama-host": st.lists(TEXTS, max_size=2),
    "max-in-flight": st.sampled_from(["auto", "7"]),
    "held-out": st.floats(0, 1).map(str),
}


@settings(max_examples=15)
@given(st.fixed_dictionaries({}, optional=FLAGS))
@example({"target-system": 'a "DEL" \x7f, \\ and \u2028\n', "where": ["-a=b"]})
def test_flags_written_as_toml_read_back_as_the_same_flags(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, Any]
) -> None:
    words: list[str] = []
    for flag, value in flags.items():
        for word in as_words(flag, as_texts(value)):
            if words and words[-1] == f"--{flag}":  # a switch has its value behind a `=` alone
                words[-1] += f"={word}"
            else:
                words.append(word)
    config = parse(TrainConfig, words)
    with RunFolder(tmp_path_factory.mktemp("run")) as folder:
        folder.begin(resolved(config), simulated=True)
    assert parse(TrainConfig, [], folder.path / "config.toml") == config


def odd_numbers(config: type) -> Iterator[tuple[str, str]]:
    """The flags of a config that take a number, each with a value that it must refuse."""
    hints, names = get_type_hints(config), flags_of(config)
    for field in fields(config):
        hint = hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from odd_numbers(hint)
        elif field.name in names and {int, float} & {hint, *get_args(hint)}:
            yield names[field.name], "4.5" if int in {hint, *get_args(hint)} else "nan"


def test_a_number_that_is_none_is_refused_and_no_whole_number_is_rounded() -> None:
    odd = {item: config for config in CONFIGS for item in odd_numbers(config)}
    for (flag, value), config in odd.items():
        with pytest.raises((CycloptsError, ValueError), match=rf"--{flag}|{value}"):
            pytest.fail(f"--{flag} {value} is {parse(config, [f'--{flag}={value}'])!r}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num-proceses = 4", "Did you mean --num-processes?"),
        ("[train]\nlr = 1", "'train' is a table; expected flags as keys at the top"),
        ("no-batching = true", "has 'no-batching'; write 'use-batching = false' instead"),
        ("lr = 2020-01-01", "'lr' is a date; expected flags"),
        ("lr =", "is not a TOML file that can be read: Invalid value"),
        ("a = " + "[" * 10**5, "nested too deep"),
        ("# " + "x" * 2**24, "over 16777216 bytes"),
        ("lr = 'é'".encode("latin-1"), "not text in UTF-8"),
    ],
)
def test_what_no_flag_takes_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, says: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert execute(["train", "--config", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert str(path) in line


def test_the_first_line_says_what_code_and_hosts_a_file_brings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    mutators = ["noop", "mine.py:shout"]
    path.write_text(f'\ufeffollama_host = ["http://a"]\nmutators = {json.dumps(mutators)}\n')
    assert execute(["train", "--config", str(path)]) == 2
    first, *_ = capsys.readouterr().err.splitlines()
    brings = "code (--mutators noop,mine.py:shout) and hosts (--ollama-host http://a)"
    assert first == f"config: '{path}' brings {brings}"
    path.write_text(f'queries = "{tmp_path}/none.csv"\nlr = 0.5\n')
    assert execute(["train", "--config", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mutagym: --queries: there is no regular file")
