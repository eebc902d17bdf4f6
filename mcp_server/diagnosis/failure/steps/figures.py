"""Reads the figures of messages: who holds GPU memory, what sizes fit together, how large a buffer must be. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene
from mcp_server.text.regex import compile_lazily

_UNITS = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2.0**10}
_SIZE = r"([\d.]+) ?([KMGT])i?B"
_ASKED = compile_lazily(rf"Tried to allocate {_SIZE}")
_TOTAL = compile_lazily(rf"total capac\w+ of {_SIZE}|{_SIZE} total capacity")
_FREE = compile_lazily(rf"of which {_SIZE} is free|{_SIZE} free")
_OWN = compile_lazily(rf"this process has {_SIZE}|{_SIZE} reserved in total")
_UNUSED = compile_lazily(rf"and {_SIZE} is reserved by PyTorch but unallocated")
_BY_PYTORCH = compile_lazily(rf"allocated memory {_SIZE} is allocated by PyTorch")
_ALLOCATED = compile_lazily(rf"{_SIZE} already allocated")
_OTHER = compile_lazily(rf"\bProcess (\d+) has {_SIZE} memory in use")
_LEAST_SHARE, _LEAST_GIB = 0.12, 1.2  # of others: the context of the process itself is up to 1 GiB
_LEAST_UNUSED = 0.1  # of the GPU: less would not have made the difference for long
_BATCH = compile_lazily(r"train_batch_size is not equal to .{0,80}?(\d+) != (\d+) \* (\d+) \* (\d+)")
# What PhysX calls its buffers, and Isaac's settings for them.
_PHYSX_NAMES = {
    "patch buffer": "max_rigid_patch_count",
    "contact buffer": "max_rigid_contact_count",
    "collision stack": "collision_stack_size",
    "heap": "heap_capacity",
    "temp buffer": "temp_buffer_capacity",
}
_OVERFLOW = compile_lazily(r"([A-Za-z]+ (?:[Bb]uffer|[Ss]tack)) overflow detected.{0,80}?(?:at least|to) (\d{1,12})")
_CAPACITY = compile_lazily(
    r"Px[Gg]?p?u?DynamicsMemoryConfig::(\w{1,50})(?: buffer overflow detected.{0,60}?)? to (?:at least )?(\d{1,12})"
)
_IN_PIECES = compile_lazily(r"expandable_segments:\s*True")


def read_figures(scene: Scene) -> NextStep | None:
    """Return the step that the figures of ``scene`` prove, or None."""
    if scene.kind == "oom_gpu":
        return _read_memory(scene)
    if batch := _BATCH.search(scene.line):
        product = int(batch[2]) * int(batch[3]) * int(batch[4])
        return NextStep(
            False,
            "stop",
            f'Micro batch x accumulation x GPUs is {product} here: set train_batch_size to that (or "auto"), or '
            f"change the "
            "accumulation steps.",
        )
    if capacity := _CAPACITY.search(scene.line) or _OVERFLOW.search(scene.line):
        name, size = _PHYSX_NAMES.get(capacity[1].lower(), ""), 1 << int(capacity[2]).bit_length()
        name = name or re.sub(r"(?<=[a-z])([A-Z])", lambda match: f"_{match[1].lower()}", capacity[1]).replace(" ", "_")
        setting = f"sim.physx.gpu_{name.removeprefix('gpu_')}"
        return NextStep(False, "stop", f"Set {setting} to {size} or more, or lower num_envs, then launch_run again.")
    return None


def _read_memory(scene: Scene) -> NextStep | None:
    """Return the step that the figures of a message about GPU memory prove. None: too large a batch."""
    text = scene.message or scene.line
    request, total, free, own = (_read(pattern, text) for pattern in (_ASKED, _TOTAL, _FREE, _OWN))
    if request is None or total is None or free is None:
        return None
    named = [(_size(match, 2), match[1]) for match in _OTHER.finditer(text)]
    if own is None and (ours := _read(_BY_PYTORCH, text)) is not None:  # a container numbers processes differently
        own, itself = min(((share, pid) for share, pid in named if share >= ours), default=(None, ""))
        named = [(share, pid) for share, pid in named if pid != itself]
    elif own is None and len(named) == 1:  # it may be this process itself
        named = []
    largest, process = max(named, default=(0.0, ""))
    others = sum(share for share, _ in named) or (total - free - own if own is not None else 0.0)
    if others >= max(_LEAST_SHARE * total, _LEAST_GIB) and others + free >= request:
        if largest > (own or 0.0):
            return NextStep(
                True, "retry_other_gpu", f"Process {process} holds most of this GPU: launch_run on another GPU."
            )
        return NextStep(
            True,
            "retry_other_gpu",
            f"Other processes hold {others:.1f} of this GPU's {total:.1f} GiB: launch_run on another GPU, or end what "
            "is left over there (gpu_check).",
        )
    allocated, unused = _read(_ALLOCATED, text), _read(_UNUSED, text)
    if unused is None and own is not None and allocated is not None:
        unused = own - allocated
    if unused is None or unused < _LEAST_UNUSED * total:
        return None
    if unused + free >= request and not _IN_PIECES.search(scene.log):
        return NextStep(
            True,
            "retry_changed",
            f"{unused:.1f} GiB are reserved in pieces: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in env; if "
            "it recurs, use a smaller batch.",
        )
    return None


def _read(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return _size(match, 1 if match[1] else 3) if match else None


def _size(match: re.Match[str], group: int) -> float:
    try:
        return float(match[group]) * _UNITS[match[group + 1]]
    except ValueError:  # "1.2.3"
        return 0.0
