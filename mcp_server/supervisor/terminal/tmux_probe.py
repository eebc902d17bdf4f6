"""Asks whether the tmux server of a run still runs, and still has its pane.

A server that ends while a client hangs closes all panes at once, takes no new client from then on, and lives until the
client has gone. So only an answer proves that the server goes on. Then a person has closed the session if the pane is
gone: the pane of a process that was killed stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_QUESTION = ("show-options", "-s", "exit-empty", ";", "list-panes", "-a", "-F", "#{pane_id}")
_ANSWER = "exit-empty"
_ANSWER_BYTES = 4096


class TmuxProbe:
    """A tmux client, of the same program as the server, that asks for one option and all panes.

    ``fd`` yields the answer, and its end when the client has ended. ``pid`` is the client's.
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

    def read(self) -> str | None:
        """Return why there is no screen, empty if a person closed it, or None while the client has not ended."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _ANSWER_BYTES):
                self._answer += data
            server, *panes = self._answer.decode(errors="replace").split("\n")
            if not server.startswith(_ANSWER):
                return "tmux is ending"
            return "the process of its pane was killed" if os.environ.get("TMUX_PANE") in panes else ""
        return None

    def close(self) -> None:
        """End the client, and close the pipe. The supervisor reaps it with its other children."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
