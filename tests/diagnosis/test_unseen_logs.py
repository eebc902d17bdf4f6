"""Logs that were labelled before their author had read the rules: the shares that are right now do not fall."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.unseen_logs import list_faults, read_unseen_logs

pytestmark = pytest.mark.slow

LOGS = read_unseen_logs()
LEAST_SHARE = 0.95


@pytest.mark.parametrize("with_exit", [False, True])
def test_kind_line_and_advice_are_right_as_often_as_they_were(with_exit: bool) -> None:
    faults = Counter[str]()
    wrong = []
    failed = [log for log in LOGS if log.failed]
    for log in LOGS:
        for aspect, answer in list_faults(log, log.diagnose(with_exit=with_exit)):
            faults[aspect] += 1
            wrong.append(f"{log.name}: {aspect}: {answer}")
    assert len(failed) == 370
    assert faults["alarm"] == 0, wrong
    for aspect in ("kind", "line", "retry"):
        assert faults[aspect] <= (1 - LEAST_SHARE) * len(failed), wrong
    assert faults["astray"] == 0, wrong
    assert faults["advice"] <= 0.1 * len(failed), wrong
