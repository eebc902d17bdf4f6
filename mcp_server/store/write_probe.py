"""Whether a directory takes writes now. It is asked by writing: of a quota nothing else can be seen."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from mcp_server.system.files import is_shortage

_BYTES = 4096
_PATIENCE_S = 1.0
_probes: dict[Path, _Probe] = {}


class _Probe(threading.Thread):
    """Writes a file and removes it. A thread that waits for a silent disk cannot be ended, so there is only one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._file = directory / f".probe-{os.getpid()}"
        self.until_s = time.monotonic() + _PATIENCE_S
        self.error: str | None = None

    def run(self) -> None:
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, os.urandom(_BYTES))  # which no file system compresses
            finally:
                os.close(fd)
        except OSError as error:
            self.error = None if is_shortage(error) else error.strerror
        with contextlib.suppress(OSError):
            self._file.unlink()


def find_write_error(directory: Path) -> str | None:
    """Return why nothing can be written to ``directory`` now, None where something can. Blocks for a second at most."""
    probe = _probes.get(directory)
    if probe is None or not probe.is_alive():
        probe = _probes[directory] = _Probe(directory)
        probe.start()
    probe.join(max(0.0, probe.until_s - time.monotonic()))
    return "it does not answer" if probe.is_alive() else probe.error
