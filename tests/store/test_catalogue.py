"""The index of runs says what the records say, whatever happens to its file and to the directories."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.events import EventLog
from mcp_server.record.run_directory import RunDir, write_json
from mcp_server.record.state import Run
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.lock_files import take_lock

AT = "2026-11-21T10:{:02}:{:02}Z"
STATES = ("finished", "failed", "killed", "timed_out")


def add_run(home: Path, number: int, state: str | None = "finished", **spec: Any) -> str:
    """Write the record of a run; without a state it has begun, and its supervisor is gone."""
    run_id = spec.pop("run_id", f"cfm-{number:04}")
    run = home / "runs" / run_id
    (run / "attempts" / "1").mkdir(parents=True)
    facts = {"layout": 3, "name": run_id[:3], "created_at": AT.format(number // 60 % 60, number % 60), "owner": "ada"}
    write_json(run / "spec.json", {**facts, **spec})
    events = EventLog(run / "events.jsonl")
    events.append("started", "The command runs.", attempt=1)
    if state is not None:
        events.append("ended", f"{state}.", state=state, exit_code=0 if state == "finished" else None)
    return str(run_id)


def rows(store: RunStore, query: RunQuery | None = None) -> list[tuple[str, str]]:
    return [(run.run_id, run.state) for run in store.list_runs(query or RunQuery())]


def file_of(home: Path) -> Path:
    (path,) = (home / "index").glob("*.sqlite")
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for number in range(8):
        add_run(tmp_path, number, STATES[number % 4])
    return tmp_path


@pytest.fixture
def store(home: Path) -> RunStore:
    return RunStore(StateHome(home))


# --- the directories change


def remove(home: Path) -> None:
    shutil.rmtree(home / "runs" / "cfm-0003")


def add(home: Path) -> None:
    add_run(home, 59, "failed")


def rename(home: Path) -> None:
    (home / "runs" / "cfm-0003").rename(home / "runs" / "old-0003")


def copy(home: Path) -> None:
    shutil.copytree(home / "runs" / "cfm-0003", home / "runs" / "copy-0003")


def replace_by_another(home: Path) -> None:
    kept = home / "runs" / ".kept"  # its inode cannot be used again
    (home / "runs" / "cfm-0003").rename(kept)
    add_run(home, 3, "failed")


def hide_all(home: Path) -> None:
    (home / "runs").rename(home / "elsewhere")
    (home / "runs").mkdir()
    add_run(home, 3, "failed")


@pytest.mark.parametrize("change", [remove, add, rename, copy, replace_by_another, hide_all])
def test_a_change_of_the_directories_is_seen_by_old_and_new_servers(home: Path, store: RunStore, change: Any) -> None:
    before = rows(store)
    assert len(before) == 8
    change(home)
    seen, counted = rows(store), store.count_states()
    fresh = RunStore(StateHome(home))
    shutil.rmtree(home / "index")
    without = RunStore(StateHome(home))
    assert seen == rows(fresh) == rows(without) != before
    assert counted == fresh.count_states() == without.count_states()
    assert sum(counted.values()) == len(seen)


def test_a_record_that_was_changed_by_hand_is_shown_as_it_is_and_mends_its_row(home: Path, store: RunStore) -> None:
    rows(store)
    path = home / "runs" / "cfm-0003" / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "owner": "eva", "tags": ["moved"]}))
    fresh = RunStore(StateHome(home))
    assert {run.run_id: run.spec.owner for run in fresh.list_runs()}["cfm-0003"] == "eva"
    assert [run.run_id for run in RunStore(StateHome(home)).list_runs(RunQuery(owner="eva", tags=["moved"]))] == [
        "cfm-0003"
    ]


def test_a_lost_run_is_read_anew_once_its_record_says_more(home: Path) -> None:
    lost, late = add_run(home, 50, None), add_run(home, 51, None)
    for path in [home / "runs", *(home / "runs").rglob("*")]:
        os.utime(path, (time.time() - 600, time.time() - 600))
    store = RunStore(StateHome(home))
    assert rows(store, RunQuery("lost")) == [(late, "lost"), (lost, "lost")]
    with contextlib.closing(sqlite3.connect(file_of(home))) as database:
        written = database.execute("SELECT run_id FROM final WHERE state = 'lost'").fetchall()
    assert {run_id for (run_id,) in written} == {lost, late}
    fresh = RunStore(StateHome(home))
    assert len(rows(fresh, RunQuery("lost"))) == 2
    write_json(RunDir(home / "runs" / lost).stop, {"carried_out": {"at": AT.format(59, 0), "survivors": []}})
    held = take_lock(RunDir(home / "runs" / late).lock)
    try:
        for one in (store, fresh, RunStore(StateHome(home))):
            assert rows(one, RunQuery("lost")) == []
            assert rows(one, RunQuery("killed"))[0] == (lost, "killed")
            assert rows(one, RunQuery("live")) == [(late, "running")]
    finally:
        assert held is not None
        os.close(held)


# --- the file


def test_the_questions_of_one_look_agree_and_the_next_look_is_new(home: Path, store: RunStore) -> None:
    with store.one_look():
        before = rows(store)
        add(home)
        assert (rows(store), sum(store.count_states().values())) == (before, len(before))
    assert len(rows(store)) == len(before) + 1


def test_a_row_that_its_record_contradicts_is_mended_within_one_look(home: Path, store: RunStore) -> None:
    rows(store)
    path = home / "runs" / "cfm-0003" / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "owner": "eva"}))
    fresh = RunStore(StateHome(home))
    with fresh.one_look():
        fresh.count_states()
        assert {run.run_id: run.spec.owner for run in fresh.list_runs()}["cfm-0003"] == "eva"


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)


def overwrite_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def remove_file(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def take_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE final")


@pytest.mark.parametrize(
    "damage", [cut_off, empty, overwrite, overwrite_pages, remove_file, make_directory, take_table]
)
def test_a_damaged_index_changes_no_answer(home: Path, store: RunStore, damage: Any) -> None:
    expected = rows(store)
    damage(file_of(home))
    assert rows(RunStore(StateHome(home))) == expected
    add_run(home, 40, "failed")
    assert rows(store) == rows(RunStore(StateHome(home))) == [("cfm-0040", "failed"), *expected]


def test_an_index_that_another_process_locks_changes_no_answer(home: Path, store: RunStore) -> None:
    expected = rows(store)
    with contextlib.closing(sqlite3.connect(file_of(home), isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        remove(home)
        add_run(home, 40, "failed")
        expected = [("cfm-0040", "failed"), *(row for row in expected if row[0] != "cfm-0003")]
        assert rows(store) == rows(RunStore(StateHome(home))) == expected
        add_run(home, 41)
        expected = [("cfm-0041", "finished"), *expected]
        assert rows(store) == expected
    assert rows(RunStore(StateHome(home))) == expected


def test_without_a_place_for_its_file_the_index_is_in_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch, store: RunStore
) -> None:
    expected = rows(store)
    shutil.rmtree(home / "index")
    monkeypatch.setattr("mcp_server.store.run_index.is_shared_filesystem", lambda _: True)
    fresh = RunStore(StateHome(home))
    assert rows(fresh) == expected
    remove(home)
    assert rows(fresh) == [row for row in expected if row[0] != "cfm-0003"]
    assert not (home / "index").exists()


def test_on_a_shared_filesystem_the_index_is_in_this_machines_cache(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr("mcp_server.store.run_index.is_shared_filesystem", lambda path: path == home)
    monkeypatch.setattr("mcp_server.store.catalogue.is_shared_filesystem", lambda _: True)
    assert len(rows(RunStore(StateHome(home)))) == 8
    (path,) = cache.rglob("*.sqlite")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not (home / "index").exists()


MAKES = """
import os, sys
from pathlib import Path
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
for _ in sys.stdin:
    writers = []
    for _ in "ab":
        if (writer := os.fork()) == 0:
            RunStore(StateHome(Path(sys.argv[1]))).list_ids()
            os._exit(0)
        writers.append(writer)
    print(*writers, flush=True)
    for writer in writers:
        os.waitpid(writer, 0)
    print("ended", flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_while_it_writes_the_index_leaves_no_wrong_answer(tmp_path: Path) -> None:
    for number in range(600):
        add_run(tmp_path, number, STATES[number % 4])
    numbers = random.Random(20261127)
    expected = dict.fromkeys(STATES, 150)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", MAKES, str(tmp_path)], **pipes) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        for _ in range(8):
            shutil.rmtree(tmp_path / "index", ignore_errors=True)
            forks.stdin.write(b"\n")
            forks.stdin.flush()
            writers = forks.stdout.readline().split()
            threading.Event().wait(numbers.uniform(0, 0.5))  # some are killed before, some after, most in between
            for writer in writers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(writer), signal.SIGKILL)
            assert forks.stdout.readline() == b"ended\n"
            store = RunStore(StateHome(tmp_path))
            assert store.count_states() == expected
            assert len(store.list_ids()) == 600


