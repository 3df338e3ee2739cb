"""The policies that need no fitting: what each of them plays."""

from __future__ import annotations

import pickle
import traceback
from collections import Counter
from pathlib import Path

import pytest

from evaluation.policies.policy import PolicySource
from evaluation.policies.specs import make_source, parse_policy
from evaluation.stepping import PolicyStepper
from tests.evaluation.policies_for_tests import MUTATORS
from tests.evaluation.stepping.playing import play_episode, stepper_of, view

OWN = """
class Policy:
    def __init__(self, mutators, seed, start=0):
        self.action = start + len(mutators) + seed
    def step(self, view):
        end = __import__("time").thread_time() + {cpu_s}
        while __import__("time").thread_time() < end:
            pass
        self.action += 1
        return self.action % len(view.mutators)
class NoStep:
    def __init__(self, **_): ...
not_a_class = 5
"""


def played(text: str, *, seeds: range = range(200), steps: int = 1) -> Counter[int]:
    source = made(text)
    policies = [source.make(seed) for seed in seeds]
    return Counter(each.step(view(step_count=step)) for each in policies for step in range(steps))


def made(text: str) -> PolicySource:
    return make_source(parse_policy(text), mutators=MUTATORS)


def test_noop_and_fixed_play_one_mutator() -> None:
    assert played("noop") == {0: 200}
    assert played("fixed:shorten") == {2: 200}


def test_random_plays_every_mutator_about_as_often() -> None:
    counts = played("random", steps=7)
    assert counts.keys() == set(range(7))
    assert min(counts.values()) > 150


def test_round_robin_plays_each_mutator_in_turn_from_any_start_and_a_failed_step_again() -> None:
    source = made("round_robin")
    policy = source.make(3)
    assert [policy.step(view(step_count=step)) for step in (0, 1, 1, 2, 4)] == [3, 4, 4, 5, 0]
    assert played("round_robin", seeds=range(7)) == dict.fromkeys(range(7), 1)


@pytest.mark.parametrize("text", ["noop", "random", "round_robin", "fixed:shorten"])
def test_equal_seeds_play_alike_and_sources_can_be_pickled(text: str) -> None:
    source = made(text)
    first, second = source.make(5), pickle.loads(pickle.dumps(source)).make(5)  # noqa: S301 - just pickled
    views = [view(step_count=step) for step in range(20)]
    assert [first.step(each) for each in views] == [second.step(each) for each in views]
    assert source.name == text


