"""Trainings on this host that are not runward's: read-only facts."""

from __future__ import annotations

import re

from mcp_server.answer import Answer
from mcp_server.system import processes

_TRAINING = re.compile(
    r"(?:^|[\s/])(?:torchrun|deepspeed|accelerate|horovodrun)\b"
    r"|python[\d.]*\s.*(?:train|finetune|fine_tune|pretrain|\brl\b|sft|dpo|ppo|grpo)",
    re.IGNORECASE,
)
_SUPERVISOR = "mcp_server/supervisor "  # of any installation


class Stranger(Answer):
    """A process that looks like a training. Arguments are left out: they may hold secrets."""

    pid: int
    program: str


def trainings(limit: int = 20) -> list[Stranger]:
    """Return training-like processes of this user that no run started, without their children."""
    everything = processes.list_processes()
    ours = {p.pid for p in everything if _SUPERVISOR in p.command}
    for p in sorted(everything, key=lambda p: p.started):
        if p.parent in ours:
            ours.add(p.pid)
    strange = [p for p in everything if p.pid not in ours and _TRAINING.search(p.command)]
    pids = {p.pid for p in strange}
    return [Stranger(pid=p.pid, program=processes.program_name(p)) for p in strange if p.parent not in pids][:limit]
