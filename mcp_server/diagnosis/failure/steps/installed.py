"""Leaves out of advice the installation of what the log shows as installed. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

_INSTALL = compile_lazily(r"pip install \"?([A-Za-z][\w.-]*?)(?:\[(\w+)\])?\"?(?: \([\w\[\]]+\))?, (?:and )?")
# What an extra installs, where only that decides.
_OF_EXTRA = {("gymnasium", "atari"): "ale-py", ("gymnasium", "mujoco"): "mujoco"}
_NO_MODULE = compile_lazily(r"No module named '([A-Za-z]\w{1,60})'")
_OTHER_PYTHON = (
    "{0} was installed for another Python than the run's: start it with that environment's python, or use "
    "`python -m pip install {0}`."
)


def leave_out_installed(step: NextStep, log: str) -> NextStep:
    """Return ``step`` without the packages that ``log`` shows as installed, where another part is left."""

    def keep(match: re.Match[str]) -> str:
        package = _OF_EXTRA.get((match[1], match[2]), match[1])
        return "" if _is_installed(package, log) else match[0]

    return step._replace(advice=_INSTALL.sub(keep, step.advice))


def explain_other_python(scene: Scene) -> NextStep | None:
    """Return the step where a module is missing that the log shows as installed before, or None."""
    match = _NO_MODULE.search(scene.line) if scene.kind == "import_error" else None
    if match is None or not _is_installed(match[1], scene.log):
        return None
    text = fill_in(_OTHER_PYTHON, [match[1].replace("_", "-")], ())
    return NextStep(False, "stop", text) if text else None


def _is_installed(package: str, log: str) -> bool:
    name = "[-_]".join(map(re.escape, re.split("[-_]", package)))
    shown = (
        rf"Requirement already satisfied: {name}\b(?![-_.\w])",
        rf"Successfully installed (?:.{{0,2000}} )?{name}-\d",
        rf"\s*{name}(?:==| +)\d+\.\d",
    )
    return bool(re.search(rf"(?im)^(?:{'|'.join(shown)})", log))