@pytest.mark.parametrize(
    ("text", "mutators", "message"),
    [
        ("noop", ("shorten",), "policy 'noop' needs the mutator 'noop'; expected one of shorten"),
        ("fixed:shorten", ("noop", "short"), r"needs the mutator 'shorten'; did you mean short\?"),
        ("ucb1", ("noop",), "of kind 'ucb1', which cannot be made from its name alone"),
        ("llm:m", ("noop",), "of kind 'llm', which cannot be made from its name alone"),
    ],
)
def test_a_policy_that_the_mission_cannot_have_is_refused(
    text: str, mutators: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_source(parse_policy(text), mutators=mutators)


def own_file(folder: Path, cpu_s: float = 0.0) -> Path:
    file = folder / "own.v2.py"
    file.write_text(OWN.format(cpu_s=cpu_s))
    return file


@pytest.mark.parametrize("name", ["serial", "process"])
def test_a_class_of_the_users_own_file_is_made_with_mutators_seed_and_options(
    tmp_path: Path, stepper: PolicyStepper
) -> None:
    source = made(f"class={own_file(tmp_path)}:Policy,start=2")
    assert play_episode(stepper, [source, source], steps=2) == [[3, 4], [4, 5]]


def test_an_instance_of_the_users_own_file_moves_to_a_process_as_it_stands(tmp_path: Path) -> None:
    source = made(f"class={own_file(tmp_path, cpu_s=0.02)}:Policy")
    said: list[str] = []
    with stepper_of("auto", report=said.append) as stepper:
        assert play_episode(stepper, [source], steps=5) == [[1, 2, 3, 4, 5]]
    assert len(said) == 1


def test_a_class_is_named_by_its_module() -> None:
    source = made("class=tests.evaluation.policies.own_policy.Patient,wait=1.5")
    policy = source.make(7)
    assert vars(policy) == {"mutators": MUTATORS, "seed": 7, "wait": 1.5}
    assert source.name == "tests.evaluation.policies.own_policy.Patient,wait=1.5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{file}:Policies", r"has no class 'Policies'; did you mean Policy\?"),
        ("{file}:not_a_class", "has no class 'not_a_class'"),
        ("{file}:NoStep", r"has no method step\(view\) -> int"),
        ("{file}:Policy,begin=1", "cannot be made with mutators, seed, begin: got an unexpected keyword"),
        ("{file}:Policy,seed=1", "is given 'seed' as it is; leave seed= out"),
        ("{folder}/none.py:Policy", "no policy file at"),
        ("{broken}:Policy", "fails while it is imported: ZeroDivisionError: division by zero"),
        ("{folder}/torn.py:Policy", "fails while it is imported: SyntaxError"),
        ("{folder}/binary.py:Policy", "fails while it is imported: SyntaxError"),
        ("{folder}/own.txt:Policy", "is not a Python file; expected path/to/file.py:Policy"),
        (
            "nowhere.module.Policy",
            "cannot be imported: ModuleNotFoundError: .*; put its folder on PYTHONPATH",
        ),
        ("evaluation.policies.specs.Policy", "has no class 'Policy'; did you mean PolicySpec"),
        ("Policy", "names no class; expected my.module.Policy or file.py:Policy"),
        ("./own.py", "names no class"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    (tmp_path / "torn.py").write_text("class Policy(\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    own_file(tmp_path).rename(tmp_path / "own.txt")
    named = text.format(file=own_file(tmp_path), folder=tmp_path, broken=broken)
    with pytest.raises(ValueError, match=message) as caught:
        made(f"class={named}")
    assert "\n" not in str(caught.value)


def test_a_new_source_has_the_users_file_as_it_is_by_then(tmp_path: Path) -> None:
    file = own_file(tmp_path)
    first = made(f"class={file}:Policy")
    file.write_text(OWN.format(cpu_s=0).replace("+= 1", "+= 2"))
    second = made(f"class={file}:Policy")
    assert [source.make(0).step(view()) for source in (first, second, first)] == [1, 2, 1]


@pytest.mark.parametrize("name", ["serial", "thread", "process", "auto"])
def test_a_source_goes_on_with_the_file_that_it_began_with(tmp_path: Path, stepper: PolicyStepper) -> None:
    file = own_file(tmp_path, cpu_s=0.02)
    source = made(f"class={file}:Policy")
    file.write_text(OWN.format(cpu_s=0).replace("+= 1", "+= 2"))
    made(f"class={file}:Policy")
    assert play_episode(stepper, [source], steps=5) == [[1, 2, 3, 4, 5]]
    file.unlink()
    assert play_episode(stepper, [source], steps=2) == [[1, 2]]


@pytest.mark.parametrize("name", ["thread", "process"])
def test_a_traceback_has_the_line_that_was_played_not_the_one_that_stands_there_by_then(
    tmp_path: Path, stepper: PolicyStepper
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Policy:\n    def __init__(self, **_): ...\n    def step(self, view): played\n")
    source = made(f"class={file}:Policy")
    file.write_text("# as it is\n" * 5)
    ((error,),) = play_episode(stepper, [source], steps=1)
    assert isinstance(error, NameError)
    told = "".join(traceback.format_exception(error))
    assert f'File "{file}", line 3, in step\n    def step(self, view): played\n' in told
    assert "# as it is" not in told


def test_a_process_does_not_play_a_module_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "module_of_a_user.py"
    file.write_text(OWN.format(cpu_s=0))
    source = made("class=module_of_a_user.Policy")
    file.write_text(OWN.format(cpu_s=0).replace("+= 1", "+= 22"))
    with stepper_of("thread") as stepper:
        assert play_episode(stepper, [source], steps=2) == [[1, 2]]
    with stepper_of("process") as stepper:
        ((error,),) = play_episode(stepper, [source], steps=1)
    assert "module 'module_of_a_user' has changed since" in str(error)
