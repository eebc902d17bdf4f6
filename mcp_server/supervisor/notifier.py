"""Starts the process that sends the run's notices. Nothing that happens to it touches the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mcp_server.record.codec import decode
from mcp_server.record.events import RecordEvent
from mcp_server.record.handover import Handover
from mcp_server.record.notices import notice
from mcp_server.record.notices.notice import Target
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.system import processes
from mcp_server.system.own_process import notifier_title, set_title


class Notifier:
    """The writing end of the pipe to that process."""

    def __init__(self, fd: int, targets: Sequence[Mapping[str, Any]], rundir: RunDir) -> None:
        self._fd, self._targets, self._rundir = fd, targets, rundir

    def add(self, event: RecordEvent) -> None:
        """Hand over an event. Never waits: a process that does not read, or is gone, gets nothing, which is noted."""
        try:
            os.write(self._fd, json.dumps(event).encode() + b"\n")
        except OSError as error:
            with contextlib.suppress(Exception):  # a run goes on without its notices
                self._note_loss(event, is_gone=isinstance(error, BrokenPipeError))

    def _note_loss(self, event: RecordEvent, *, is_gone: bool) -> None:
        cause = notice.SENDER_DIED if is_gone else "the process that sends notices reads nothing"
        for target in (decode(Target, each) for each in self._targets):
            if target.accepts(event["kind"], event.get("state", "")):
                facts = {"at": event.get("at"), "target": target.name, "kind": event["kind"], "seq": event["seq"]}
                fd = notice.write_line(self._rundir.path / notice.RECORD, {**facts, "sent": False, "cause": cause})
                if fd is not None:
                    os.close(fd)


def start_notifier(targets: Sequence[Mapping[str, Any]], rundir: RunDir, spec: RunSpec, handover: Handover) -> Notifier:
    """Start the process. Call it before this process is a subreaper: it shall not be a child of the supervisor."""
    read_fd, write_fd = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(read_fd)
        os.close(write_fd)
        raise
    if child == 0:
        _detach(read_fd, targets, rundir, spec, handover)
    os.close(read_fd)
    os.waitpid(child, 0)  # the process that is left belongs to init
    os.set_blocking(write_fd, False)
    return Notifier(write_fd, targets, rundir)


def _detach(
    read_fd: int, targets: Sequence[Mapping[str, Any]], rundir: RunDir, spec: RunSpec, handover: Handover
) -> NoReturn:
    """Become a process of its own that has nothing of the supervisor but the pipe, and send notices."""
    try:
        # A command may not read its input, a web server may hang up early: neither ends the sender.
        processes.leave_parent([read_fd], ignored=[signal.SIGHUP, signal.SIGPIPE])
        os.chdir("/")
        set_title(notifier_title(spec.run_id))
        _send(read_fd, targets, rundir, spec, handover)
    finally:
        os._exit(0)


def _send(
    read_fd: int, targets: Sequence[Mapping[str, Any]], rundir: RunDir, spec: RunSpec, handover: Handover
) -> None:
    from mcp_server.record.notices import sender  # noqa: PLC0415 - 29 ms, in this process alone

    os.environ.clear()
    os.environ.update(handover.env)  # proxies and certificates
    sender.send_from_pipe(read_fd, [decode(Target, each) for each in targets], rundir, spec, handover)
