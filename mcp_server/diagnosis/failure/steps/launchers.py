"""Says a setting of a cluster or container in the words of what started this run. Pure.

Rows name one launcher's way, mostly docker's. The log shows which it is: Kubernetes, Apptainer, Slurm, Ray Tune.
"""

from __future__ import annotations

from typing import NamedTuple

from mcp_server.diagnosis.failure.steps.row import ADVICE_CHARS, NextStep, compile_once

_KUBERNETES = (
    r"\bkubectl\b|KUBERNETES_|(?m:^\s*(?:Pod|Namespace):)|\bkubelet\b|/var/run/secrets/kubernetes|\bpod/[\w-]+"
)
_APPTAINER = r"(?i)\b(?:apptainer|singularity)\b"
_SLURM = r"\bSLURM_|\bs(?:run|batch)\b|slurmstepd"
_DOCKER = r"\bdocker (?:run|compose|exec)\b"
_TUNE = r"tune_controller\.py|tuner\.fit\(|\btune\.(?:run|Tuner)\b|Trial \w+_\d{5}|TuneError"
_OF_DOCKER = "enlarge /dev/shm (docker --shm-size=16g or --ipc=host), or lower num_workers"
_OF_NCCL = "raise it (docker --shm-size or --ipc=host), or set NCCL_SHM_DISABLE=1 in env"
_VOLUME = "mount an emptyDir with medium: Memory at /dev/shm"


class _Wording(NamedTuple):
    """Words of advice, and what to say instead under the launcher that ``shown`` finds in the log."""

    words: str
    instead: str
    shown: str
    unless: str = ""  # what rules it out: another launcher around it, or the setting itself


_WORDINGS = (
    _Wording(_OF_DOCKER, f"{_VOLUME} of the pod, or lower num_workers", _KUBERNETES),
    _Wording(_OF_DOCKER, "lower num_workers or prefetch_factor, or ask for more (--mem)", _SLURM, _DOCKER),
    _Wording(_OF_NCCL, f"{_VOLUME} of the pod, or set NCCL_SHM_DISABLE=1 in env", _KUBERNETES),
    _Wording(_OF_NCCL, "bind the host's, or set NCCL_SHM_DISABLE=1 in env", _APPTAINER),
    _Wording("or a larger /dev/shm", "or an emptyDir with medium: Memory at /dev/shm", _KUBERNETES),
    _Wording("fewer at once (num_cpus= or memory= per actor), or more memory",
             "fewer trials at once: TuneConfig(max_concurrent_trials=), or with_resources(fn, {\"memory\": bytes})",
             _TUNE),
    _Wording("fewer of them at once (num_cpus= or memory= in @ray.remote), or less in each",
             "fewer trials at once (max_concurrent_trials, or tune.with_resources memory)", _TUNE),
    _Wording("ask for more (--mem), or", "raise resources.limits.memory, or", _KUBERNETES),
    _Wording("memory limit was reached: raise it, or", "memory limit was reached: raise resources.limits.memory, or",
             _KUBERNETES),
    _Wording("memory limit was reached: raise it, or", "memory limit was reached: raise docker's --memory, or",
             _DOCKER, _KUBERNETES),
    _Wording("fewer workers or environments, a smaller cache, or more memory",
             "fewer workers or environments, or raise resources.limits.memory", _KUBERNETES),
    _Wording("fewer workers or environments, a smaller cache, or more memory",
             "fewer workers or environments, or ask Slurm for more (--mem)", _SLURM, _KUBERNETES),
    _Wording("(NVIDIA_DRIVER_CAPABILITIES=all, libegl1)", "(apptainer --nv, libegl1 in the image)", _APPTAINER,
             r"(?:^|\s)--nv\b"),
    _Wording("(NVIDIA_DRIVER_CAPABILITIES=all, libegl1)", "(libegl1 in the image, --nv gives the rest)", _APPTAINER),
)  # fmt: skip


def word_for_launcher(step: NextStep, log: str) -> NextStep:
    """Return ``step`` with the settings of the launcher that ``log`` shows in place of another one's."""
    for one in _WORDINGS:
        if one.words not in step.advice or not compile_once(one.shown).search(log):
            continue
        if one.unless and compile_once(one.unless).search(log):
            continue
        advice = step.advice.replace(one.words, one.instead)
        if len(advice) <= ADVICE_CHARS:
            return step._replace(advice=advice)
    return step