def test_servers_that_write_at_once_while_runs_come_and_go_agree_in_the_end(home: Path) -> None:
    stop, errors = threading.Event(), list[BaseException]()

    def look() -> None:
        store = RunStore(StateHome(home))
        try:
            while not stop.is_set():
                found = {run.run_id for run in store.list_runs()}
                assert found >= {"cfm-0000", "cfm-0007"}
        except BaseException as error:
            errors.append(error)

    servers = [threading.Thread(target=look) for _ in range(3)]
    for server in servers:
        server.start()
    for number in range(10, 50):
        add_run(home, number)
        if number % 3 == 0:
            shutil.rmtree(home / "runs" / f"cfm-{number - 1:04}")
    stop.set()
    for server in servers:
        server.join()
    assert errors == []
    present = sorted(entry.name for entry in (home / "runs").iterdir())
    assert sorted(RunStore(StateHome(home)).list_ids()) == present


# --- questions


def is_asked_for(run: Run, query: RunQuery) -> bool:
    """The same in plain words."""
    spec = run.spec
    kinds = {run.state, "ended" if run.ended else "live"}
    return (
        (query.state is None or query.state in kinds)
        and (query.owner is None or spec.owner == query.owner)
        and (query.tags is None or set(query.tags) <= set(spec.tags))
        and (query.any_tag is None or not set(query.any_tag).isdisjoint(spec.tags))
        and (query.name is None or spec.name == query.name)
        and (query.name_part is None or query.name_part.lower() in f"{spec.name}\n{run.run_id}".lower())
        and (query.sweep is None or spec.sweep == query.sweep)
    )


