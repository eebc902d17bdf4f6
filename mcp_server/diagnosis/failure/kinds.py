"""Kinds of failure: whether and how to retry each by default, and advice for the agent. Pure."""

from __future__ import annotations

from typing import NamedTuple

# Proposed next steps: none, retry unchanged, retry with less, retry later, on another port, on another GPU.
ACTIONS = ("stop", "retry", "retry_changed", "retry_later", "retry_other_port", "retry_other_gpu")

# Native code ends by these; by any other signal, a process was ended from outside.
CRASH_SIGNALS = frozenset({"SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGTRAP", "SIGSYS"})


class KindPolicy(NamedTuple):
    """Defaults for one kind. The proving line may refine them: see next_steps.py and steps/."""

    retryable: bool
    action: str
    advice: str


# fmt: off
KINDS: dict[str, KindPolicy] = {
    "oom_gpu": KindPolicy(
        True, "retry",
        "GPU memory ran out: retry once if others use the GPU (gpu_check), else halve the batch size or num_envs."),
    "oom_host": KindPolicy(
        True, "retry_changed", "Host memory ran out: fewer workers or environments, a smaller cache, or more memory."),
    "cuda_error": KindPolicy(
        True, "retry", "CUDA failed: retry once, then on another GPU; CUDA_LAUNCH_BLOCKING=1 shows the call."),
    "nccl_error": KindPolicy(
        True, "retry", "Ranks lost each other: retry as is; if it recurs, the rank whose log ends first is the cause."),
    "segfault": KindPolicy(
        True, "retry", "Native code crashed: retry once; if it recurs, PYTHONFAULTHANDLER=1 shows where."),
    "killed": KindPolicy(
        True, "retry", "The run was killed by another process: resume it from its last checkpoint."),
    "stall": KindPolicy(
        True, "retry", "Progress stopped: retry from the last checkpoint; py-spy dump shows where it hangs."),
    "python_error": KindPolicy(
        False, "stop", "The program has an error: correct it at the last frame of the context, then launch_run again."),
    "config_error": KindPolicy(
        False, "stop", "The arguments or the configuration are wrong: correct them, then launch_run again."),
    "import_error": KindPolicy(
        False, "stop", "The Python environment does not fit: install or align the packages, then launch_run again."),
    "data_error": KindPolicy(
        False, "stop", "A file is missing, broken or unexpected: correct the path or the file, then launch_run again."),
    "network_error": KindPolicy(
        True, "retry_later",
        "The network failed: retry later; if it recurs, check the address, the firewall and the proxy."),
    "auth_error": KindPolicy(
        False, "stop", "Access was refused: name a valid token in launch_run's secrets, or ask for access."),
    "disk_full": KindPolicy(
        False, "stop", "The disk is full: write elsewhere or ask a person to free space, then launch_run again."),
    "port_conflict": KindPolicy(
        True, "retry_other_port",
        "The port is taken: launch_run again with another (a server's --port, or MASTER_PORT), or end what holds it."),
    "ray_error": KindPolicy(
        True, "retry", "Ray lost a process: retry as is; the raylet's logs in Ray's temp directory show why."),
    "divergence": KindPolicy(
        False, "stop", "Training diverged: lower the learning rate or clip gradients, and resume from before it."),
    "timeout": KindPolicy(
        False, "stop", "The time limit was reached: raise it, or resume from the last checkpoint."),
    "other": KindPolicy(
        True, "retry", "It is of no known kind: read its line and the end of the log (read_log) before a retry."),
}

NO_FIRST_STEP = "No training step came in time: see what it did with read_log, or raise first_step_timeout_s."
NOT_FOUND = "Code 127: a program of the command was not found. Check its name with `command -v`, then launch_run again."
NOT_EXECUTABLE = "Code 126: a file of the command cannot be executed: chmod +x it, or start it by python or bash."
IMBALANCE = "A GPU worked far less than the run's others: gpu_check(run_id) names it; else use fewer environments."
UNSEEN_END = "Nobody saw how its program ended: look at what it wrote (results, checkpoints) before launch_run."
LOST_SESSION = "The connection to it broke, and the training may still run there: look there before launch_run."
