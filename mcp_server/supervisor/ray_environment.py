"""What Ray gives to a job by its environment, and the command must get as well. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# With RAY_…: the cluster's address, and the job that a driver belongs to.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
# Set by an environment of Ray that has packages of its own.
_OF_RUNTIME_ENV = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH")


def select_job_environment(backend: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ``, that of a job, which the command gets besides what the launcher hands over.

    ``options`` are the ``backend_options`` of the run. Nothing for a run that is not a job of Ray.
    """
    if backend != "ray":
        return {}
    runtime_env = options.get("runtime_env")
    names = set(_DEVICES)
    if isinstance(runtime_env, Mapping):
        names |= set(_OF_RUNTIME_ENV)
        variables = runtime_env.get("env_vars")
        names |= set(map(str, variables)) if isinstance(variables, Mapping) else set()
    return {name: value for name, value in environ.items() if name in names or name.startswith("RAY_")}
