"""Times in ISO 8601, as files of a run hold them. Pure."""

from __future__ import annotations

from datetime import datetime, timezone


def format_time(at: datetime) -> str:
    """Return a time in UTC with milliseconds, e.g. ``2026-11-21T15:30:45.123Z``."""
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Return the time that an ISO 8601 text means. ``Z`` is UTC on every Python, not only since 3.11.

    Raises:
        ValueError: it is not such a text.
    """
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
