"""Jobs as Ray tasks: in order, done again where a worker dies, and with the errors they raise."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from ollama_utils.connect import NoModelNamedError
from ollama_utils.errors import BadReplyError, EncodingError, OutageError
from ollama_utils.on_ray import join_ray, run_on_ray
from records.errors import RunStoppedError, UserError
from records.interrupt import Interrupted, interruptible
from records.run_folder import ResumableError
from tests.clusters import installed

pytestmark = [installed, pytest.mark.slow]
HOSTS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    with join_ray(None):
        assert signal.getsignal(signal.SIGTERM) is handler  # a run that is stopped by it is saved
        yield


def job(hosts: tuple[str, ...], argument: int) -> tuple[tuple[str, ...], int]:
    time.sleep(0.3 * (argument % 2))
    return hosts, argument


def dies(_hosts: tuple[str, ...], mark: Path, signum: int = signal.SIGKILL) -> str:
    """End the worker; the second time, where the mark can be made to know it by, return."""
    if mark.exists():
        return "done again"
    if mark.parent.exists():
        mark.touch()
    with interruptible():
        os.kill(os.getpid(), signum)
        time.sleep(1)
    return "never"


def fails(_hosts: tuple[str, ...], error: str) -> None:
    raise ERRORS[error]


def waits(_hosts: tuple[str, ...], folder: Path) -> None:
    with interruptible():
        try:
            (folder / "begun").touch()
            while True:
                time.sleep(0.05)
        except Interrupted:
            (folder / "saved").touch()
            raise


def test_results_come_in_order_and_hosts_are_dealt_out() -> None:
    results = list(run_on_ray(job, range(6), HOSTS[:2]))
    assert [argument for _, argument in results] == list(range(6))
    assert {hosts for hosts, _ in results} == {HOSTS[:1], HOSTS[1:2]}
    assert [hosts for hosts, _ in run_on_ray(job, [0, 1], HOSTS)] == [HOSTS[::2], HOSTS[1:2]]
    assert list(run_on_ray(job, [], HOSTS)) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_whose_worker_dies_is_done_again(signum: int, tmp_path: Path) -> None:
    dying = partial(dies, signum=signum)
    assert list(run_on_ray(dying, [tmp_path / "died"], HOSTS)) == ["done again"]


def test_a_job_whose_worker_always_dies_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError, match="a job could not be done on Ray"):
        list(run_on_ray(dies, [tmp_path / "nowhere" / "died"], HOSTS))


ERRORS: dict[str, Exception] = {
    "outage": OutageError("no server"),
    "reply": BadReplyError("it is empty", retryable=False),
    "no model": NoModelNamedError("name a model", "llama3.2"),
    "encoding": EncodingError.__new__(EncodingError, "texts [0] could not be encoded"),
    "own": type("OwnError", (Exception,), {})("of a file that the driver has not read"),
}


@pytest.mark.parametrize("name", list(ERRORS))
def test_what_a_job_raises_comes_out_as_itself(name: str) -> None:
    meant = ERRORS[name]
    with pytest.raises(Exception, match=str(meant).replace("[", r"\[")) as caught:
        list(run_on_ray(fails, [name, name], HOSTS))
    error: BaseException | None = caught.value
    if isinstance(meant, UserError):
        assert type(error) is ResumableError
        error = error.__cause__
    assert type(error).__name__ == type(meant).__name__
    assert vars(error).items() >= vars(meant).items()


def test_closing_cancels_what_is_left_and_lets_it_save(tmp_path: Path) -> None:
    ready = tmp_path / "begun"

    def tick() -> None:
        if ready.exists():
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        closing(run_on_ray(waits, [tmp_path] * 3, HOSTS, tick)) as results,
    ):
        next(results)
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "'127.0.0.1:1' cannot be joined.*refused"),
        ("head:none", "'head:none' cannot be joined"),
        ("ray://head:10001", "expected a Ray cluster that this machine is a node of"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_line(
    address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UserError, match=why) as caught, join_ray(address):
        pass
    assert "\n" not in str(caught.value)
