"""The start of a server: what it leaves for later, and what it puts back."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from mcp_server import threads
from mcp_server.serve import app
from mcp_server.serve.app import _read_request_id
from tests.support.sandbox import until_async

_START = """
import gc, json, sys
from mcp_server.__main__ import _import_server
server = _import_server("mcp_server.serve.app").build({"RUNWARD_HOME": "/nonexistent"})
loaded = [name for name in sys.modules if name.startswith("mcp_server.")]
heavy = {"numpy", "regex", "libtmux", "yaml", "matplotlib"}
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 0, loaded, sorted(heavy & set(sys.modules))]))

import anyio
from mcp.client import Client
from mcp_server.tools.support.listing import NAMES

async def live_until_every_tool_is_imported():
    async with Client(server) as client:
        assert len((await client.list_tools()).tools) == len(NAMES)
        with anyio.fail_after(60):
            while not all(hasattr(sys.modules.get(f"mcp_server.tools.{name}"), "TOOL") for name in NAMES):
                await anyio.sleep(0.05)

anyio.run(live_until_every_tool_is_imported)
"""


@pytest.mark.slow
def test_a_server_starts_without_the_rooms_of_calls_collects_garbage_and_imports_every_tool_when_it_is_listed() -> None:
    command = [sys.executable, "-c", _START]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    is_enabled, is_frozen, loaded, heavy = json.loads(output)
    assert is_enabled
    assert is_frozen
    assert heavy == []
    for room in (
        "tools.launch_run",
        "tools.wait_run",
        "scalars.run_scalars",
        "store.attribution.attribution",
        "gpus.health",
        "hosts.path_checks",
        "diagnosis",
        "blueprints.apply",
        "results.finish",
    ):
        assert f"mcp_server.{room}" not in loaded


@pytest.mark.slow
def test_a_server_over_stdio_ends_with_its_client_whatever_its_threads_do(tmp_path: Path) -> None:
    program = """
import threading
from types import SimpleNamespace
from mcp_server.serve import app

search = threading.Thread(target=threading.Event().wait)
app.build = lambda *_: SimpleNamespace(run=search.start)
app.serve_stdio()
"""
    environ = {"PYTHONPATH": str(Path(__file__).parents[2]), "RUNWARD_HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", program], env=environ, timeout=30, check=False).returncode == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": "\\ud83d"}}', 7),
        ('{"params": {"id": 8, "text": "\\"id\\": 9, {"}, "id" : "a-1", "method": "ping", "x": [1e', "a-1"),
        ('{"method": "ping", "params": {"id": 8, "a": %s}, "id": -3}' % ("[" * 2000 + "]" * 2000), -3),
        ('{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"id": 8, "a": "\\ud83d"}}', None),
        ('{"jsonrpc": "2.0", "id": 7, "result": {"method": "x", "a": "\\ud83d"}}', None),
        ('{"id": "\\ud8", "method": "ping"}', None),
        ("garbage", None),
    ],
)
def test_the_id_of_a_request_that_is_no_json_is_found_and_nothing_else_is_taken_for_it(
    message: str, expected: str | int | None
) -> None:
    assert _read_request_id(message) == expected


@pytest.mark.anyio
async def test_all_objects_are_looked_through_only_while_no_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds, looks, collections, work = gc.get_threshold(), list[bool](), list[None](), threading.Event()
    monkeypatch.setattr(app, "_GARBAGE_EVERY_S", 0.001)
    monkeypatch.setattr(app, "_ENOUGH_GARBAGE", 0)
    monkeypatch.setattr(gc, "collect", lambda: collections.append(None))

    def is_idle() -> bool:
        looks.append(threads.is_idle())
        return looks[-1]

    monkeypatch.setattr(app, "is_idle", is_idle)
    async with anyio.create_task_group() as group:
        group.start_soon(threads.run_in_thread, work.wait)
        group.start_soon(app._collect_garbage)
        await until_async(lambda: looks.count(False) > 1, "looks beside a call")
        assert not collections
        work.set()
        await until_async(lambda: True in looks and collections, "a collection")
        group.cancel_scope.cancel()
    gc.set_threshold(*thresholds)
