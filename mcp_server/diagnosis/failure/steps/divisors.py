"""Says which of two sizes to change where one must divide the other, by the options that the run was given. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_NAME = r"(?<![\w.])(?=[\w.]{{0,80}}_)(?P<{0}>[A-Za-z_][\w.]{{1,80}})"
_VALUE = r"[ =]{{0,3}}\(?[ =]{{0,2}}(?P<{0}>\d{{1,9}})\)?"
_MUST_DIVIDE = compile_lazily(
    _NAME.format("whole") + _VALUE.format("size")
    + r" (?:must|should|needs to|has to|is not|isn't)(?: be)? (?:evenly )?(?:divisible by|a multiple of) (?:the )?"
    + _NAME.format("part") + _VALUE.format("count")
)  # fmt: skip
_OF_OPTIONS = compile_lazily(r"(?i)\bmegatron\b")  # names each argument --as-this
_MOST_SHOWN = 3


def explain_divisor(scene: Scene) -> NextStep | None:
    """Return the step where one named size must divide another, with the sizes that do, or None."""
    match = _MUST_DIVIDE.search(scene.line)
    if match is None or scene.kind not in {"python_error", "config_error"}:
        return None
    size, count = int(match["size"]), int(match["count"])
    divisors = [n for n in range(min(count, size), 0, -1) if size % n == 0 and n <= count][:_MOST_SHOWN]
    divisors = [n for n in divisors if n > 1] or divisors
    if not count or size % count == 0 or not divisors:
        return None
    whole, part = (_name_option(match[name], scene.log) for name in ("whole", "part"))
    shown = " or ".join(map(str, divisors))
    text = fill_in(
        "Set {0} to {1}, a divisor of {2} ({3}), or {2} to a multiple of {4}, then launch_run again.",
        [part, shown, whole, str(size), str(count)],
        (),
    )
    return NextStep(False, "stop", text) if text else None


def _name_option(name: str, log: str) -> str:
    """Return ``name`` as the option that ``log`` shows, `--num-query-groups`, else as it is."""
    spelled = re.search(rf"--{re.escape(name).replace('_', '[-_]')}\b", log)
    if spelled:
        return spelled[0]
    return f"--{name.replace('_', '-')}" if _OF_OPTIONS.search(log) else name
