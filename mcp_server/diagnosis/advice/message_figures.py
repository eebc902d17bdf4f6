"""Proofs in the figures of a message: who holds GPU memory, how large a buffer must be, who was late. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.advice.blocks import NextStep, Scene, choose, compose, correct
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/advice/patterns", "message_figures")

_UNITS = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2.0**10}
_LEAST_SHARE, _LEAST_GIB = 0.12, 1.2  # of others: the context of the process itself is up to 1 GiB
_LEAST_UNUSED = 0.1  # of the GPU: less would not have made the difference for long


def read_figures(scene: Scene) -> NextStep | None:
    """Return the step that the figures of ``scene`` prove, or None."""
    if scene.kind == "oom_gpu":
        return _read_memory(scene)
    if batch := _RX.batch.search(scene.line):
        product = int(batch[2]) * int(batch[3]) * int(batch[4])
        return compose(
            'Micro batch x accumulation x GPUs is {0} here: set train_batch_size to that (or "auto"), or change the '
            "accumulation steps.",
            [str(product)],
            scene,
        )
    if capacity := _RX.capacity.search(scene.line) or _RX.overflow.search(scene.line):
        name, size = choose("buffer", capacity[1]), 1 << int(capacity[2]).bit_length()
        name = name or re.sub(r"(?<=[a-z])([A-Z])", lambda match: f"_{match[1].lower()}", capacity[1]).replace(" ", "_")
        setting = f"sim.physx.gpu_{name.removeprefix('gpu_')}"
        return correct("Set {0} to {1} or more, or lower num_envs", [setting, str(size)], scene)
    return None


def _read_memory(scene: Scene) -> NextStep | None:
    """Return the step that the figures of a message about GPU memory prove. None: too large a batch."""
    text = scene.message or scene.line
    request, total, free, own = (_read(pattern, text) for pattern in (_RX.asked, _RX.total, _RX.free, _RX.own))
    if request is None or total is None or free is None:
        return None
    named = [(_size(match, 2), match[1]) for match in _RX.other.finditer(text)]
    if own is None and (ours := _read(_RX.by_pytorch, text)) is not None:  # a container numbers processes differently
        own, itself = min(((share, pid) for share, pid in named if share >= ours), default=(None, ""))
        named = [(share, pid) for share, pid in named if pid != itself]
    elif own is None and len(named) == 1:  # it may be this process itself
        named = []
    largest, process = max(named, default=(0.0, ""))
    others = sum(share for share, _ in named) or (total - free - own if own is not None else 0.0)
    if others >= max(_LEAST_SHARE * total, _LEAST_GIB) and others + free >= request:
        if largest > (own or 0.0):
            say, parts = "Process {0} holds most of this GPU: {launch_run|launch the cell} on another GPU.", [process]
        else:
            say = (
                "Other processes hold {0} of this GPU's {1} GiB: {launch_run|launch the cell} on another GPU, or end "
                "what is left over there (gpu_check)."
            )
            parts = [f"{others:.1f}", f"{total:.1f}"]
        return compose(say, parts, scene, "retry_other_gpu")
    allocated, unused = _read(_RX.allocated, text), _read(_RX.unused, text)
    if unused is None and own is not None and allocated is not None:
        unused = own - allocated
    if unused is None or unused < _LEAST_UNUSED * total:
        return None
    if unused + free >= request and not _RX.in_pieces.search(scene.log):
        return compose(
            "{0} GiB are reserved in pieces: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in env; if it "
            "recurs, use a smaller batch.",
            [f"{unused:.1f}"],
            scene,
            "retry_changed",
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


# --- collectives that timed out

_LAST_LINES = 3  # of ordinary output before the ranks time out


def explain_timeout(scene: Scene) -> NextStep | None:
    """Return the step after a timeout of NCCL that the output of all ranks explains, or None."""
    if scene.kind != "nccl_error" or not re.search(r"[Tt]imeout|[Tt]imed out|timing out", scene.line):
        return None
    ranks = {match[2].strip("_").replace("_BASE", ""): match[1] for match in _RX.collective.finditer(scene.log)}
    if len(ranks) > 1:
        parts = [f"{operation} on rank {ranks[operation]}" for operation in sorted(ranks)[:2]]
        advice = (
            "Ranks ran different collectives ({0}, {1}): give each the same batches and branches (drop_last, join)."
        )
        return compose(advice, parts, scene)
    if not (work := _find_work(scene.log)):
        return None
    setting = choose("timeout", scene.log) or "init_process_group(timeout=)"
    advice = (
        "One rank was still at work ({0}) while the others waited: raise the timeout ({1}), or do that on all ranks or "
        "before."
    )
    return compose(advice, [work, setting], scene, "retry_changed")


def _find_work(log: str) -> str:
    """Return what a rank did when the others timed out: what it prints after, or said it began before. Or nothing."""
    lines = log.split("\n")
    first = next((n for n, line in enumerate(lines) if "Watchdog caught" in line or "Timed out" in line), None)
    if first is None:
        return ""
    own = [(n, line) for n, line in enumerate(lines) if line.strip() and not _RX.of_the_failure.search(line)]
    before = [line for n, line in own if n < first][-_LAST_LINES:]
    drawn = {
        counter for line in before for counter in _RX.counter.findall(line)
    }  # a bar is drawn again as it is closed
    begun = next(filter(None, map(_RX.works.search, reversed(before))), None)
    for line in (line for n, line in own if n > first and _RX.progress.search(line)):
        if not drawn & set(_RX.counter.findall(line)):
            said = _RX.works.search(line) or begun
            return said[1].strip(" (").lower() if said else "its output goes on"
    return begun[1].strip(" (").lower() if begun else ""