@pytest.mark.slow
def test_every_question_has_the_answer_of_a_look_at_each_record(tmp_path: Path) -> None:
    numbers = random.Random(7)
    tags = ["a", "b", "a\nb", '","', "%", "Ä", "", "\\", "a b"]
    for number in range(60):
        state = numbers.choice([*STATES, None])
        more: dict[str, Any] = {
            "tags": numbers.sample(tags, numbers.randrange(4)),
            "owner": numbers.choice(["ada", "eva"]),
        }
        more |= {"name": numbers.choice(["cfm", "dp%3", "x_y"]), "sweep": numbers.choice([None, "s-1"])}
        add_run(tmp_path, number, state, **more)
    store = RunStore(StateHome(tmp_path))
    every = store.list_runs()
    assert [run.run_id for run in every] == [f"cfm-{number:04}" for number in reversed(range(60))]
    choices: dict[str, list[Any]] = {
        "state": [None, "live", "ended", *STATES, "lost"],
        "owner": [None, "ada", "nobody"],
        "tags": [*([None] * 9), *([tag] for tag in tags), ["a", "b"], []],
        "any_tag": [None, None, None, [], ["a"], ["b", "%"]],
        "name": [None, None, "cfm", "dp%3"],
        "name_part": [None, "%", "_", "FM-001", "zzz"],
        "sweep": [None, "s-1", "s-2"],
    }
    found = 0
    for _ in range(300):
        asked: dict[str, Any] = {name: numbers.choice([None, *values]) for name, values in choices.items()}
        query = RunQuery(**asked)
        expected = [run.run_id for run in every if is_asked_for(run, query)]
        assert store.list_ids(query) == expected, query
        assert store.list_ids(query, 3) == expected[:3]
        assert sum(store.count_states(query).values()) == len(expected)
        found += len(expected)
    assert found > 300


def test_names_that_are_no_text_are_listed_and_found(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "cfm-0001"
    add_run(tmp_path, 1)
    facts = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**facts, "name": "n\ud800", "tags": ["\udcff"], "cwd": "/d\udce9"}))
    store = RunStore(StateHome(tmp_path))
    (found,) = store.list_runs(RunQuery(tags=["\udcff"]))
    assert found.spec.name == "n\\ud800", "half a character is no text: it is escaped where the record is read"
    assert store.list_tags() == ["\udcff"]


def test_where_there_are_no_runs_a_question_makes_no_file(tmp_path: Path) -> None:
    store = RunStore(StateHome(tmp_path / "none"))
    assert (store.list_ids(), store.count_states(), store.list_tags(), store.list_runs()) == ([], {}, [], [])
    assert list(tmp_path.iterdir()) == []
