"""A command of a person on a terminal of its own: its keys, its size, and whatever it has drawn."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.sandbox import Sandbox, until


class PersonsTerminal:
    """``mode``: the settings of the terminal before the command began."""

    def __init__(
        self, sandbox: Sandbox, words: tuple[str, ...], columns: int, lines: int, environ: dict[str, str]
    ) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.mode = termios.tcgetattr(theirs)
        self._theirs = theirs  # kept open: the settings can be read once the command has ended
        self._drawn = bytearray()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "mcp_server", *words],  # for Ctrl-C and Ctrl-Z
            env={**sandbox.environ, "TERM": "xterm-256color", **environ},
            cwd=sandbox.path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.ours, 65536):
                self._drawn += data

    @property
    def drawn(self) -> str:
        """All that was written, with its escape sequences."""
        return self._drawn.decode(errors="replace")

    @property
    def settings(self) -> list[Any]:
        """The settings of the terminal now."""
        return termios.tcgetattr(self._theirs)

    def forget(self) -> None:
        """Let ``drawn`` begin anew."""
        self._drawn.clear()

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self.ours, keys.encode())

    def until(self, text: str) -> str:
        """Return what was drawn once it has ``text``."""
        until(lambda: text in self.drawn or self.process.poll() is not None, repr(text))
        assert text in self.drawn, self.drawn[-3000:]
        return self.drawn

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, of which its process hears."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def end(self) -> int:
        """Return the exit status, once the command has ended."""
        return self.process.wait(30)


@contextlib.contextmanager
def person_types(
    sandbox: Sandbox, *words: str, columns: int = 80, lines: int = 24, **environ: str
) -> Iterator[PersonsTerminal]:
    """Run `runward WORDS` as a person does; it is killed at the end."""
    terminal = PersonsTerminal(sandbox, words, columns, lines, environ)
    try:
        yield terminal
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait()
        os.close(terminal.ours)
        os.close(terminal._theirs)
