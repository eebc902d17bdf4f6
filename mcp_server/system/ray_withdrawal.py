"""Takes a job that waits for resources back from Ray, whose Jobs API cannot: a small job on the head does it.

Ray 2.60 answers a stop of such a job with "stopped", leaves it PENDING, and refuses to delete it: an autoscaler goes on
to bring up machines for it. The job is an actor that has not begun, though, and every driver may kill an actor by its
name. Ray then says FAILED, and that the actor never ran. Blocks. Use a thread.
"""

from __future__ import annotations

import shlex
import time
from uuid import uuid4

from mcp_server.system.ray_jobs import MARK, RayHead

_WITHIN_S = 30.0  # 3.3 s on an idle head of two cores
_POLL_S = 0.2
# The names are Ray's: ray/dashboard/modules/job/common.py.
_KILL = """\
import sys, ray
ray.init(log_to_driver=False)
ray.kill(ray.get_actor("_ray_internal_job_actor_" + sys.argv[1], namespace="SUPERVISOR_ACTOR_RAY_NAMESPACE"))
"""
# The parent of an entrypoint's shell is a Python of Ray, whatever PATH says.
_ENTRYPOINT = """\
lib=$(sed -n 's|.* \\(/.*\\)/ray/_raylet[^/]*\\.so$|\\1|p' /proc/$PPID/maps | head -n 1)
PYTHONPATH=$lib exec "$(readlink /proc/$PPID/exe)" -c {program} {job_id}
"""


def withdraw(head: RayHead, job_id: str) -> None:
    """Take a job back that was PENDING just now. The job that does it stays in Ray's list, as SUCCEEDED.

    Whether it worked is what the head says of the job afterwards.

    Raises:
        HostUnreachable: the head does not answer.
        RayRefused: it answers with an error.
    """
    helper, helper_mark = f"{job_id}-withdraw-{uuid4().hex[:8]}", uuid4().hex
    entrypoint = _ENTRYPOINT.format(program=shlex.quote(_KILL), job_id=shlex.quote(job_id))
    head.submit(
        {
            "submission_id": helper,
            "entrypoint": entrypoint,
            "metadata": {"name": f"takes back {job_id}", MARK: helper_mark},
        }
    )
    until_s = time.monotonic() + _WITHIN_S
    while (job := head.find(helper, helper_mark)) is not None and not job.ended:
        if time.monotonic() > until_s:
            head.stop(helper, helper_mark)
            break
        time.sleep(_POLL_S)
