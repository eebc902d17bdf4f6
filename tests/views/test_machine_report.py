"""The hours without a run on a GPU, by value."""

import json
import time
from pathlib import Path
from typing import Any

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run, posix
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import format_posix
from mcp_server.views.machine_report import HERE, Machines, _join_spans, _measure_span

AT = "2026-11-20T10:00:00Z"


def test_overlapping_runs_of_one_gpu_count_once() -> None:
    assert _join_spans([(0.0, 10.0), (5.0, 8.0), (8.0, 20.0), (30.0, 31.0)]) == 21.0
    assert _join_spans([]) == 0.0


def test_a_run_counts_from_the_beginning_of_the_week_to_its_end_or_now() -> None:
    begun_s = posix(AT)
    ended = Run(RunSpec(run_id="a"), "finished", started_at="2026-11-20T09:00:00Z", ended_at="2026-11-20T11:00:00Z")
    assert _measure_span(ended, begun_s, begun_s + 7_200) == (begun_s, begun_s + 3_600)
    live = Run(RunSpec(run_id="a"), "running", started_at="2026-11-20T10:30:00Z")
    assert _measure_span(live, begun_s, begun_s + 7_200) == (begun_s + 1_800, begun_s + 7_200)
    lost = Run(RunSpec(run_id="a"), "lost", started_at=AT)
    assert _measure_span(lost, begun_s, begun_s + 60) is None
    before = Run(RunSpec(run_id="a"), "finished", started_at="2026-11-19T09:00:00Z", ended_at="2026-11-19T11:00:00Z")
    assert _measure_span(before, begun_s, begun_s + 60) is None


def test_the_hours_of_each_host_are_those_of_its_own_runs(tmp_path: Path) -> None:
    home, now_s = StateHome(tmp_path), time.time()
    for runs, run_id, hours in ((home.runs, "here-1", 4), (home.hosts / "node7" / "runs", "far-1", 9)):
        (runs / run_id).mkdir(parents=True)
        begun, ended = format_posix(now_s - hours * 3_600), format_posix(now_s - (hours - 1) * 3_600)
        spec = {"run_id": run_id, "layout": 3, "command": "true", "created_at": begun, "host": "node7"}
        facts = [{"kind": "started", "at": begun, "gpus": ["GPU-1"], "gpu_indices": [0]}]
        facts += [{"kind": "ended", "at": ended, "state": "finished"}]
        (runs / run_id / "spec.json").write_text(json.dumps(spec))
        lines = (json.dumps({"seq": seq, "attempt": 1, **one}) for seq, one in enumerate(facts, 1))
        (runs / run_id / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    machines, idle = Machines(RunStore(home), {}), dict[str, Any]()
    for name, is_here in ((HERE, True), ("node7", False)):
        host: dict[str, Any] = {"name": name, "here": is_here, "gpus": [{"index": 0}, {"index": 1}]}
        idle[name] = machines._measure_idle(host), round(host["gpus"][0]["idle_s"] / 3_600)
    assert idle == {HERE: ({"0": 3.0, "1": 4.0}, 3), "node7": ({"0": 8.0, "1": 9.0}, 8)}
