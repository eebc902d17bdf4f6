"""The changelog keeps one form, so that a merge that brings a former text back is seen."""

import re
from pathlib import Path

from mcp_server import __version__

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text().splitlines()
VERSIONS = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]


def test_unreleased_comes_first_and_every_version_has_a_date() -> None:
    assert VERSIONS[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", version) for version in VERSIONS[1:])


def test_the_newest_dated_version_is_the_package_s() -> None:
    assert VERSIONS[1].split(" - ")[0] == __version__


def test_below_the_versions_each_line_is_a_heading_or_a_whole_entry() -> None:
    """Former entries had several lines. After a merge, keep your own entry below Unreleased, and delete such."""
    body = LINES[LINES.index("## Unreleased") :]
    other = [
        line
        for line in body
        if line and not re.match(r"## |### (Added|Changed|Deprecated|Removed|Fixed|Security)$|- \S", line)
    ]
    assert other == []


def test_the_first_release_has_at_most_forty_entries_each_once() -> None:
    entries = [
        line
        for line in LINES[LINES.index(next(line for line in LINES if line.startswith("## 0.1.0"))) :]
        if line.startswith("- ")
    ]
    assert len(entries) <= 40
    assert len(set(entries)) == len(entries)
