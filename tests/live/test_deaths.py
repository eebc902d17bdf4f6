"""A small part of the campaign of deaths and pauses; the whole is `python -m tests.benchmarks deaths`."""

import random

import pytest

from tests.benchmarks.faults import deaths, far_deaths
from tests.benchmarks.faults.injector import injector
from tests.benchmarks.harness import sandbox
from tests.support.sshd import needs_sshd

pytestmark = pytest.mark.slow

MOMENTS = 6


@pytest.mark.parametrize("seed", [20261122])
def test_agents_hear_the_truth_while_parts_of_the_product_die_and_pause(seed: int) -> None:
    with sandbox() as place, injector(place, seed) as faults:
        campaign = deaths.Campaign(place, faults, random.Random(seed), agents=1, runs_at_once=2)
        deaths.run(campaign, MOMENTS)
        wrong = {rule: texts for rule, texts in campaign.wrong.items() if rule in deaths.TRUTHS}
        assert wrong == {}, faults.journal
        assert sum(faults.done.values()) == MOMENTS


@needs_sshd
@pytest.mark.parametrize("seed", [20261127])
def test_agents_hear_the_truth_while_relays_and_conductors_die(seed: int) -> None:
    with sandbox() as place:
        campaign = far_deaths.play(place, seed, MOMENTS, agents=1)
        rules = (*deaths.TRUTHS, *far_deaths.RULES)
        assert {rule: texts for rule, texts in campaign.wrong.items() if rule in rules} == {}, campaign.injector.journal
        assert sum(campaign.injector.done.values()) == MOMENTS
