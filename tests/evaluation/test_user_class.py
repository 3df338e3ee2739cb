"""A policy of the user's own: `class=my.module.Policy` and `class=path/to/file.py:Policy`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from evaluation.policies import PolicySource
from evaluation.specs import parse_policy
from evaluation.stepping import PolicyStepper
from evaluation.user_class import user_source
from tests.evaluation.policies_for_tests import MUTATORS, play, view

OWN = """
class Policy:
    rewords_original = True
    def __init__(self, mutators, seed, start=0):
        self.action = start + len(mutators) + seed
    def step(self, view):
        self.action += 1
        return self.action % len(view.mutators)
class NoStep:
    def __init__(self, **_): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_policy_of_a_user.py"
    file.write_text(OWN)
    return file


def made(text: str) -> PolicySource:
    spec = parse_policy(f"class={text}")
    return user_source(spec.name, spec.arg, MUTATORS, spec.options)


def test_a_source_goes_on_with_the_file_that_it_began_with_in_other_processes_too(
    own: Path,
) -> None:
    first = made(f"{own}:Policy,start=2")
    own.write_text(OWN.replace("+= 1", "+= 2").replace("rewords_original = True", ""))
    second = made(f"{own}:Policy")
    own.unlink()
    with closing(PolicyStepper("process", jobs=1)) as stepper:
        assert play(stepper, [first, first], steps=5) == [[3, 4, 5, 6, 0], [4, 5, 6, 0, 1]]
        assert play(stepper, [second], steps=3) == [[2, 4, 6]]
        assert play(stepper, [first], steps=2) == [[3, 4]]
    assert (first.rewords_original, second.rewords_original) == (True, False)


def test_a_class_of_a_module_is_found_by_its_dotted_name(own: Path) -> None:
    source = made(f"{own.stem}.Policy,start=2")
    assert source.name == "own_policy_of_a_user.Policy,start=2"
    assert source.make(0).step(view()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{file}:Policies", "did you mean Policy"),
        ("{file}:NoStep", "no class with a method step"),
        ("{file}:Policy,begin=1", "unexpected keyword argument 'begin'"),
        ("{file}:Policy,seed=1", "multiple values for .* 'seed'"),
        ("{folder}/none.py:Policy", "there is no such file"),
        ("{folder}/broken.py:Policy", "fails while it is imported: ZeroDivisionError: division"),
        ("nowhere.module.Policy", "cannot be imported: ModuleNotFoundError: .* on PYTHONPATH"),
        ("./own.py", "names no class; expected my.module.Policy or file.py:Policy"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_in_one_line(
    own: Path, text: str, message: str
) -> None:
    (own.parent / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match=message) as caught:
        made(text.format(file=own, folder=own.parent))
    assert "\n" not in str(caught.value)
