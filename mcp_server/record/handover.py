"""The environment of a run, handed from the launcher to the supervisor in memory: through a FIFO."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The launcher holds the FIFO open before the supervisor exists, so that an end of file means that it died.
_LONGEST_S = 10.0


class HandoverError(Exception):
    """The environment did not arrive; the command must not start without it."""


class StoppedBefore(Exception):
    """Somebody asked for a stop; the command must not start any more."""


@dataclass(frozen=True)
class Handover:
    """What a command needs and no file may hold, and the launcher's umask: tmux may have been started with another.

    ``snapshot``: what the launcher has just seen of the GPUs, so that the supervisor need not ask the driver again.
    """

    env: Mapping[str, str]
    secrets: Mapping[str, str]
    umask: int | None = None
    snapshot: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        """One JSON line."""
        value = {"env": dict(self.env), "secrets": dict(self.secrets), "umask": self.umask, "snapshot": self.snapshot}
        return json.dumps(value).encode() + b"\n"


def receive(path: Path) -> Handover:
    """Read the FIFO once, and remove it.

    Raises:
        HandoverError: the launcher died before it had written everything, or took longer than 10 s.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HandoverError(f"the launching server left no environment: {error.strerror}") from error
    deadline_s = time.monotonic() + _LONGEST_S
    data = b""
    try:
        while not data.endswith(b"\n"):
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                    raise HandoverError("the launching server did not hand over the environment in 10 s") from None
                continue
            if not chunk:  # read first: select says nothing of a writer that was gone before
                raise HandoverError("the launching server died before it handed over the environment")
            data += chunk
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
    try:
        value = json.loads(data)
        return Handover(dict(value["env"]), dict(value["secrets"]), value.get("umask"), value.get("snapshot"))
    except (ValueError, KeyError, TypeError) as error:
        raise HandoverError("the launching server handed over no environment but nonsense") from error
