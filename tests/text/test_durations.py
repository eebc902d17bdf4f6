"""Durations as people write them."""

import pytest

from mcp_server.text.durations import find_duration
from mcp_server.text.rows import read_blocks

H = 3600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24 hours", 24 * H),
        ("20 minutes", 1200),
        ("1.5h", 1.5 * H),
        ("90 min", 1.5 * H),
        ("90m", 1.5 * H),
        ("45s", 45),
        ("1 day 2 hours", 26 * H),
        ("1 day, 2 hours and 30 minutes", 26.5 * H),
        ("24小时", 24 * H),
        ("2天", 48 * H),
        ("两天", 48 * H),
        ("半小时", 0.5 * H),
        ("30 分钟", 1800),
        ("1小时30分", 1.5 * H),
        ("２４小时", 24 * H),
        ("1d12h", 36 * H),
        ("1d 12h", 36 * H),
        ("12:30:00", 12.5 * H),
        ("48:00:00", 48 * H),
        ("1-12:00:00", 36 * H),
        ("PT24H", 24 * H),
        ("P1DT12H", 36 * H),
        ("24-hour", 24 * H),
        ("a week", 168 * H),
        ("half an hour", 0.5 * H),
        ("one day", 24 * H),
        ("1,440 min", 24 * H),
        ("3600 seconds", H),
        ("at most 12 hours (= 720 min)", 12 * H),
        ("-5 hours", -5 * H),
        ("24", None),
        ("soon", None),
        ("as long as it takes", None),
        ("step 3 of 4 models", None),
        ("", None),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float | None) -> None:
    assert find_duration(text) == seconds


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("text/durations")])
def test_each_language_reads_its_own_line(block: dict[str, str]) -> None:
    text, _, seconds = block["seen"].partition(" = ")
    assert find_duration(text) == float(seconds)
    assert find_duration(text.partition(" ")[2]) is None
