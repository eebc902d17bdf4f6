"""Reading run directories: live, ended and damaged ones."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import RunNameAmbiguous, RunNotFound, RunUnreadable
from mcp_server.record.events import EventLog
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import write_atomic
from mcp_server.system.lock_files import is_locked, take_lock
from mcp_server.views.run_status import status_of
from tests.support.sandbox import until


def test_a_run_whose_supervisor_starts_between_two_reads_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 1, "created_at": "2026-11-21T10:00:00Z"}))
    locks: list[int | None] = []

    def held_just_before_it_starts(path: Path) -> bool:
        held = is_locked(path)
        if not locks:
            locks.append(take_lock(run / "supervisor.lock"))
            EventLog(run / "events.jsonl").append("started", "The command runs.")
        return held

    monkeypatch.setattr("mcp_server.record.run_processes.is_locked", held_just_before_it_starts)
    assert RunStore(StateHome(tmp_path)).observe("cfm-7kqz").state == "running"


def test_an_ended_run_is_read_once(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 1, "created_at": "2026-11-21T10:00:00Z"}))
    EventLog(run / "events.jsonl").append("ended", "finished: exit code 0.", state="finished")
    store = RunStore(StateHome(tmp_path))
    first = store.observe("cfm-7kqz")
    (run / "events.jsonl").unlink()
    assert store.observe("cfm-7kqz") is first


def test_a_live_run_is_read_again_after_each_write_and_not_without_one(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "attempts" / "2").mkdir()
    (run / "spec.json").write_text(json.dumps({"layout": 1, "created_at": "2026-11-21T10:00:00Z"}))
    log, lock, store = EventLog(run / "events.jsonl"), take_lock(run / "supervisor.lock"), RunStore(StateHome(tmp_path))
    assert lock is not None
    log.append("started", "The command runs.", attempt=1)
    writes: dict[str, Callable[[], object]] = {
        "stalled": lambda: log.append("stalled", "No output."),
        "running": lambda: log.append("resumed", "Output again."),
        "step 7": lambda: write_atomic(run / "attempts" / "1" / "progress.json", b'{"step": 7}'),
        "attempt 2": lambda: log.append("started", "Again.", attempt=2),
        "step 9": lambda: write_atomic(run / "attempts" / "2" / "progress.json", b'{"step": 9}'),
        "lost": lambda: os.close(lock),
    }
    for seen, write in writes.items():
        until(lambda: store.observe("cfm-7kqz") is store.observe("cfm-7kqz"), "an unchanged record that is known")
        write()
        now = store.observe("cfm-7kqz")
        assert seen in (now.state, f"step {now.progress.get('step')}", f"attempt {now.attempt}"), seen
        rows = store.list_runs(RunQuery("ended" if seen == "lost" else "live"))
        assert [(row.state, row.progress) for row in rows] == [(now.state, now.progress)]


NONSENSE: dict[str, dict[str, object]] = {
    "stop.json": {"carried_out": "yes"},
    "stop.json ": {"carried_out": {"at": 5}},
    "attempts/1/progress.json": {"step": "many", "step_s": 10**400, "eta_s": float("inf"), "metrics": {"loss": [1]}},
    "attempts/1/progress.json ": {"step": 3, "step_s": float("nan"), "metrics": {"loss": 10**400, "a": "nan"}},
    "events.jsonl": {"seq": 2, "kind": "error_seen", "failure": {"context": 5, "line_number": "x", "retryable": []}},
    "events.jsonl ": {"seq": 2, "kind": "started", "attempt": {}, "at_start": [], "failure": "none"},
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_one_run_breaks_no_list(tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 2, "created_at": "2026-11-21T10:00:00Z"}))
    EventLog(run / "events.jsonl").append("started", "The command runs.", attempt=1)
    with (run / name.strip()).open("a") as file:
        file.write(json.dumps(NONSENSE[name]) + "\n")
    store = RunStore(StateHome(tmp_path))
    (listed,) = store.list_runs()
    text = status_of(store, listed).model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text


# --- names


def add_run(home: Path, run_id: str, name: str) -> None:
    run = home / "runs" / run_id
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 3, "name": name, "created_at": "2026-11-21T10:00:00Z"}))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Two runs of one name, and one of another."""
    for run_id, name in (("cfm-7kqz", "cfm"), ("cfm-8abc", "cfm"), ("gen-2mxw", "gen")):
        add_run(tmp_path, run_id, name)
    return RunStore(StateHome(tmp_path))


