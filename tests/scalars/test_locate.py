"""Where a run's scalars are found, and which scalars are found below a directory."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.record.state import Run
from mcp_server.record.written_files import Outputs, WrittenFile
from mcp_server.scalars import locate
from mcp_server.scalars.formats.detect import ScalarSource
from mcp_server.scalars.locate import DatedLocation, EventFiles, LookupCache, find_scalars
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.store.attribution.claim_records import add_open_files, build_claims
from mcp_server.system import processes
from tests.support.scalar_runs import BEGUN_S, a_run, events, iso


def locate_run_scalars(run: Run) -> list[Path | ScalarSource]:
    """As a first lookup finds them, for the only run that there is."""
    own = OwnFiles(add_open_files(run, build_claims(run)))
    locations = locate.locate_run_scalars(run, LookupCache(), own)
    return [location.path if isinstance(location, EventFiles) else location for location in locations]


def test_files_begun_while_the_run_ran_are_its_own(tmp_path: Path) -> None:
    events(tmp_path / "old", BEGUN_S - 100)
    events(tmp_path / "later", BEGUN_S + 100)
    events(tmp_path / "logs" / "mine", BEGUN_S + 5, more=".v2")
    ended = replace(a_run(tmp_path), state="finished", ended_at=iso(BEGUN_S + 50))
    assert locate_run_scalars(ended) == [tmp_path / "logs" / "mine"]
    assert locate_run_scalars(a_run(tmp_path / "old")) == []


def test_files_with_the_process_ids_of_a_live_run_are_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = processes.find_process(os.getpid())
    assert me is not None
    monkeypatch.setattr(processes, "descendants", lambda root: [me] if root == 4711 else [])
    events(tmp_path / "stranger", BEGUN_S + 5)
    mine = events(tmp_path / "mine", BEGUN_S + 5, me.pid)
    run = a_run(tmp_path, at_start={"supervisor_pid": 4711})
    assert locate_run_scalars(run) == [mine.parent]
    elsewhere = events(tmp_path / "elsewhere" / "tb", BEGUN_S - 5000)
    with elsewhere.open("ab"):
        # Held open for writing, so its own whatever the name says; torch closes its files between two writes.
        assert locate_run_scalars(run) == [elsewhere.parent, mine.parent]
    with elsewhere.open("rb"):
        assert locate_run_scalars(run) == [mine.parent], "only read"


def test_files_without_a_process_id_in_their_names_count_by_their_time(tmp_path: Path) -> None:
    for name, begun_s in (("mine", BEGUN_S + 5), ("old", BEGUN_S - 50)):
        (tmp_path / name).mkdir()
        # As tensorboardX names them; a host may look like numbers.
        (tmp_path / name / f"events.out.tfevents.{begun_s:.0f}.node-7.example").write_bytes(b"")
    assert locate_run_scalars(a_run(tmp_path, state="finished", ended_at=iso(BEGUN_S + 60))) == [tmp_path / "mine"]


def test_two_runs_in_one_directory_keep_their_own_files_also_after_the_end(tmp_path: Path) -> None:
    for name, pid in (("one", 5001), ("two", 5002)):
        events(tmp_path / "runs" / name, BEGUN_S + 5, pid)
        events(tmp_path / "runs" / name / "eval", BEGUN_S + 9, pid + 100)
    for tensorboard in (None, "runs"):
        run = a_run(tmp_path, state="finished", ended_at=iso(BEGUN_S + 60), at_start={"pid": 5002})
        run = replace(run, spec=replace(run.spec, tensorboard=tensorboard))
        assert set(locate_run_scalars(run)) == {tmp_path / "runs" / "two", tmp_path / "runs" / "two" / "eval"}


def test_a_directory_that_the_command_names_is_searched(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    events(tmp_path / "out" / "run", BEGUN_S + 5)
    for command in (f"python train.py --logdir {tmp_path}/out", f"python train.py log.dir='{tmp_path}/out' x=1"):
        assert locate_run_scalars(a_run(tmp_path / "work", command=command)) == [tmp_path / "out" / "run"]
    assert locate_run_scalars(a_run(tmp_path / "work")) == []


def test_the_directory_that_the_launch_names_is_first(tmp_path: Path) -> None:
    events(tmp_path / "cwd" / "logs", BEGUN_S + 5)
    run = a_run(tmp_path / "cwd")
    named = replace(run, spec=replace(run.spec, tensorboard=str(tmp_path / "tb")))
    assert locate_run_scalars(named) == [tmp_path / "cwd" / "logs"], "nothing is there yet"
    events(tmp_path / "tb", BEGUN_S - 1000)
    assert locate_run_scalars(named) == [tmp_path / "cwd" / "logs"], "an earlier run began that one"
    events(tmp_path / "tb" / "new", BEGUN_S + 5)
    assert locate_run_scalars(named) == [tmp_path / "tb" / "new"]


def test_tables_count_where_there_are_no_event_files_with_points(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name, at_s in (("old/progress.csv", BEGUN_S - 100), ("progress.csv", BEGUN_S + 5)):
        (tmp_path / name).write_text("step,loss\n1,2\n")
        os.utime(tmp_path / name, (at_s, at_s))
    assert locate_run_scalars(a_run(tmp_path)) == [ScalarSource("csv", tmp_path / "progress.csv")]
    file = events(tmp_path / "tb", BEGUN_S + 5)
    both = [tmp_path / "tb", ScalarSource("csv", tmp_path / "progress.csv")]
    assert locate_run_scalars(a_run(tmp_path)) == both, "it holds no points yet"
    file.write_bytes(bytes(600))
    os.utime(file, (BEGUN_S + 6, BEGUN_S + 6))
    assert locate_run_scalars(a_run(tmp_path)) == [tmp_path / "tb"]


def test_a_directory_shows_its_event_files_or_else_its_tables(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "progress.csv").write_text("step,loss\n1,2\n")
    assert [one.location for one in find_scalars(tmp_path)] == [ScalarSource("csv", deep / "progress.csv")]
    file = events(tmp_path / "c")
    assert [one.location for one in find_scalars(tmp_path)] == [file.parent]
    assert [one.location for one in find_scalars(file)] == [file.parent]


def test_a_slow_lookup_is_reused_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("mcp_server.scalars.locate.time.monotonic", lambda: clock[0])

    def slow(root: Path) -> list[DatedLocation]:
        clock[0] += 2
        return [DatedLocation(root, clock[0])]

    lookups = LookupCache()
    assert lookups.get(slow, tmp_path) == lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 2)]
    clock[0] += 39
    assert lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 2)]
    clock[0] += 2
    assert lookups.get(slow, tmp_path) == [DatedLocation(tmp_path, 45)]


def test_tables_are_found_however_deep_and_no_record_of_a_run_is_one(tmp_path: Path) -> None:
    deep = tmp_path.joinpath("logs", "train", "runs", "2026-11-26", "csv", "version_0", "fit.csv")
    deep.parent.mkdir(parents=True)
    deep.write_text("epoch,loss\n0,1\n1,0.5\n")
    record = tmp_path / "state" / "runs" / "cfm-7kqz"
    record.mkdir(parents=True)
    (record / "supervisor.lock").touch()
    (record / "gpus.jsonl").write_text('{"step": 1, "mib": 2}\n{"step": 2, "mib": 3}\n')
    assert [table.location for table in find_scalars(tmp_path)] == [ScalarSource("csv", deep)]


def test_a_table_below_the_deepest_search_is_found_where_a_process_has_it_open(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefghijkl", "summary.csv")
    deep.parent.mkdir(parents=True)
    deep.write_text("epoch,loss\n0,1\n1,0.5\n")
    os.utime(deep, (BEGUN_S + 5, BEGUN_S + 5))
    run = a_run(tmp_path, state="finished", ended_at=iso(BEGUN_S + 60))
    assert locate_run_scalars(run) == []
    status = deep.stat()
    file = WrittenFile(str(deep), status.st_ino, status.st_size, status.st_mtime_ns)
    own = OwnFiles(build_claims(run, [Outputs(ended=True, files=(file,))]))
    assert locate.locate_run_scalars(run, LookupCache(), own) == [ScalarSource("csv", deep)]
