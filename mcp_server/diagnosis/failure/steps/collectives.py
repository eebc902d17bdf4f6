"""Says why a collective timed out, by what all ranks print: they differed, or one was still at work. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_COLLECTIVE = compile_lazily(
    r"\[Rank (\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(\w+),"
)
_OF_THE_FAILURE = compile_lazily(
    r"ProcessGroup|[Ww]atchdog|NCCL|c10|torch[./]distributed|exitcode|SIG[A-Z]+|DistBackend|Traceback|File \""
    r"|[Rr]ank \d+\]|elastic|terminate called|what\(\)|frame #"
)
_PROGRESS = compile_lazily(
    r"\b\d{1,3}%\||(?i:\b(?:step|iter(?:ation)?|eval\w*|batch|samples?|val\w*|epoch|shards?)\b[^\n]{0,30}?\d)"
    r"|\b\d+ ?/ ?\d+\b|\b\d{1,3}(?:\.\d+)?%"
)
_COUNTER = compile_lazily(r"\b\d+ ?/ ?\d+\b")
_WORKS = compile_lazily(
    r"(?i)\b(evaluat\w*|eval\b(?![ _/]?(?:loss|acc|metric|result|score))"
    r"|validat\w*|saving|saved? (?:model |the )?checkpoint\w*|save_checkpoint|checkpoint(?:ing)? to"
    r"|generat(?:e|ing|ion)|tokeniz\w*|preprocess\w*|upload\w*|push(?:ing)? to|merging|consolidat\w*|gather\w* state"
    r"|computing|download\w*|caching|packing|Map \(|Filter|exporting|index\w*)"
)
_LAST_LINES = 3  # of ordinary output before the ranks time out
# How each framework raises the timeout of its process group.
_SETTINGS = (
    (r"(?i)megatron|nemo", "--distributed-timeout-minutes"),
    (r"(?i)lightning", "DDPStrategy(timeout=)"),
    (r"torchtitan", "comm.train_timeout_seconds"),
    (
        r"transformers|trainer\.py:\d+|llama_?factory|trl\b|'grad_norm'|Map \(|Running tokenizer|examples/s",
        "ddp_timeout",
    ),
    (r"accelerate", "InitProcessGroupKwargs(timeout=)"),
    (r"deepspeed", "deepspeed.init_distributed(timeout=)"),
)
_ANY_SETTING = "init_process_group(timeout=)"


def explain_timeout(scene: Scene) -> NextStep | None:
    """Return the step after a timeout of NCCL that the output of all ranks explains, or None."""
    if scene.kind != "nccl_error" or not re.search(r"[Tt]imeout|[Tt]imed out|timing out", scene.line):
        return None
    ranks = {match[2].strip("_").replace("_BASE", ""): match[1] for match in _COLLECTIVE.finditer(scene.log)}
    if len(ranks) > 1:
        parts = [f"{operation} on rank {ranks[operation]}" for operation in sorted(ranks)[:2]]
        advice = (
            "Ranks ran different collectives ({0}, {1}): give each the same batches and branches (drop_last, join)."
        )
        return _step("stop", fill_in(advice, parts, scene.at))
    if not (work := _find_work(scene.log)):
        return None
    setting = next((name for pattern, name in _SETTINGS if re.search(pattern, scene.log)), _ANY_SETTING)
    advice = (
        "One rank was still at work ({0}) while the others waited: raise the timeout ({1}), or do that on all ranks or "
        "before."
    )
    return _step("retry_changed", fill_in(advice, [work, setting], scene.at))


def _find_work(log: str) -> str:
    """Return what a rank did when the others timed out: what it prints after, or said it began before. Or nothing."""
    lines = log.split("\n")
    first = next((n for n, line in enumerate(lines) if "Watchdog caught" in line or "Timed out" in line), None)
    if first is None:
        return ""
    own = [(n, line) for n, line in enumerate(lines) if line.strip() and not _OF_THE_FAILURE.search(line)]
    before = [line for n, line in own if n < first][-_LAST_LINES:]
    drawn = {counter for line in before for counter in _COUNTER.findall(line)}  # a bar is drawn again as it is closed
    begun = next(filter(None, map(_WORKS.search, reversed(before))), None)
    for line in (line for n, line in own if n > first and _PROGRESS.search(line)):
        if not drawn & set(_COUNTER.findall(line)):
            said = _WORKS.search(line) or begun
            return said[1].strip(" (").lower() if said else "its output goes on"
    return begun[1].strip(" (").lower() if begun else ""


def _step(action: str, advice: str) -> NextStep | None:
    return NextStep(action != "stop", action, advice) if advice else None
