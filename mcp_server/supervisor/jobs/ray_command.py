"""What is different about a run that is a job of Ray: its environment, or where its command really runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.record.ray.ray_job import FAR_SIDE, is_mirrored, read_proof
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.system.files import find_archive

# With RAY_…: the cluster's address, and the job that a driver belongs to.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
# Set by an environment of Ray that has packages of its own.
_OF_RUNTIME_ENV = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH")


def select_job_environment(backend: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ``, that of a job, which the command gets besides what the launcher hands over.

    ``options`` are the ``backend_options`` of the run. Nothing for a run that is not a job of Ray.
    """
    if backend != "ray" or not options.get("shared_disk"):
        return {}
    runtime_env = options.get("runtime_env")
    names = set(_DEVICES)
    if isinstance(runtime_env, Mapping):
        names |= set(_OF_RUNTIME_ENV)
        variables = runtime_env.get("env_vars")
        names |= set(map(str, variables)) if isinstance(variables, Mapping) else set()
    return {name: value for name, value in environ.items() if name in names or name.startswith("RAY_")}


def make_mirror_command(rundir: RunDir, number: int, argv: Sequence[str]) -> list[str]:
    """Return the program that has Ray run ``argv``, a script of bash and its arguments, as attempt ``number``."""
    program = find_archive() or Path(__file__).resolve().parents[1]
    return [sys.executable, "-I", "-S", "-X", "utf8", str(program), "--ray-job", str(rundir.path), str(number), *argv]


def find_unproven_job(rundir: RunDir, spec: RunSpec, number: int) -> str:
    """Return the head whose job may go on, as nobody has heard of its end. Empty for every other run."""
    if not is_mirrored(spec) or read_proof(rundir, number) is not None:
        return ""
    return f"{FAR_SIDE}{spec.backend_options.get('address')}"
