"""Kinds of failure: whether and how to retry each, and advice for the agent. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

# Proposed next steps: none, retry unchanged, retry with less, retry later, on another port, on another GPU.
ACTIONS = ("stop", "retry", "retry_changed", "retry_later", "retry_other_port", "retry_other_gpu")

ADVICE_CHARS = 160


class KindPolicy(NamedTuple):
    """Defaults for one kind. The proving line may refine them."""

    retryable: bool
    action: str
    advice: str


# fmt: off
KINDS: dict[str, KindPolicy] = {
    "oom_gpu": KindPolicy(
        True, "retry", "GPU memory ran out: look for other users of the GPU, then halve the batch size or num_envs."),
    "oom_host": KindPolicy(
        True, "retry_changed", "Host memory ran out: fewer workers or environments, a smaller cache, or more memory."),
    "cuda_error": KindPolicy(
        True, "retry", "CUDA failed: retry once, then on another GPU; CUDA_LAUNCH_BLOCKING=1 shows the call."),
    "nccl_error": KindPolicy(
        True, "retry", "Ranks lost each other: retry as is; if it recurs, NCCL_DEBUG=INFO shows which rank."),
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
        True, "retry_later", "The network failed: retry later, or fetch the files first and set HF_HUB_OFFLINE=1."),
    "auth_error": KindPolicy(
        False, "stop", "Access was refused: name a valid token in launch_run's secrets, or ask for access."),
    "disk_full": KindPolicy(
        False, "stop", "The disk is full: write elsewhere or ask a person to free space, then launch_run again."),
    "port_conflict": KindPolicy(
        True, "retry_other_port", "The port is taken: launch_run again with another MASTER_PORT or rendezvous port."),
    "ray_error": KindPolicy(
        True, "retry", "Ray lost a process: retry as is; the raylet's logs in Ray's temp directory show why."),
    "divergence": KindPolicy(
        False, "stop", "Training diverged: lower the learning rate or clip gradients, and resume from before it."),
    "timeout": KindPolicy(
        False, "stop", "The time limit was reached: raise it, or resume from the last checkpoint."),
    "other": KindPolicy(
        True, "retry", "The cause is not known: read the end of the log with read_log before trying again."),
}

NO_FIRST_STEP = "No training step came in time: see what it did with read_log, or raise first_step_timeout_s."
LOST_SESSION = "The ssh connection broke, and the training may still run on the far side: look there before launch_run."

# Advice for lines that say more than their kind. First match wins; its groups fill the placeholders.
_DETAILS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (kind, re.compile(pattern), advice)
    for kind, pattern, advice in (
        ("import_error", r"No module named '?([\w.]{1,60})",
         "Install the package that provides {0} into this run's environment, then launch_run again."),
        ("import_error", r"cannot import name '([\w.]{1,40})' from '([\w.]{1,40})'",
         "{1} has no {0}: its version does not fit; align the packages, then launch_run again."),
        ("import_error", r"([\w.+-]{1,60}\.so[\w.]{0,20}): cannot open shared object",
         "{0} is not found: install it or set LD_LIBRARY_PATH, then launch_run again."),
        ("import_error", r"undefined symbol: \S",
         "A compiled package does not match the others, mostly PyTorch: reinstall it for the installed version."),
        ("import_error", r"[Ff]lash_?[Aa]ttn|FlashAttention",
         "Install flash-attn for this PyTorch, or choose attn_implementation=sdpa."),
        ("import_error", r"numpy\.\w+ size changed|NumPy 1\.x|_ARRAY_API",
         "A compiled package needs another NumPy: align the versions (often numpy<2)."),
        ("port_conflict", r"does not match persisted value",
         "Another Ray has this port or directory: launch_run again, with --port=$RAY_PORT --temp-dir=$RAY_TMPDIR."),
        ("port_conflict", r"(?:port:? ?`?|\]:|\d:)(\d{2,5})\b",
         "Port {0} is taken: launch_run again with another MASTER_PORT or --main_process_port."),
        ("ray_error", r"(?:connect to|find any running|waiting for) .{0,10}(?:Ray|GCS)\b|not (?:found|reachable)",
         "No Ray answers there: check RAY_ADDRESS, `ray status` on the head, its IP and port, and the firewall."),
        ("data_error", r"File exists: '?([^']{1,80})",
         "{0} exists already: choose another output directory or allow overwriting."),
        ("data_error", r"Permission denied: '?([^']{1,80})",
         "No permission for {0}: choose another path or fix its rights."),
        ("data_error", r"No such file or directory: '?([^']{1,80})",
         "{0} does not exist on this host: correct the path or fetch the data first."),
        ("config_error", r"unrecognized arguments: (.{1,60})",
         "The program does not know {0}: see its --help, then launch_run again."),
        ("config_error", r"arguments are required: (.{1,60})",
         "Give the missing arguments {0}, then launch_run again."),
        ("config_error", r"[Kk]ey '([^']{1,40})' is not in struct",
         "The configuration has no key {0}: correct its name, or add it with +{0}=..."),
        ("config_error", r"\bnamespace\b|already (?:taken|exists)",
         "Another run has this Ray namespace: set another one (RLINF_NAMESPACE), or leave it to the environment."),
        ("config_error", r"^(?:mismatched|extraneous) input|^no viable alternative|NoViableAlt|OverrideParseException",
         "Hydra cannot read an override: quote its value, e.g. 'key=\"a=b\"'; HYDRA_FULL_ERROR=1 shows more."),
        ("config_error", r"Error in call to target|InstantiationException",
         "Hydra cannot build an object of the configuration: HYDRA_FULL_ERROR=1 in env shows why."),
        ("python_error", r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-",
         "The program takes GPUs by index: launch_run with env CUDA_VISIBLE_DEVICES={{gpu_indices}}."),
        ("other", r"(?i)\btool.{0,100}tim(?:e[ -]?out|ed)",
         "A tool did not answer in time: check its server, raise its timeout, or run fewer rollouts at once."),
        ("other", r"(?i)(?:allocat|acquir|reserv)\w* (?:\w+ )*env|env\w* ?(?:pool |worker )?allocation",
         "No environment was free: check its server or containers, enlarge the pool, or run fewer rollouts at once."),
        ("config_error", r"KeyError: '([^']{1,40})'", "The configuration lacks {0}: add it, then launch_run again."),
        ("auth_error", r"WANDB|wandb|api_key not configured",
         "Name WANDB_API_KEY in launch_run's secrets, or set WANDB_MODE=offline."),
        ("auth_error", r"[Gg]ated|restricted|huggingface|Hugging",
         "Accept the model's licence with this account and name HF_TOKEN in launch_run's secrets."),
        ("disk_full", r"[Qq]uota",
         "The quota is used up: write elsewhere, or ask a person to free space, then launch_run again."),
        ("disk_full", r"torch_\d+|/dev/shm",
         "Shared memory is full: fewer DataLoader workers or a larger /dev/shm, then launch_run again."),
        ("oom_host", r"DataLoader worker",
         "A DataLoader worker was killed, most likely for host memory: fewer workers, less prefetching."),
        ("segfault", r"[Bb]us error|SIGBUS",
         "A bus error, mostly of a full /dev/shm: fewer DataLoader workers or a larger /dev/shm."),
        ("killed", r"(?i)time limit|walltime|RUNLIMIT|timed.out",
         "The scheduler's time limit was reached: ask for more time and resume from the last checkpoint."),
        ("killed", r"KeyboardInterrupt|SIGINT|got signal: 2\b|\^C|nterrupted by",
         "A person stopped the run: ask before starting it again."),
        ("killed", r"(?i)preempt|requeue|node fail|evicted",
         "The scheduler took the machine away: start again from the last checkpoint."),
        ("killed", r"CANCELLED", "The job was cancelled: ask before starting it again."),
        ("cuda_error", r"(?i)driver.{0,60}(?:insufficient|too old|mismatch)|no kernel image|below version",
         "The driver or the GPU does not fit this CUDA build: install one that fits, or use another host."),
        ("cuda_error", r"device-side assert",
         "An index is out of range in a kernel: check labels and vocabulary; CUDA_LAUNCH_BLOCKING=1 shows the call."),
    )
)
# fmt: on

# The GPU itself has a fault: the same command may succeed on another GPU.
_FAULTY_GPU = re.compile(
    r"(?i)\bECC\b|\bXid\b|fallen off the bus|CUDA-capable device|devices? .{0,20}(?:busy|unavailable)|NVLink error"
)

_NO_RAY = re.compile(r"(?:connect to|find any running) .{0,10}Ray\b|connect to GCS|not (?:found|reachable)")


def advice_for(kind: str, line: str) -> str:
    """Return one sentence of advice, at most ADVICE_CHARS, with names from the line."""
    for owner, pattern, advice in _DETAILS:
        match = pattern.search(line) if owner == kind else None
        if match:
            advice_with_names = advice.format(*(part.strip() for part in match.groups()))
            return advice_with_names if len(advice_with_names) <= ADVICE_CHARS else KINDS[kind].advice
    return KINDS[kind].advice


def action_for(kind: str, line: str, *, retryable: bool) -> str:
    """Return the proposed next step, one of ACTIONS."""
    if not retryable:
        return "stop"
    if kind == "cuda_error" and _FAULTY_GPU.search(line):
        return "retry_other_gpu"
    if kind == "ray_error" and _NO_RAY.search(line):
        return "retry_later"
    return KINDS[kind].action if KINDS[kind].retryable else "retry"
