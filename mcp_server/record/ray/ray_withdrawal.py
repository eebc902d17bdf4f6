"""Takes a job that waits for resources back from Ray, whose Jobs API cannot: a small job on the head does it.

Ray 2.60 answers a stop of such a job with "stopped", leaves it PENDING, and refuses to delete it: an autoscaler goes on
to bring up machines for it. The job is an actor that has not begun, though, and every driver may kill an actor by its
name. Ray then says FAILED, and that the actor never ran. Blocks. Use a thread.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Collection
from uuid import uuid4

from mcp_server.record.ray.ray_head import RayHead
from mcp_server.record.ray.ray_job import MARK

_WITHIN_S = 30.0  # 3.3 s on an idle head of two cores
_POLL_S = 0.2
_GATHER_S = 0.3  # the cells of a sweep are stopped eight at a time
# The names are Ray's: ray/dashboard/modules/job/common.py.
_KILL = """\
import contextlib, sys, ray
ray.init(log_to_driver=False)
for job_id in sys.argv[1:]:
    with contextlib.suppress(ValueError):  # it has begun and ended
        actor = ray.get_actor("_ray_internal_job_actor_" + job_id, namespace="SUPERVISOR_ACTOR_RAY_NAMESPACE")
        ray.kill(actor)
"""
# The parent of an entrypoint's shell is a Python of Ray, whatever PATH says.
_ENTRYPOINT = """\
lib=$(sed -n 's|.* \\(/.*\\)/ray/_raylet[^/]*\\.so$|\\1|p' /proc/$PPID/maps | head -n 1)
PYTHONPATH=$lib exec "$(readlink /proc/$PPID/exe)" -c {program} {job_ids}
"""


def withdraw(head: RayHead, job_ids: Collection[str]) -> bool:
    """Take jobs back that were PENDING just now, and return whether Ray was told so; it says FAILED a moment later.

    The job that does it stays in Ray's list, as SUCCEEDED.
    """
    helper, mark = f"{min(job_ids)}-withdraw-{uuid4().hex[:8]}", uuid4().hex
    entrypoint = _ENTRYPOINT.format(program=shlex.quote(_KILL), job_ids=shlex.join(sorted(job_ids)))
    head.submit({"submission_id": helper, "entrypoint": entrypoint, "metadata": {MARK: mark}})
    until_s = time.monotonic() + _WITHIN_S
    while (job := head.find(helper, mark)) is not None and not job.ended:
        if time.monotonic() > until_s:
            head.stop(helper, mark)
            return False
        time.sleep(_POLL_S)
    return job is not None and job.status == "SUCCEEDED"


class Withdrawals:
    """The withdrawals of this process from one head: one at a time, as each is a program that the head starts.

    Those that are asked for meanwhile wait, and are one: 20 at once would be 40 processes on the head.
    """

    def __init__(self, head: RayHead) -> None:
        self._head, self._waiting = head, set[str]()
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def withdraw(self, job_id: str) -> bool:
        """Take a job back, as ``withdraw``. True also where another's withdrawal took it along, perhaps in vain."""
        with self._lock:
            self._waiting.add(job_id)
        with self._turn:
            time.sleep(_GATHER_S)
            with self._lock:
                job_ids, self._waiting = self._waiting, set[str]()
            if job_id in job_ids:
                return withdraw(self._head, job_ids)
            with self._lock:
                self._waiting |= job_ids
            return True
