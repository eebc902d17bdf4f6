"""Asks whether the tmux server of a run still runs.

A server that ends while a client hangs closes all panes at once, takes no new client from then on, and lives until the
client has gone. So only an answer proves that the server goes on, and that a person closed the session.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_QUESTION = ("show-options", "-s", "exit-empty")
_ANSWER = b"exit-empty"
_ANSWER_BYTES = 4096


class TmuxProbe:
    """A tmux client, of the same program as the server, that asks for one option.

    ``fd`` yields the answer, and its end when the client has ended. ``pid`` is the client's.

    Raises:
        OSError: the server is gone, or the client cannot be started.
    """

    def __init__(self) -> None:
        path, server = [*os.environ.get("TMUX", "").split(","), "", ""][:2]
        program = Path(f"/proc/{server}/exe").readlink()
        self.fd, answer_end = os.pipe()
        os.set_blocking(self.fd, False)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, answer_end, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        environ = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        try:
            self.pid = os.posix_spawn(program, ["tmux", "-S", path, *_QUESTION], environ, file_actions=actions)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(answer_end)
        self._answer = b""

    def read(self) -> bool | None:
        """Return whether the server still runs, or None while the client has not ended."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _ANSWER_BYTES):
                self._answer = (self._answer + data)[:_ANSWER_BYTES]
            return self._answer.startswith(_ANSWER)
        return None

    def close(self) -> None:
        """End the client, and close the pipe. The supervisor reaps it with its other children."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
