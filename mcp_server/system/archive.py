"""The zip file that this code runs from, where a host has no installed package."""

from __future__ import annotations

from pathlib import Path


def find_archive() -> Path | None:
    """Return the zip file that this module was imported from, or None where it is an ordinary file."""
    archive = getattr(globals().get("__loader__"), "archive", None)
    return Path(archive) if isinstance(archive, str) else None
