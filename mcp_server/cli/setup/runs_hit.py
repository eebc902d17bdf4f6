"""The live runs of this host that a command of somebody else would end, as its words and the processes prove it."""

import os.path
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from mcp_server.command.killers import Killer, find_closed_session
from mcp_server.record.run_directory import RunDir, load_json
from mcp_server.system import processes
from mcp_server.system.own_process import supervised_run


def find_runs_hit(killers: Sequence[Killer], runs: Path) -> list[str]:
    """Return the ids of the runs below ``runs`` that live and are surely ended by one of these."""
    children: dict[int, list[processes.Process]] = {}
    supervisors: dict[str, int] = {}
    for process in processes.list_processes():
        children.setdefault(process.parent, []).append(process)
        run_id = supervised_run(processes.command_words(process.pid))
        if run_id and os.path.isfile(f"{runs}/{run_id}/spec.json"):  # noqa: PTH113 - does not raise
            supervisors.setdefault(run_id, process.pid)
    hit = []
    for run_id, pid in supervisors.items():
        members, queue = [], [pid]
        while queue:
            found = children.get(queue.pop(), [])
            members += found
            queue += [process.pid for process in found]
        if any(_ends(killer, runs / run_id, members) for killer in killers):
            hit.append(run_id)
    return hit


def _ends(killer: Killer, run: Path, members: Sequence[processes.Process]) -> bool:
    if killer.program.name == "tmux":
        return _closes_session_of(killer, run)
    return any(killer.surely_hits(each.pid, each.name, each.command) for each in members)


def _closes_session_of(killer: Killer, run: Path) -> bool:
    words, spec = killer.program.words, load_json(RunDir(run).spec) or {}
    socket = next((name for word, name in pairwise(words) if word == "-L"), "default")
    path = next((Path(name).name for word, name in pairwise(words) if word == "-S"), socket)
    if spec.get("backend", "tmux") != "tmux" or path != spec.get("tmux_socket", "default"):
        return False
    session = find_closed_session(killer.program)
    closes_others = "-a" in words and session != spec.get("session")
    return "kill-server" in words or closes_others or bool(session and str(spec.get("session")).startswith(session))
