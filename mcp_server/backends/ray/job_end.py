"""The end of a job that Ray was asked to stop: awaited, and brought about where the job waits for resources."""

from __future__ import annotations

import contextlib
import functools
import time

import anyio

from mcp_server.errors import HostUnreachable
from mcp_server.record.ray.ray_head import RayHead, RayRefused
from mcp_server.record.ray.ray_withdrawal import Withdrawals
from mcp_server.threads import run_in_thread

_STOPPED_WITHIN_S = 15.0  # Ray terminates a job, and kills it 3 s later
_WAITS_S = 2.0  # a job that is still PENDING then waits for resources
_POLL_S = 0.1


async def end_job(head: RayHead, job_id: str, mark: str) -> bool:
    """Return whether a job that was asked to stop is over, or unknown to the head. One that waits is taken back."""
    if await _await_end(head, job_id, mark, waits_s=_WAITS_S):
        return True
    is_near = await run_in_thread(_withdraw, head, job_id, mark)
    return is_near and await _await_end(head, job_id, mark, waits_s=_STOPPED_WITHIN_S)


def describe_pending(head: RayHead, job_id: str, mark: str, then: str) -> str:
    """Return what Ray keeps of a job that it was asked to stop while it waits. ``then``: what becomes of it."""
    job = head.find(job_id, mark)
    if job is None or job.status != "PENDING":
        return ""
    return f"Ray did not take back the job, which waits: it stays PENDING there, and {then}."


async def _await_end(head: RayHead, job_id: str, mark: str, *, waits_s: float) -> bool:
    """Return whether the job is over within 15 s. One that waits for longer than ``waits_s`` does not end."""
    begun_s = time.monotonic()
    with anyio.move_on_after(_STOPPED_WITHIN_S):
        while True:
            job = await run_in_thread(head.find, job_id, mark)
            if job is None or job.ended:
                return True
            if job.status == "PENDING" and time.monotonic() - begun_s > waits_s:
                return False
            await anyio.sleep(_POLL_S)
    return False


def _withdraw(head: RayHead, job_id: str, mark: str) -> bool:
    """Take back a job that waits, and return whether its end is near."""
    job = head.find(job_id, mark)
    if job is None or job.status != "PENDING":
        return False
    with contextlib.suppress(HostUnreachable, RayRefused):
        return _withdrawals_of(head.address).withdraw(job_id)
    return False


@functools.cache
def _withdrawals_of(address: str) -> Withdrawals:
    return Withdrawals(RayHead(address))
