"""The steps of a release that change files, by value."""

import pytest

from tests.maintenance.release import CHANGELOG, RefusedError, check_tag, date_entries, read_notes, read_version

BEFORE = """# Changelog

## Unreleased

### Added

- A tool.

### Changed

### Fixed

- An answer.

## 0.1.0 - 2026-11-27

### Added

- All else.
"""
AFTER = """# Changelog

## Unreleased

### Added

### Changed

### Fixed

## 0.2.0 - 2027-01-02

### Added

- A tool.

### Fixed

- An answer.

## 0.1.0 - 2026-11-27

### Added

- All else.
"""


def test_unreleased_entries_get_the_version_and_the_date_and_empty_headings_stay_behind() -> None:
    assert date_entries(BEFORE, "0.2.0", "2027-01-02") == AFTER


def test_a_release_without_entries_is_refused() -> None:
    with pytest.raises(RefusedError, match="no entry below"):
        date_entries(AFTER, "0.3.0", "2027-01-03")


def test_the_notes_of_a_version_are_its_entries_alone() -> None:
    assert read_notes(AFTER, "0.2.0") == "### Added\n\n- A tool.\n\n### Fixed\n\n- An answer.\n"
    with pytest.raises(RefusedError, match=r"0\.3\.0"):
        read_notes(AFTER, "0.3.0")


def test_a_tag_is_that_of_the_package_and_has_notes() -> None:
    check_tag(f"v{read_version()}")
    with pytest.raises(RefusedError, match="not that of version"):
        check_tag("v99.0.0")
    assert "launch_run" in read_notes(CHANGELOG.read_text(), "0.1.0")
