"""The Xid table: placement and the health report draw the same conclusion from every Xid."""

from __future__ import annotations

from itertools import product

import pytest

from mcp_server.gpus.health import assess_gpus, find_faults
from mcp_server.gpus.placement import find_obstacles
from mcp_server.gpus.request import Requirements
from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.gpus.xid import describe_xid, load_xids, worst_xid
from tests.support.rows import for_each

RECOVERIES = ("none", "reset", "reboot")


def conclude(texts: list[str]) -> str:
    """Return the strongest recovery that the texts ask for."""
    words = {"reboot": ("needs a reboot", "should reboot"), "reset": ("needs a reset", "should reset")}
    return next((name for name, some in words.items() if any(word in text for word in some for text in texts)), "none")


@for_each(product([*sorted(load_xids()), 997], [None, "none", "reset", "reboot", "drain_p2p", "drain_reset"]))
def test_placement_and_health_agree_on_every_xid(number: int, action: str | None) -> None:
    bad = Gpu(0, "GPU-0", xids=(number,), recovery_action=action)
    obstacles = find_obstacles(bad, None, Requirements())
    health = assess_gpus(Snapshot(gpus=(bad,)), {})
    assert conclude(list(health.reasons)) == conclude(obstacles)
    assert (health.free == ()) == bool(obstacles)
    xid_lines = [fault for fault in find_faults(bad) if fault.startswith("Xid ")]
    assert conclude(xid_lines) in ("none", conclude(obstacles)), "the line of the Xid asks for nothing else"
    if action is None:
        recovery = describe_xid(number).recovery
        assert conclude(obstacles) == conclude(xid_lines) == recovery
        assert all(f"(Xid {number})" in obstacle for obstacle in obstacles)


@pytest.mark.parametrize("number", [74, 110, 140, 143])
def test_a_gpu_needs_a_reset_after_faults_of_links_security_memory_and_start(number: int) -> None:
    bad = Gpu(3, "GPU-3", xids=(number,))
    remedy = f"needs a reset (Xid {number}): a person should run: sudo nvidia-smi -i 3 --gpu-reset"
    assert find_obstacles(bad, None, Requirements()) == [remedy]
    meaning = load_xids()[number].meaning
    assert find_faults(bad) == [remedy, f"Xid {number} ({meaning}): a fault of the GPU; a person should reset it"]


def test_only_a_fault_needs_a_recovery() -> None:
    assert all(xid.recovery in RECOVERIES for xid in load_xids().values())
    assert all(xid.recovery == "none" for xid in load_xids().values() if xid.cause != "fault")


def test_a_reboot_comes_before_a_reset_and_the_first_of_several_counts() -> None:
    assert worst_xid([13, 48, 79, 64]) == 79
    assert worst_xid([31, 64, 48]) == 64
    assert worst_xid([13, 94, 997]) is None
