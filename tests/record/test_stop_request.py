"""A request expires after its time, whatever somebody sets the clock to."""

import time
from typing import Any

import pytest

from mcp_server.record import run_directory as module
from mcp_server.record.run_directory import expiry, has_expired


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 7200.0])
def test_a_request_counts_the_time_since_the_boot(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    request, spent, up_s = expiry(60), expiry(-1), module._up_s()
    assert up_s is not None
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + jump_s)
    assert not has_expired(request)
    assert has_expired(spent)
    monkeypatch.setattr(module, "_up_s", lambda: up_s + 61)
    assert has_expired(request)


@pytest.mark.parametrize(
    ("request_", "expired"),
    [
        ({}, False),
        ({"expires_at": 0}, True),
        ({"expires_at": 2e10}, False),
        ({"expires_at": 0, "expires_up_s": 1e12, "boot_id": "another"}, True),
        ({"expires_at": 2e10, "expires_up_s": 0, "boot_id": "another"}, False),
        ({"expires_at": "soon", "expires_up_s": True}, False),
    ],
)
def test_the_clock_decides_elsewhere_and_after_a_restart(request_: dict[str, Any], expired: bool) -> None:
    assert has_expired(request_) is expired
