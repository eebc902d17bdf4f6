"""Copies of the supervisor's program: removed once nothing uses them, and never under a launch or a living run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.backends import supervisor_copy
from mcp_server.backends.supervisor_copy import (
    PACKAGE,
    _copied_program,
    read_sources,
    remove_unused_copies,
    supervisor_program,
)
from mcp_server.system.lock_files import LOCK_NAME

pytestmark = pytest.mark.usefixtures("own_supervisor_copies")

HOLDS = """
import sys, time
from pathlib import Path
from mcp_server.system.lock_files import hold_program_lock
hold_program_lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(300)
"""


def copies(home: Path, *ages: int, lock: bool = True) -> list[Path]:
    """Return copies that were last used so many hours ago."""
    made = []
    for age in ages:
        directory = home / "supervisors" / f"{age:016d}"
        directory.mkdir(parents=True)
        if lock:
            (directory / LOCK_NAME).touch()
        os.utime(directory, (home.stat().st_mtime - 3600 * age,) * 2)
        made.append(directory)
    return made


def left(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "supervisors").iterdir())


def test_the_newest_copy_is_left_and_unused_older_ones_go(tmp_path: Path) -> None:
    newest, *_ = copies(tmp_path, 1, 2, 3)
    remove_unused_copies(tmp_path)
    assert left(tmp_path) == [newest.name]


def test_a_copy_that_a_living_process_uses_stays_until_it_dies(tmp_path: Path) -> None:
    newest, used = copies(tmp_path, 1, 2)
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(used)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        remove_unused_copies(tmp_path)
        assert left(tmp_path) == sorted([newest.name, used.name])
    finally:
        child.kill()
        child.communicate()
    remove_unused_copies(tmp_path)
    assert left(tmp_path) == [newest.name]


def test_a_home_without_copies_needs_nothing(tmp_path: Path) -> None:
    remove_unused_copies(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_server_holds_its_copy(tmp_path: Path) -> None:
    program = _copied_program(tmp_path)
    copy = program.parents[1]
    os.utime(copy, (1, 1))
    copies(tmp_path, 0)
    remove_unused_copies(tmp_path)
    assert program.exists()


def test_a_copy_that_is_removed_while_it_is_chosen_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, calls = supervisor_copy._hold, []

    def remove_first(directory: Path) -> bool:
        calls.append(directory)
        if len(calls) == 1:
            shutil.rmtree(directory)
        return hold(directory)

    monkeypatch.setattr(supervisor_copy, "_hold", remove_first)
    assert _copied_program(tmp_path).exists()
    assert len(calls) == 2


def test_where_copying_takes_too_long_the_installed_program_serves_and_no_launch_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_copy, "_COPIED_WITHIN_S", -1.0)
    assert supervisor_program(tmp_path) == PACKAGE / "supervisor"
    monkeypatch.undo()
    assert supervisor_program(tmp_path) == PACKAGE / "supervisor"
    assert not left(tmp_path)


def test_a_copy_has_every_source_and_its_compiled_form_for_this_user_alone(tmp_path: Path) -> None:
    copy = _copied_program(tmp_path).parents[1]
    for source in read_sources():
        copied = copy / PACKAGE.name / source.name
        assert (copied.read_bytes(), copied.stat().st_mtime_ns) == (source.content, source.modified_ns)
    for compiled in copy.rglob("*.pyc"):
        assert compiled.read_bytes() == (PACKAGE / compiled.relative_to(copy / PACKAGE.name)).read_bytes()
    assert {path.stat().st_mode & 0o777 for path in copy.rglob("*")} == {0o700, 0o600}


@pytest.mark.parametrize("move", [False, True], ids=["removed", "moved"])
@pytest.mark.parametrize("whole", [False, True], ids=["the copies", "the state directory"])
def test_a_copy_that_is_gone_under_a_living_server_is_made_again(tmp_path: Path, *, move: bool, whole: bool) -> None:
    home = tmp_path / "state"
    home.mkdir()
    program = _copied_program(home)
    gone = home if whole else home / "supervisors"
    if move:
        gone.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(gone)
    home.mkdir(exist_ok=True)
    assert _copied_program(home) == program
    assert (program / "__main__.py").exists()
    remove_unused_copies(home)
    assert (program / "__main__.py").exists()
