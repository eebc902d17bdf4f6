"""The start of a server: what it leaves for later, and what it puts back."""

from __future__ import annotations

import json
import subprocess
import sys

_START = """
import gc, json, sys
from mcp_server.__main__ import _import_server
_import_server("mcp_server.serve.app").build({"RUNWARD_HOME": "/nonexistent"})
loaded = [name for name in sys.modules if name.startswith("mcp_server.")]
heavy = {"numpy", "regex", "libtmux", "yaml", "markdown_it", "matplotlib", "inotify_simple"}
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 0, loaded, sorted(heavy & set(sys.modules))]))
"""


def test_a_server_starts_without_the_rooms_of_rare_calls_and_collects_garbage_afterwards() -> None:
    command = [sys.executable, "-c", _START]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    is_enabled, is_frozen, loaded, heavy = json.loads(output)
    assert is_enabled
    assert is_frozen
    assert heavy == []
    for room in (
        "scalars.run_scalars",
        "store.attribution",
        "gpus.health",
        "hosts",
        "diagnosis",
        "blueprints.apply",
        "results.finish",
    ):
        assert f"mcp_server.{room}" not in loaded
