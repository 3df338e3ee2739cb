"""Steppers for the tests that only step with them: processes take long to start, so they start once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluation.stepping import PolicyStepper
from tests.evaluation.stepping.playing import stepper_of


@pytest.fixture(scope="session")
def processes() -> Iterator[PolicyStepper]:
    """One stepper by processes."""
    with stepper_of("process") as made:
        yield made


@pytest.fixture
def stepper(name: str, processes: PolicyStepper) -> Iterator[PolicyStepper]:
    """The stepper by the `name` of a test's row."""
    if name == "process":
        yield processes
    else:
        with stepper_of(name) as made:
            yield made
