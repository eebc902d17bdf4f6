"""Times are written in UTC with milliseconds, and read back whatever Python reads them."""

from datetime import UTC, datetime

import pytest

from mcp_server.text.formatting import format_posix, parse_time

AT = datetime(2026, 11, 21, 15, 30, 45, 123_000, UTC)


def test_a_time_is_written_in_utc_with_milliseconds() -> None:
    assert format_posix(AT.timestamp()) == "2026-11-21T15:30:45.123Z"


@pytest.mark.parametrize(
    "text", ["2026-11-21T15:30:45.123Z", "2026-11-21T15:30:45.123+00:00", "2026-11-21T16:30:45.123+01:00"]
)
def test_a_time_is_read_in_any_zone(text: str) -> None:
    assert parse_time(text) == AT


@pytest.mark.parametrize("text", ["", "Z", "yesterday", "2026-11-21T15:30:45.123ZZ", "45"])
def test_another_text_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid|isoformat|month"):
        parse_time(text)
