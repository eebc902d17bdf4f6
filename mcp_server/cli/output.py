"""Output shared by the verbs of the command line."""

import json
import re
from typing import Any

_VERBS = {
    "list_runs": "ls",
    "find_runs": "ls",
    "wait_run": "wait",
    "read_log": "logs",
    "capture_pane": "attach",
    "read_tb": "tb",
    "compare_runs": "sweep",
    "gpu_check": "gpu",
    "kill_run": "kill",
}
_CALL = re.compile(rf"(?:\b(Call|call) )?\b({'|'.join(_VERBS)})\b(?:\(([^()]*)\))?")
_WORD = re.compile(r"^(?:\w+=)?\[?['\"]([^'\"]*)['\"]")


def print_json(value: Any) -> None:
    """Print a JSON value for scripts."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def name_verbs(text: str) -> str:
    """Return an error's text for people: each call of a tool as the verb that does it."""

    def write(call: re.Match[str]) -> str:
        word = _WORD.match(call[3] or "")
        verb = f"runward {_VERBS[call[2]]}" + (f" {word[1]}" if word else "")
        return {"Call": f"Type: {verb}", "call": f"type: {verb}"}.get(call[1], verb)

    return _CALL.sub(write, text)
