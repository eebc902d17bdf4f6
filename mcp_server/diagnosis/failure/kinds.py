"""Kinds of failure. Pure."""

from __future__ import annotations

KINDS = (
    *("oom_gpu", "oom_host", "cuda_error", "nccl_error", "segfault", "killed", "stall", "python_error", "config_error"),
    *("import_error", "data_error", "network_error", "auth_error", "disk_full", "port_conflict", "ray_error"),
    *("divergence", "timeout", "other"),
)

# Proposed next steps: none, retry unchanged, retry with less, retry later, on another port, on another GPU.
ACTIONS = ("stop", "retry", "retry_changed", "retry_later", "retry_other_port", "retry_other_gpu")

# The program's own errors; those that say nothing of the machine; those that a vaguer line does not replace.
OF_PROGRAM = frozenset({"python_error", "config_error", "data_error"})
VAGUE = frozenset({"python_error", "other"})
HARD = frozenset({"oom_gpu", "oom_host", "cuda_error", "disk_full", "port_conflict"})

# The signals 1 to 15, by their numbers.
SIGNALS = ("", *"HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM".split())  # noqa: SIM905

# Native code ends by these; by any other signal, a process was ended from outside.
CRASH_SIGNALS = frozenset({"SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGTRAP", "SIGSYS"})
