"""A small part of the campaign of bad arguments; the whole is `python -m tests.benchmarks bad_inputs`."""

import pytest

from tests.benchmarks.faults import bad_inputs
from tests.support import warm_start
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [20261127])
def test_bad_arguments_end_no_server_break_no_listing_and_execute_nothing(sandbox: Sandbox, seed: int) -> None:
    outcome = bad_inputs.play(sandbox, 300, seed, warm_start.command())
    assert outcome.wrong == {}
    assert sum(outcome.answers.values()) == 300
