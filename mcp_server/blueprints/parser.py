"""A blueprint: an experiment in seven sections of markdown, as one agent writes it and another runs it. Pure.

Defaults of missing sections: 24 h; the first step within 20 min; the code is where the blueprint is; results go
to a directory beside it with its name; this host's python; no configuration file; its title as purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.blueprints import fields
from mcp_server.blueprints.command import command_of, unknown_names
from mcp_server.blueprints.headings import SECTIONS
from mcp_server.blueprints.sections import Line, Problem, Section, document, items

TIME_LIMIT_S, FIRST_STEP_TIMEOUT_S = 86_400.0, 1_200.0
LONGEST_TEXT = 1_000_000
_PATHS = ("codebase_dir", "venv_exe", "yaml_path", "result_dir")
_QUOTED_WORDS = re.compile(r"path|dir|name|your|file|command|port|config|路径|目录|名", re.IGNORECASE)


@dataclass(frozen=True)
class Blueprint:
    """What a blueprint says. Paths as written, None where a default stands; durations in seconds.

    ``lines``: section to the line where its value, else its heading, stands; ``defaults_used`` names the sections
    (``exp_max_time``) and ``first_step_timeout_s``.
    """

    purpose: str = ""
    codebase_dir: str | None = None
    venv_exe: str | None = None
    yaml_path: str | None = None
    launch_command: str | None = None
    result_dir: str | None = None
    time_limit_s: float = TIME_LIMIT_S
    first_step_timeout_s: float = FIRST_STEP_TIMEOUT_S
    first_step_pattern: str | None = None
    defaults_used: tuple[str, ...] = ()
    notes: str = ""
    problems: tuple[Problem, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it can be run as written."""
        return not any(problem.fatal for problem in self.problems)


def parse(text: str) -> Blueprint:
    """Read a blueprint; whatever cannot be understood is a problem with its line, never an exception."""
    if len(text) > LONGEST_TEXT:
        return Blueprint(problems=(Problem(1, f"longer than {LONGEST_TEXT:,} characters: this is no blueprint."),))
    found = document(text)
    reading = fields.Reading(problems=list(found.wrong))
    for section in found.sections:
        if (first := reading.sections.setdefault(section.name, section)) is not section:
            reading.wrong(section.line, f"[exp_{section.name}] is there twice, first in line {first.line}.")
    reading.lines = {name: section.line for name, section in reading.sections.items()}
    if not reading.sections:
        reading.wrong(1, "no section of a blueprint was found, as [exp_launch_command].")
    paths = {name: fields.path(reading, name) for name in _PATHS}
    purpose = fields.purpose(reading)
    first_step_s, pattern = fields.first_step(reading, found.notes)
    known = len(reading.problems)
    time_limit_s = fields.time_limit_s(reading)
    reading.belongs(known, "max_time")
    known = len(reading.problems)
    command = _command(reading)
    reading.belongs(known, "launch_command")
    absent = {name for name, path in paths.items() if path is None}
    absent |= {name for name, value in (("purpose", purpose), ("max_time", time_limit_s)) if not value}
    return Blueprint(
        purpose=purpose or found.title,
        launch_command=command,
        time_limit_s=time_limit_s or TIME_LIMIT_S,
        first_step_timeout_s=first_step_s or FIRST_STEP_TIMEOUT_S,
        first_step_pattern=pattern,
        defaults_used=(
            *(f"exp_{name}" for name in SECTIONS if name in absent),
            *([] if first_step_s else ["first_step_timeout_s"]),
        ),
        notes=_joined(found.notes),
        problems=tuple(sorted(dict.fromkeys(reading.problems), key=lambda problem: problem.line)),
        lines=reading.lines,
        **paths,
    )


def _command(reading: fields.Reading) -> str | None:
    """Return the launch command, with its variables as written; None where there is none."""
    section = reading.sections.get("launch_command")
    if section is None:
        if reading.sections:
            reading.wrong(1, "[exp_launch_command] is missing: one launch command is wanted.")
        return None
    command = command_of(section)
    reading.lines["launch_command"] = command.line
    reading.problems += command.wrong
    if command.text is None:
        held = [item for item in items(section) if reading.held("launch_command", item.line, item.text)]
        if not command.wrong and not held:
            reading.wrong(section.line, "[exp_launch_command] holds no command: one launch command is wanted.")
        return None
    reading.problems += _left_in(command.text, command.line, section)
    return command.text


def _left_in(text: str, line: int, section: Section) -> Iterable[Problem]:
    """Yield what a template left in a command, and names that nothing fills in."""
    for held in fields.PLACEHOLDER.finditer(text):
        before = text[: held.start()]
        in_quotes = (before.count('"') - before.count('\\"')) % 2 or before.count("'") % 2
        if held[0].startswith("<") and in_quotes and not _QUOTED_WORDS.search(held[0]):
            continue  # a tag of a prompt, as "<think>"
        where = next((other.number for other in section.lines if held[0] in other.text), line)
        yield Problem(where, f"the launch command still holds the template's {held[0]!r}.")
    for name in unknown_names(text):
        if name.removeprefix("exp_") not in SECTIONS:
            yield Problem(line, f"the launch command names {name}, which no section fills in.")


def _joined(notes: Sequence[Line]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.text.rstrip() for line in notes)).strip()
