"""The reader's side of run directories."""

import json
from pathlib import Path

import pytest

from mcp_server.record.events import EventLog
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.lock_files import is_locked, take_lock
from mcp_server.views.run_status import status_of


def test_a_supervisor_that_starts_between_two_looks_is_not_called_lost(
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

    monkeypatch.setattr("mcp_server.backends.local.is_locked", held_just_before_it_starts)
    assert RunStore(StateHome(tmp_path)).observe("cfm-7kqz").state == "running"


def test_what_has_ended_is_read_once(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "cfm-7kqz"
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"layout": 1, "created_at": "2026-11-21T10:00:00Z"}))
    EventLog(run / "events.jsonl").append("ended", "finished: exit code 0.", state="finished")
    store = RunStore(StateHome(tmp_path))
    first = store.observe("cfm-7kqz")
    (run / "events.jsonl").unlink()
    assert store.observe("cfm-7kqz") is first


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
    (found,) = store.list_runs()
    told = status_of(store, found).model_dump_json()
    assert "NaN" not in told
    assert "Infinity" not in told
