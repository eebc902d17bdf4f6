"""Run directories of runs that never ran."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome

BEGAN, ENDED_AT = "2026-11-21T15:30:00.000Z", "2026-11-21T16:32:03.000Z"
BEGAN_S = 1795275000.0


class Runs:
    """A state directory with run directories."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = StateHome(path / "state")
        self.home.create()

    @property
    def store(self) -> RunStore:
        return RunStore(self.home)

    @property
    def scalars(self) -> Scalars:
        return Scalars(self.home)

    def add(
        self,
        run_id: str = "cfm-7kqz",
        state: str | None = "finished",
        *,
        failure: dict[str, Any] | None = None,
        progress: dict[str, Any] | None = None,
        created_at: str = BEGAN,
        steps: bool = True,
        **spec: Any,
    ) -> Path:
        """Write the directory of a run that ended as ``state``, None: is lost; return its working directory."""
        rundir = self.home.runs / run_id
        cwd = self.path / "work" / run_id
        cwd.mkdir(parents=True, exist_ok=True)
        (rundir / "attempts" / "1").mkdir(parents=True)
        facts = {"layout": 3, "run_id": run_id, "name": "cfm", "command": "python train.py --lr 1e-4", "cwd": str(cwd)}
        facts |= {"owner": "alice", "created_at": created_at, "host": socket.gethostname(), **spec}
        (rundir / "spec.json").write_text(json.dumps(facts))
        events: list[dict[str, Any]] = [
            {"seq": 1, "at": BEGAN, "kind": "started", "text": "The command runs.", "attempt": 1, "at_start": {}}
        ]
        if steps:
            events.append({"seq": 2, "at": BEGAN, "kind": "first_step", "text": "First training step seen."})
        if state is not None:
            text = "finished: exit code 0." if state == "finished" else f"{state}: exit code 1."
            end = {
                "seq": len(events) + 1,
                "at": ENDED_AT,
                "kind": "ended",
                "text": text,
                "state": state,
                "elapsed_s": 3723.0,
            }
            events.append({**end, "attempt": 1, **({"failure": failure} if failure else {})})
            record = {"exit_code": 0 if state == "finished" else 1, "signal": None, "state": state}
            record |= {"started_at": BEGAN, "ended_at": ENDED_AT}
            (rundir / "attempts" / "1" / "exit.json").write_text(json.dumps(record))
        (rundir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (rundir / "attempts" / "1" / "progress.json").write_text(json.dumps(progress or {}))
        return cwd
