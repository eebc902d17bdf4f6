"""Advances one sweep: `python -I -m mcp_server.sweeps.conductor SWEEP_DIR HANDOVER SESSION [reopen]`, in tmux."""

import os
import signal
import sys
from pathlib import Path

from mcp_server.record.handover import HandoverError, receive_handover
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.system.lock_files import take_lock
from mcp_server.system.own_process import conductor_title, forbid_core_dumps, set_title, take_umask

_NOT_OURS = 75  # EX_TEMPFAIL of sysexits.h
_LOCK_PATIENCE_S = 5.0  # the conductor of an ended sweep that is continued may be about to exit
# Closing the session, or Ctrl-C in it, ends no sweep: kill_run and `runward kill` do, and say what they stop.
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGPIPE)


def main() -> int:
    """Advance the sweep until it has ended and return the exit status. 75: another process advances it."""
    path, fifo, session = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    set_title(conductor_title(path.name))
    forbid_core_dumps()
    take_umask()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    directory = SweepDir(path)
    lock = take_lock(directory.lock, _LOCK_PATIENCE_S)
    if lock is None:
        fifo.unlink(missing_ok=True)
        return _NOT_OURS
    try:
        handover = receive_handover(fifo)
    except HandoverError as error:
        print(f"This conductor ends: {error}. The next call about the sweep starts another one.", flush=True)
        return 1
    os.environ.clear()
    os.environ.update(handover.env)
    take_umask(handover.umask)
    from mcp_server.sweeps.conductor.conductor import conduct  # noqa: PLC0415 - 500 ms

    return conduct(directory, dict(handover.env), session, reopens=sys.argv[4:] == ["reopen"])


if __name__ == "__main__":
    sys.exit(main())
