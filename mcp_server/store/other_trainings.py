"""Training processes of this host that no run started: read-only facts."""

from __future__ import annotations

import re

from mcp_server.answer import Answer
from mcp_server.system import processes
from mcp_server.system.process_title import supervised_run

_TRAINING = re.compile(
    r"(?:^|[\s/])(?:torchrun|deepspeed|accelerate|horovodrun)\b"
    r"|python[\d.]*\s.*(?:train|finetune|fine_tune|pretrain|\brl\b|sft|dpo|ppo|grpo)",
    re.IGNORECASE,
)


class OtherTraining(Answer):
    """A process that looks like a training. Arguments are left out: they may hold secrets."""

    pid: int
    program: str


def list_other_trainings(limit: int = 20) -> list[OtherTraining]:
    """Return this user's training processes that belong to no run, without their children."""
    all_processes = processes.list_processes()
    of_runs = {p.pid for p in all_processes if supervised_run(processes.command_words(p.pid)) is not None}
    for p in sorted(all_processes, key=lambda p: p.started):
        if p.parent in of_runs:
            of_runs.add(p.pid)
    others = [p for p in all_processes if p.pid not in of_runs and _TRAINING.search(p.command)]
    pids = {p.pid for p in others}
    roots = [p for p in others if p.parent not in pids]
    return [OtherTraining(pid=p.pid, program=processes.program_name(p)) for p in roots[:limit]]
