"""``stop.json``: the request to stop a run or a sweep, and when it expires.

That is by a clock that nobody can set, as far as writer and reader share it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mcp_server.record.run_directory import Facts, RunDir, boot_id, now, write_json

LAUNCHED_AGAIN = "launched again with the same key"


def put_stop_request(directory: RunDir, request: Mapping[str, Any] | None) -> None:
    """Write ``stop.json``, or remove it."""
    if request is None:
        directory.stop.unlink(missing_ok=True)
    else:
        write_json(directory.stop, dict(request))


def forbid_launch(directory: RunDir, reason: str) -> None:
    """Leave a stop request for a supervisor that starts late: it does not start its command."""
    write_json(directory.stop, {"by": "launch_run", "reason": reason, "at": now()})


def expiry(within_s: float) -> Facts:
    """Return the fields of a request that expires in ``within_s``: by the clock, and by the time since this boot."""
    fields: Facts = {"expires_at": time.time() + within_s}
    up_s = _up_s()
    return fields if up_s is None else {**fields, "expires_up_s": up_s + within_s, "boot_id": boot_id()}


def has_expired(request: Facts) -> bool:
    """Return whether a request has expired. One without such fields, as of former versions, never does.

    The clock decides only where the time since the boot cannot: on another host, or after a restart of this one.
    """
    up_s, due_up_s, due_s = _up_s(), _number(request.get("expires_up_s")), _number(request.get("expires_at"))
    if up_s is not None and due_up_s is not None and request.get("boot_id") == boot_id():
        return up_s > due_up_s
    return due_s is not None and time.time() > due_s


def _up_s() -> float | None:
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only
    return None if clock is None else time.clock_gettime(clock)


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
