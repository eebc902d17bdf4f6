"""What a relay says of runs, by value."""

import json
import os
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import RunDir
from mcp_server.relay.run_watch import RunWatch


def test_a_launch_that_was_asked_for_long_ago_is_not_dead_before_its_supervisor_comes(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "cfm-7kqz")
    directory.path.mkdir()
    directory.spec.write_text(json.dumps({"run_id": "cfm-7kqz", "created_at": "2026-01-01T00:00:00.000Z"}))
    pushed: list[dict[str, Any]] = []
    watch = RunWatch(tmp_path, lambda message, _: pushed.append(dict(message)))
    watch.push_now("cfm-7kqz")
    assert [one["report"]["liveness"] for one in pushed] == ["pending"]
    os.utime(directory.spec, (0, 0))
    watch.push_now("cfm-7kqz")
    assert [one["report"]["liveness"] for one in pushed] == ["pending", "dead"]
