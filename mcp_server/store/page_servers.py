"""Where servers of this state directory show the page: each says so in a file of its own, as long as it lives."""

import contextlib
import json
import os
from collections.abc import Iterator

from mcp_server.errors import RunwardError
from mcp_server.record.run_directory import read_json
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import write_atomic
from mcp_server.system.processes import find_process


@contextlib.contextmanager
def announce(home: StateHome, address: str) -> Iterator[None]:
    """Let ``runward dash`` find the server at ``address``, which this process is, until the block ends."""
    process, directory = find_process(os.getpid()), home.path / "page" / "servers"
    file = directory / f"{os.getpid()}.json"
    facts = {"address": address, "pid": os.getpid(), "started": process.started if process is not None else 0}
    with contextlib.suppress(OSError, RunwardError):  # a full disk: it serves all the same
        home.create()
        for path in (directory.parent, directory):
            path.mkdir(mode=0o700, exist_ok=True)
        write_atomic(file, json.dumps(facts).encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def find_server(home: StateHome, port: int | None = None) -> str | None:
    """Return the address of a running server of this state directory, at ``port``; None where there is none."""
    with contextlib.suppress(OSError):
        for file in sorted((home.path / "page" / "servers").glob("*.json")):
            facts = read_json(file) or {}
            pid, address = facts.get("pid"), facts.get("address")
            process = find_process(pid) if isinstance(pid, int) else None
            if process is None or process.started != facts.get("started"):
                file.unlink(missing_ok=True)
            elif isinstance(address, str) and port in (None, int(address.rpartition(":")[2])):
                return address
    return None
