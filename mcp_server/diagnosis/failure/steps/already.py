"""Leaves out of advice what the log shows as set already: nobody needs it twice. Pure.

A log shows a setting where it assigns it: a variable at the start of a line, a keyword, a row of a table of arguments,
an option. A sentence that only recommends it shows nothing.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from mcp_server.diagnosis.failure.steps.row import ADVICE_CHARS, NextStep, compile_once
from mcp_server.text.regex import compile_lazily

# What advice asks to set, e.g. NCCL_P2P_DISABLE=1 or trust_remote_code=True.
_ASSIGNED = compile_lazily(r"\b([A-Za-z]\w{3,60})=(True|true|False|false|None|none|[\w.-]{1,40})(?<![.-])")
_SAME = {"True": "(?:[Tt]rue|1)", "true": "(?:[Tt]rue|1)", "False": "(?:[Ff]alse|0)", "false": "(?:[Ff]alse|0)"}
_ON = "(?:[Tt]rue|1|yes|on)"
_LORA = (
    r"(?i)\bLoraConfig\(|\blora_(?:r|rank|alpha)['\"]? ?[:=] ?[1-9]"
    r"|\bPeftModel\w*\(|--use_peft\b|trainable params: "
)
_IPC_HOST = r"(?m)\A[^\n]*--ipc[= ]host\b|^\+ docker [^\n]*--ipc[= ]host\b"
_COMMAND = r"^(?:\+ |\$ |[^\n]{0,200}\b(?:python[\d.]*|torchrun|accelerate launch|deepspeed|vllm serve|srun) )"
_POSITIVE = r"(?:[1-9]|0?\.0*[1-9])"


class Part(NamedTuple):
    """Words of advice, and what to say where the log shows ``name`` with ``value``: nothing, or the step after it.

    ``name`` and ``value`` are patterns. ``log``: another pattern that shows it.
    """

    words: str
    instead: str
    name: str = ""
    value: str = _ON
    log: str = ""


_PARTS = (
    Part("lower the learning rate or clip gradients", "lower the learning rate or lengthen its warm-up",
         r"(?:clip[_-]?grad\w*|grad(?:ient)?[_-]?clip\w*|max[_-]?grad[_-]?norm|clip[_-]?norm)", _POSITIVE),
    Part(", or add --gradient_checkpointing", " or --resolution", r"gradient[_-]checkpointing",
         log=r"--gradient_checkpointing\b"),
    Part(", or set activation_checkpoint.mode=full", ", or shard over more GPUs", r"(?:activation_checkpoint\.)?mode",
         "full"),
    Part("or turn on --recompute-activations or more", "or use more", r"recompute[_-]\w+", r"(?:full|selective|True)",
         r"--recompute-activations|--recompute-granularity"),
    Part("use a higher ZeRO stage or offload", "offload (offload_optimizer, offload_param)",
         r"(?:zero_)?stage", "3"),
    Part("; precision=bf16-mixed saves more", "; activation checkpointing saves more", "precision",
         r"(?:bf16|16)(?:-mixed|-true)?"),
    Part("; where others use the GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false", ", or shard over more GPUs",
         "XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    Part("; where others use the GPU, TF_FORCE_GPU_ALLOW_GROWTH=true in env", ", or mixed_float16",
         "TF_FORCE_GPU_ALLOW_GROWTH"),
    Part("or use fewer workers or environments", "or load less at once", r"(?:dataloader_)?num[_-]workers", "0"),
    Part("Raise the limit (ulimit -n 65536); with DataLoader workers, set_sharing_strategy('file_system') too",
         "ulimit -n was raised already: use set_sharing_strategy('file_system'), or fewer workers",
         log=r"(?m)^\W{0,4}ulimit -\w*n (?:\d{5,}|unlimited)"),
    Part("set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1, or raise ulimit -u",
         "raise ulimit -u (docker: --pids-limit), or start fewer processes", "OMP_NUM_THREADS", "1"),
    Part("if it recurs, NCCL_DEBUG=INFO shows which rank", "if it recurs, the NCCL lines show which rank",
         "NCCL_DEBUG", "(?:INFO|TRACE)", r" NCCL INFO "),
    Part("; if it recurs, NCCL_DEBUG=INFO shows the rank", "; the NCCL lines above show the rank",
         "NCCL_DEBUG", "(?:INFO|TRACE)", r" NCCL INFO "),
    Part("NCCL_DEBUG=INFO shows which", "the NCCL lines show which", "NCCL_DEBUG", "(?:INFO|TRACE)", r" NCCL INFO "),
    Part("; CUDA_LAUNCH_BLOCKING=1 shows the call", "; the traceback shows the call", "CUDA_LAUNCH_BLOCKING", "1"),
    Part("; HYDRA_FULL_ERROR=1 shows more", "", "HYDRA_FULL_ERROR", "1"),
    Part("; HYDRA_FULL_ERROR=1 in env shows why", "; the exception above says why", "HYDRA_FULL_ERROR", "1"),
    Part("; if it recurs, PYTHONFAULTHANDLER=1 shows where", "; the stack in the log shows where",
         "PYTHONFAULTHANDLER", "1"),
    Part(", or set WANDB_MODE=offline", "", "WANDB_MODE", "offline"),
    Part(" and name HF_TOKEN in launch_run's secrets", " on its page (the token is there)", "HF_TOKEN", r"(?:hf_|\*|<)",
         r"Login successful|Token is valid|Token has not been saved|Currently logged in"),
    Part("name HF_TOKEN in launch_run's secrets and download", "download", "HF_TOKEN", r"(?:hf_|\*|<)",
         r"Login successful|Token is valid"),
    Part("(NVIDIA_DRIVER_CAPABILITIES=all, libegl1)", "(libegl1, and the right to read /dev/dri)",
         "NVIDIA_DRIVER_CAPABILITIES", "(?:all|.{0,40}graphics)"),
    Part("enlarge /dev/shm (docker --shm-size=16g or --ipc=host), or lower num_workers",
         "lower num_workers or prefetch_factor, or remount the host's /dev/shm larger", log=_IPC_HOST),
    Part("larger /dev/shm: raise it (docker --shm-size or --ipc=host), or set NCCL_SHM_DISABLE=1 in env",
         "larger /dev/shm: remount the host's larger, or set NCCL_SHM_DISABLE=1 in env", log=_IPC_HOST),
    Part(": find_unused_parameters=True in DistributedDataParallel, or let all outputs join the loss",
         " though find_unused_parameters is on: let each output and parameter join the loss, on every rank",
         "find_unused_parameters"),
    Part("ddp_find_unused_parameters=True in TrainingArguments (DDP: find_unused_parameters=True)",
         "that is on already, so let each output of forward join the loss on every rank",
         r"ddp_find_unused_parameters"),
    Part(
        "or shard or offload (ZeRO-3, FSDP)",
        "or use more GPUs (or offload_param)",
        r"(?:zero_)?stage",
        "3",
    ),
    Part(
        "change the path, NCCL_P2P_DISABLE=1 in env",
        "change the path (NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 in env)",
        "NCCL_P2P_DISABLE",
        "1",
    ),
    Part("LoRA or an 8-bit optimizer", "an 8-bit optimizer", "adapter", "q?lora", _LORA),
    Part("; LoRA saves more", "", "adapter", "q?lora", _LORA),
    Part("(8-bit optimizer, LoRA)", "(8-bit optimizer)", "adapter", "q?lora", _LORA),
    Part("; model.enable_input_require_grads()", "", log=r"enable_input_require_grads\(\)"),
)  # fmt: skip


def leave_out_settings(step: NextStep, log: str) -> NextStep | None:
    """Return ``step`` without what ``log`` shows as set already, or None where nothing else would be left."""
    advice = step.advice
    for part in _PARTS:
        if part.words in advice and _is_shown(part, log):
            changed = advice.replace(part.words, part.instead)
            advice = changed if len(changed) <= ADVICE_CHARS else advice
    for name, value in _ASSIGNED.findall(advice):
        if name in log and _assignment(re.escape(name), _SAME.get(value, re.escape(value))).search(log):
            return None
    return step._replace(advice=advice)


def _is_shown(part: Part, log: str) -> bool:
    if part.log and compile_once(part.log).search(log):
        return True
    return bool(part.name) and bool(_assignment(part.name, part.value).search(log))


@cache
def _assignment(name: str, value: str) -> re.Pattern[str]:
    """Return a pattern of the ways in which logs show ``name`` with ``value``."""
    end = rf"['\"]?{value}(?![\w])" if not value.startswith("(?:[1-9]") else rf"['\"]?{value}"
    return re.compile(
        rf"(?m){_COMMAND}[^\n]*?--{name}[= ]{end}"
        rf"|^(?:[\w-]{{1,60}}=\S{{0,200}} ){{0,8}}[\W_]{{0,6}}(?:export |set |env )?"
        rf"['\"]?{name}['\"]?"
        rf"(?: ?[=:] ?| set by environment to |[ .]{{3,80}}| +[|│] +){end}"
        rf"|[(,{{\[] ?['\"]?{name}['\"]?(?: ?[=:] ?){end}|[(,] {name}: {end}|, {name}: {end}"
    )
