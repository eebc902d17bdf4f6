"""What a launch left whose server died: not listed as a run, removed after an hour, unless a supervisor takes it."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from mcp_server.record.run_directory import RunDir
from mcp_server.runs.launch.launch import _remove_remains
from mcp_server.runs.wait.selection import select
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.lock_files import take_lock


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(StateHome(tmp_path))


def cut_off(store: RunStore, age_s: float) -> RunDir:
    """Return what a server leaves that is killed before its supervisor starts."""
    directory = RunDir(store.home.runs / "cfm-7kqz")
    directory.path.mkdir(parents=True)
    directory.spec.write_text(json.dumps({"layout": 1, "created_at": "2026-01-01T00:00:00Z"}))
    os.mkfifo(directory.handover)
    os.utime(directory.handover, (time.time() - age_s,) * 2)
    return directory


def test_a_launch_that_was_cut_off_is_removed_after_an_hour(store: RunStore) -> None:
    cut_off(store, 3700)
    assert store.is_cut_off_launch(store.observe("cfm-7kqz"))
    _remove_remains(store)
    assert not list(store.home.runs.iterdir())


def test_a_launch_that_was_cut_off_just_now_stays(store: RunStore) -> None:
    directory = cut_off(store, 60)
    _remove_remains(store)
    assert store.observe("cfm-7kqz").reason == "Its launch was cut off: the command never started."
    assert directory.path.exists()


def test_a_launch_that_a_supervisor_has_taken_stays(store: RunStore) -> None:
    directory = cut_off(store, 3700)
    lock = take_lock(directory.lock)
    assert lock is not None
    _remove_remains(store)
    assert directory.spec.exists()
    os.close(lock)


def test_a_run_that_began_stays(store: RunStore) -> None:
    directory = cut_off(store, 3700)
    directory.handover.unlink()
    assert not store.is_cut_off_launch(store.observe("cfm-7kqz"))
    _remove_remains(store)
    assert directory.spec.exists()


def test_what_cut_off_launches_of_a_key_left_is_no_run_by_tag_by_name_or_in_a_count(store: RunStore) -> None:
    spec = {"name": "cfm", "tags": ["night"], "created_at": "2026-01-01T00:00:00Z"}
    for run_id in ("cfm-aaaa", "cfm-bbbb", "cfm-7kqz"):
        directory = RunDir(store.home.runs / run_id)
        directory.path.mkdir(parents=True)
        directory.spec.write_text(json.dumps({"layout": 1, **spec}))
        if run_id != "cfm-7kqz":
            os.mkfifo(directory.handover)
            os.utime(directory.handover, (time.time() - 60,) * 2)
    RunDir(store.home.runs / "cfm-bbbb").stop.write_text('{"reason": "launched again with the same key"}')
    events = [{"seq": 1, "kind": "started", "attempt": 1}, {"seq": 2, "kind": "ended", "state": "finished"}]
    directory.events.write_text("".join(json.dumps({"at": "2026-01-01T00:00:00Z", **e}) + "\n" for e in events))
    assert [run.run_id for run in select(store, ["tag:night"])[1]] == ["cfm-7kqz"]
    assert store.count_states(RunQuery(tags=["night"])) == {"finished": 1}
    assert store.find("cfm").run_id == "cfm-7kqz"
    assert store.observe("cfm-aaaa").state == "lost", "by its id it is found"
    for run_id in ("cfm-bbbb", "cfm-7kqz"):
        shutil.rmtree(store.home.runs / run_id)
    assert store.find("cfm").run_id == "cfm-aaaa", "with nothing else of this name"
