"""The log of an attempt on disk, and what it says of a file that somebody takes away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.supervisor.terminal.output_log import OutputLog


@pytest.mark.parametrize(
    ("harm", "after"),
    [
        (
            lambda file: file.unlink(),
            "\n[runward: 6 bytes of output are missing here: somebody removed or replaced its file]\n",
        ),
        (
            lambda file: file.rename(file.with_name("old")),
            "\n[runward: 6 bytes of output are missing here: somebody removed or replaced its file]\n",
        ),
        (
            lambda file: (file.unlink(), file.write_text("mine")),
            "mine\n[runward: 6 bytes of output are missing here: somebody removed or replaced its file]\n",
        ),
        (
            lambda file: os.truncate(file, 2),
            "on\n[runward: 4 bytes of output are missing here: somebody cut its file]\n",
        ),
    ],
    ids=["removed", "renamed", "replaced", "cut"],
)
def test_the_rest_of_a_log_that_is_taken_away_goes_on_at_its_path_after_a_note(
    tmp_path: Path, harm: Callable[[Path], object], after: str
) -> None:
    told: list[str] = []
    log = OutputLog(tmp_path / "output.log", told.append)
    log.write(b"one\nt\n")
    harm(tmp_path / "output.log")
    log.write(b"two\n")
    log.write(b"three\n")
    log.close()
    assert (tmp_path / "output.log").read_text() == f"{after}two\nthree\n"
    assert len(told) == 1
    assert "bytes of output are missing in the log. The run goes on." in told[0]


@pytest.mark.parametrize("place", ["link", "pipe", "directory"])
def test_a_log_goes_on_in_no_file_that_is_not_one_of_its_own(tmp_path: Path, place: str) -> None:
    told: list[str] = []
    file, other = tmp_path / "output.log", tmp_path / "other"
    other.write_text("of somebody else\n")
    log = OutputLog(file, told.append)
    log.write(b"one\n")
    file.unlink()
    if place == "link":
        file.symlink_to(other)
    elif place == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    log.write(b"two\n")
    log.write(b"three\n")
    log.close()
    assert (other.read_text(), len(told)) == ("of somebody else\n", 1)
