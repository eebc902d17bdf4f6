"""Files with curves are followed where they change: whose they are, how often they are read, and everybody's files."""

import math
import os
from pathlib import Path

import pytest

from mcp_server.record.curves.tails import CurveRow
from mcp_server.supervisor.outputs.scalar_tails import OWN as OWNER
from mcp_server.supervisor.outputs.scalar_tails import ScalarTails, TemporaryFiles
from mcp_server.system.inotify import Inotify

OWN, OTHER = (f"events.out.tfevents.1700000000.host.{pid}.0" for pid in (77, 78))


def test_a_file_is_read_when_it_changes_ever_more_rarely_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    taken: list[CurveRow] = []
    tails = ScalarTails(lambda _: OWNER, lambda _, rows, other: taken.extend(rows))
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    tails.note_change(str(path))
    tails.read_due()
    assert [row.step for row in taken] == [1]
    assert tails.due_s == math.inf
    with path.open("a") as file:
        file.write("2,0.4\n")
    tails.note_change(str(path))
    tails.read_due()
    assert len(taken) == 1
    assert clock[0] < tails.due_s < clock[0] + 1
    clock[0] = tails.due_s
    tails.read_due()
    assert [row.step for row in taken] == [1, 2]
    with path.open("a") as file:
        file.write("3,0.3\n")
    tails.note_change(str(path))
    tails.read_due(at_once=True)
    assert [row.step for row in taken] == [1, 2, 3]
    assert taken[-1].wall_s == pytest.approx(path.stat().st_mtime), "the newest row is as old as its file"


def test_a_file_of_another_is_not_read_and_one_that_is_empty_is_named(tmp_path: Path) -> None:
    tails = ScalarTails(lambda path: OWNER if "own" in path else None, lambda path, *_: pytest.fail(path))
    for name in ("own.csv", "other.csv"):
        (tmp_path / name).write_text("step,loss\n" if "own" in name else "step,loss\n1,2\n")
        tails.note_change(str(tmp_path / name))
    tails.read_due()
    assert tails.describe_empty() == (str(tmp_path / "own.csv"),)


def test_a_file_that_is_replaced_without_end_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, owners = [1000.0], [None, OWNER, OWNER, OWNER]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    taken: list[CurveRow] = []
    tails = ScalarTails(lambda _: owners.pop(0), lambda _, rows, other: taken.extend(rows))
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    for _ in range(10):  # one second, in which its owner is known from the second look on
        tails.note_change(str(path), is_new=True)
        tails.read_due()
        clock[0] += 0.1
    assert [row.step for row in taken] == [1]


def heard(tmp_path: Path, temporary: TemporaryFiles, inotify: Inotify) -> list[str]:
    found: list[str] = []
    for event in inotify.read_events():
        found += temporary.take(event, {77}) or []
    return [os.path.relpath(path, tmp_path) for path in found]


def test_an_event_file_in_a_new_temporary_directory_is_found_by_the_number_in_its_name(tmp_path: Path) -> None:
    inotify = Inotify(50)
    temporary = TemporaryFiles(inotify)
    temporary.add(str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert heard(tmp_path, temporary, inotify) == []
    (tmp_path / "a" / OTHER).touch()
    (tmp_path / "b" / OWN).touch()
    assert heard(tmp_path, temporary, inotify) == [f"b/{OWN}"]
    (tmp_path / "c/logs").mkdir(parents=True)
    (tmp_path / "c/logs" / OWN).touch()
    assert heard(tmp_path, temporary, inotify) == [f"c/logs/{OWN}"]
    inotify.close()


def test_nobody_listens_on_where_others_make_many_files(tmp_path: Path) -> None:
    inotify = Inotify(50)
    temporary = TemporaryFiles(inotify)
    temporary.add(str(tmp_path))
    for number in range(200):
        (tmp_path / str(number)).touch()
    assert heard(tmp_path, temporary, inotify) == []
    assert inotify.watched_ns(str(tmp_path)) is None
    inotify.close()


def test_what_a_file_held_before_the_attempt_is_passed_over_until_it_is_written_anew(tmp_path: Path) -> None:
    taken: list[int] = []
    tails = ScalarTails(lambda _: OWNER, lambda _, rows, other: taken.extend(row.step for row in rows))
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n2,0.4\n")
    tails.pass_over(str(path), path.stat().st_mtime_ns + 1)
    with path.open("a") as file:
        file.write("3,0.3\n")
    tails.note_change(str(path))
    tails.read_due(at_once=True)
    assert taken == [3]
    path.write_text("step,loss\n1,0.5\n")
    tails.note_change(str(path))
    tails.read_due(at_once=True)
    assert taken == [3, 1]


def test_a_file_that_was_written_since_the_start_is_read_whole(tmp_path: Path) -> None:
    taken: list[int] = []
    tails = ScalarTails(lambda _: OWNER, lambda _, rows, other: taken.extend(row.step for row in rows))
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    tails.pass_over(str(path), path.stat().st_mtime_ns)
    tails.note_change(str(path))
    tails.read_due()
    assert taken == [1]