def test_ids_resolve_to_their_runs_in_order_and_each_once(store: RunStore) -> None:
    runs = store.resolve(["gen-2mxw", "cfm-7kqz", "gen-2mxw"])
    assert [run.run_id for run in runs] == ["gen-2mxw", "cfm-7kqz"]
    assert store.resolve([]) == []


def test_a_name_that_one_run_alone_has_resolves_to_it(store: RunStore) -> None:
    assert [run.run_id for run in store.resolve(["gen", "gen-2mxw"])] == ["gen-2mxw"]


def test_a_name_of_several_runs_is_refused_with_their_ids(store: RunStore) -> None:
    with pytest.raises(
        RunNameAmbiguous, match=r"2 runs are named 'cfm', the newest first: cfm-\w+, cfm-\w+\. Nothing was done"
    ) as refused:
        store.find("cfm")
    assert sorted(refused.value.near) == ["cfm-7kqz", "cfm-8abc"]


def test_the_name_of_a_blueprints_file_finds_its_run(store: RunStore) -> None:
    add_run(store.home.path, "exp_mid-does-it-4zzz", "exp_mid-does-it")
    spec = store.home.path / "runs" / "exp_mid-does-it-4zzz" / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "tags": ["blueprint:exp_mid"]}))
    assert store.find("exp_mid").run_id == "exp_mid-does-it-4zzz"
    assert store.find_any("exp_mid").run_id == "exp_mid-does-it-4zzz"


@pytest.mark.parametrize("name", ["exp_mid.md", "/w/plans/exp_mid.md", "plans/exp_mid.md"])
def test_the_file_of_a_blueprint_finds_its_run_and_several_are_named(store: RunStore, name: str) -> None:
    for run_id, blueprint in (("a-1zzz", "/w/plans/exp_mid.md"), ("b-2zzz", "/w/plans/other_exp_mid.md")):
        add_run(store.home.path, run_id, run_id)
        spec = store.home.path / "runs" / run_id / "spec.json"
        spec.write_text(json.dumps({**json.loads(spec.read_text()), "blueprint": blueprint}))
    assert store.find(name).run_id == "a-1zzz"
    with pytest.raises(RunNotFound):
        store.find("mid.md")
    add_run(store.home.path, "c-3zzz", "c-3zzz")
    again = store.home.path / "runs" / "c-3zzz" / "spec.json"
    again.write_text(json.dumps({**json.loads(again.read_text()), "blueprint": "/w/plans/exp_mid.md"}))
    with pytest.raises(RunNameAmbiguous) as refused:
        store.find(name)
    assert sorted(refused.value.near) == ["a-1zzz", "c-3zzz"]


def test_an_id_wins_over_a_name(store: RunStore) -> None:
    add_run(store.home.path, "gen-3zzz", "gen-2mxw")
    assert store.find("gen-2mxw").run_id == "gen-2mxw"


def test_an_unknown_id_is_refused_with_the_similar_one(store: RunStore) -> None:
    with pytest.raises(RunNotFound, match=r"Did you mean gen-2mxw\?"):
        store.resolve(["gen-2mx"])


@pytest.mark.parametrize("name", ["supervisor.lock", "events.jsonl", "exit.json", "spec.json"])
def test_a_record_that_cannot_be_read_now_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 2, "name": "cfm", "created_at": "2026-11-21T10:00:00Z"}))
    (run / "attempts" / "1" / "exit.json").write_text(json.dumps({"exit_code": 3, "signal": None}))
    EventLog(run / "events.jsonl").append("started", "The command runs.")
    lock = take_lock(run / "supervisor.lock")
    assert lock is not None
    real_open = os.open

    def fail(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).endswith(name):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real_open(path, *arguments, **more)

    store = RunStore(StateHome(tmp_path))
    with monkeypatch.context() as context:
        context.setattr(os, "open", fail)
        with pytest.raises(RunUnreadable, match=r"cannot be read now: Too many open files\. Its state is unknown"):
            store.observe("cfm-7kqz")
        assert (store.list_runs(), store.unreadable) == ([], ["cfm-7kqz"])
    seen = store.observe("cfm-7kqz")
    assert (seen.state, seen.spec.name, store.list_runs(), store.unreadable) == ("running", "cfm", [seen], [])
    os.close(lock)
    assert (store.observe("cfm-7kqz").state, store.observe("cfm-7kqz").exit_code) == ("failed", 3)
