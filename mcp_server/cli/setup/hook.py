"""`runward hook`: a client asks it before a command of its shell, and hears in one line which call of runward does it.

Claude Code and Codex send the command as JSON on standard input, and wait for this program: it imports little, and a
fault of its own never keeps a command from running.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcp_server.system.files import read_regular_file, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp_server.command.habits import Habit

# TOML's own reader takes 4 ms. A setting that is not understood counts as the default, as `runward doctor` says.
_SETTING = re.compile(r"(?m)^[ \t]*hook[ \t]*=[ \t]*[\"'](nudge|block|off)[\"']")
# A command without any of these has no habit, which the command reader need not be loaded for.
_MAY_BE_ONE = re.compile(
    r"(?i)py|sh\b|train|tun[ei]|fit|sft|[dp]po|rlhf|reward|launch|accelerat|torch|deepspeed|horovod|ray\b|sbatch|qsub|bsub|"
    r"nohup|setsid|systemd-run|disown|\bat\b|&\s*(?:$|[;)'\"\n])|tmux|screen|sleep|watch|tail|kill|fuser|cancel|q?del|_rm|"
    r"skill|slay|boot|shutdown|poweroff|halt|init|ctl|smi\b|nv[i]?top|gpu|eval|\.(?:slurm|sbatch|job|pbs|lsf)\b|epochs|lr\b"
)
_MOST_NAMED = 3


def run(_: object = None) -> int:
    """Answer one question. Exit status 1, which blocks nothing: the input is no question of a hook."""
    try:
        event = json.load(sys.stdin)
        command, in_background = event["tool_input"]["command"], bool(event["tool_input"].get("run_in_background"))
        text = command if isinstance(command, str) else "\n".join(command)
    except (ValueError, KeyError, TypeError, AttributeError):
        print(
            "runward hook reads what Claude Code or Codex send to a PreToolUse hook: guide://clients", file=sys.stderr
        )
        return 1
    answer = decide(event, command, in_background=in_background) if in_background or may_be_habit(text) else None
    if answer is not None:
        print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **answer}}, ensure_ascii=False))
    return 0


def decide(event: Mapping[str, Any], command: str | list[str], *, in_background: bool) -> dict[str, str] | None:
    """Return the answer to a hook's event, or None where there is nothing to say."""
    from mcp_server.command.habits import find_habit, stops_a_training  # noqa: PLC0415 - 30 ms of other commands

    try:
        home = state_directory(os.environ)
        mode = _read_mode(home)
        habit = None if mode == "off" else find_habit(command, in_background=in_background)
        hit = _find_runs_hit(habit, home) if habit is not None else []
    except (RuntimeError, ValueError, OSError):
        return None
    if habit is None or (habit.kind == "stop" and not hit and not stops_a_training(habit)):
        return None
    line = f"runward: {_advise(habit, hit)}"
    # Codex knows no question to the person, and names its turns.
    decision = "" if not hit else "deny" if mode == "block" else "" if "turn_id" in event else "ask"
    if decision:
        return {"permissionDecision": decision, "permissionDecisionReason": line}
    return {"additionalContext": line}


def may_be_habit(command: str) -> bool:
    """Return whether the reader must be asked: true of each command that has a habit, and of others."""
    return bool(_MAY_BE_ONE.search(command))


def _read_mode(home: Path) -> str:
    try:
        text = read_regular_file(home / "config.toml", max_bytes=1 << 20).decode(errors="replace")
    except OSError:
        return "nudge"
    found = _SETTING.search(re.split(r"(?m)^[ \t]*\[", text, maxsplit=1)[0])
    return found[1] if found else "nudge"


def _find_runs_hit(habit: Habit, home: Path) -> list[str]:
    if not habit.killers:
        return []
    from mcp_server.cli.setup.runs_hit import find_runs_hit  # noqa: PLC0415 - 9 ms of each command that stops nothing

    return find_runs_hit(habit.killers, home / "runs")


def _advise(habit: Habit, hit: list[str]) -> str:
    if habit.kind == "stop":
        named, more = hit[:_MOST_NAMED], len(hit) - _MOST_NAMED
        calls = ", ".join(f'kill_run("{run_id}")' for run_id in named) or "kill_run(run_id)"
        runs = f"{', '.join(named)}{f' and {more} more' if more > 0 else ''}"
        ends = f"would end {runs}." if hit else "may end what belongs to others."
        return f"`{habit.text}` {ends} {calls} asks first, stops that run with all it started, and keeps the reason."
    if habit.kind == "wait":
        return (
            "wait_run(run_id) returns at a run's end, failure or stall, without polls; read_log(run_id) has its output."
        )
    if habit.kind == "gpu":
        return "gpu_check() says health, use and holder of each GPU at once; gpu_check(run_id=…) a run's over its life."
    command = json.dumps(habit.text, ensure_ascii=False)
    if habit.kind == "sweep":
        return (
            f'launch_sweep(name=…, common={{"command": {command}, "gpus": 1}}, grid=…) runs them one a GPU, and ranks.'
        )
    more_words = f", cwd={json.dumps(habit.cwd)}" if habit.cwd else ""
    more_words += f", gpus={habit.gpus}" if habit.gpus else ""
    return (
        f"launch_run(command={command}{more_words}) starts it so that it outlives this shell, and keeps its log and "
        "exit code; then wait_run."
    )
