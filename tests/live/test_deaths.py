"""A small part of the campaign of deaths and pauses; the whole is `python -m tests.benchmarks deaths`."""

import random

import pytest

from tests.benchmarks.faults import deaths
from tests.benchmarks.faults.injector import injector
from tests.benchmarks.harness import sandbox

MOMENTS = 6


@pytest.mark.parametrize("seed", [20261122])
def test_agents_hear_the_truth_while_parts_of_the_product_die_and_pause(seed: int) -> None:
    with sandbox() as place, injector(place, seed) as faults:
        campaign = deaths.Campaign(place, faults, random.Random(seed), agents=1, runs_at_once=2)
        deaths.run(campaign, MOMENTS)
        wrong = {rule: texts for rule, texts in campaign.wrong.items() if rule in deaths.TRUTHS}
        assert wrong == {}, faults.journal
        assert sum(faults.done.values()) == MOMENTS
