"""Serves one server elsewhere over stdin and stdout: `python3 -I -S FILE --relay STATE_DIRECTORY`.

The server speaks first after the hello. A request is ``{"id": 1, "ask": NAME, …}``, its answer ``{"id": 1, "ok": {…}}``
or ``{"id": 1, "error": […]}``. Pushes have no id. The process ends with its channel; runs go on.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.record.relay_channel import REQUESTS, FrameWriter, read_frame
from mcp_server.record.run_directory import boot_id
from mcp_server.relay.handlers import Answers
from mcp_server.relay.run_watch import RunWatch
from mcp_server.relay.supervisor_start import State
from mcp_server.system import tmux
from mcp_server.system.files import find_archive
from mcp_server.system.lock_files import hold_program_lock, remove_unused_files
from mcp_server.system.own_process import RELAY, forbid_core_dumps, set_title, take_umask

_SILENT_S = 60.0  # a server pings every 10 s
_UNUSED_S = 86_400.0  # a program that nobody has begun for a day, and that nobody runs from, is removed
_LAUNCHES_WITHIN_S = 75.0  # what a launch that is under way may still take when the channel ends
_LAST_WORDS = frozenset(name for name, request in REQUESTS.items() if request.finishes)


def main() -> int:
    """Serve until the channel ends."""
    state = State(Path(sys.argv[1]))
    set_title([RELAY])
    take_umask()
    forbid_core_dumps()  # secrets pass through its memory
    channel_in, channel_out = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # children get neither end of the channel
    os.dup2(null, 1)
    writer = FrameWriter(channel_out)
    try:
        state.create()
    except OSError as error:
        writer.write({"push": "hello", "error": f"{state.path}: {error.strerror}"})
        return 1
    watch = RunWatch(state.runs, lambda message, data: writer.write(dict(message), data))
    answers = Answers(state, watch)
    if (program := find_archive()) is not None:
        hold_program_lock(program)
        remove_unused_files(program, _UNUSED_S)
    writer.write({"push": "hello", **_describe_host(state, watch)})
    heard_at_s = [time.monotonic()]
    threading.Thread(target=_end_when_silent, args=(heard_at_s,), daemon=True).start()
    working: list[threading.Thread] = []
    try:
        while (frame := read_frame(channel_in)) is not None:
            heard_at_s[0] = time.monotonic()
            request = {**frame[0], "data": frame[1]} if frame[1] else frame[0]
            thread = threading.Thread(target=_answer, args=(answers, writer, request), daemon=True)
            thread.start()
            working = [one for one in working if one.is_alive()]
            if request.get("ask") in _LAST_WORDS:
                working.append(thread)
    except (OSError, ValueError):
        pass
    give_up_s = time.monotonic() + _LAUNCHES_WITHIN_S
    for thread in working:
        thread.join(max(0.0, give_up_s - time.monotonic()))
    os._exit(0)  # threads that wait for a driver or a disk do not keep it


def _answer(answers: Answers, writer: FrameWriter, request: dict[str, Any]) -> None:
    """Answer a request. An error is a class name, its cause, state and remedy."""
    reply: dict[str, Any] = {"id": request.get("id")}
    data = b""
    try:
        reply["ok"], data = answers.by_name[str(request.get("ask"))](request)
    except RunwardError as error:
        reply["error"] = [type(error).__name__, error.cause, error.state, error.remedy]
    except OSError as error:
        reply["error"] = ["OSError", error.strerror or str(error), str(error.errno or ""), str(error.filename or "")]
    except Exception as error:  # the server must hear of it, and the channel goes on
        reply["error"] = ["RunwardError", f"The relay failed: {error!r}.", "", ""]
    try:
        writer.write(reply, data)
    except OSError:
        os._exit(0) if request.get("ask") not in _LAST_WORDS else None


def _describe_host(state: State, watch: RunWatch) -> dict[str, Any]:
    version = tmux.query("default", ["-V"]) or []
    return {
        "python": platform.python_version(),
        "host": os.uname().nodename,
        "boot_id": boot_id(),
        "state": str(state.path),
        "state_id": state.read_id(),
        "home": str(Path.home()),
        "path": os.environ.get("PATH", ""),
        "pythonpath": os.environ.get("PYTHONPATH", ""),
        "tmux": version[0] if version else "",
        "tmux_socket": os.environ.get("RUNWARD_TMUX_SOCKET") or "default",
        "inotify": watch.has_inotify,
        "cpu_slots": os.cpu_count() or 1,
        "pid": os.getpid(),
        "time": time.time(),
    }


def _end_when_silent(heard_at_s: list[float]) -> None:
    """End the process when its server has been silent for too long: its connection is gone, and nobody said so."""
    while time.monotonic() - heard_at_s[0] < _SILENT_S:
        time.sleep(_SILENT_S / 6)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
