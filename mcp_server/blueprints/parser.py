"""Blueprints: experiments in seven sections of markdown, which one agent writes and another runs. Pure.

Defaults of missing sections: 24 h; the first step within 20 min; code in the blueprint's directory; results in a
directory next to the blueprint, with its name; `venv/bin/python` or `.venv/bin/python` beside the blueprint or in the
code, else this host's python; no configuration file; the title as purpose.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.blueprints import fields
from mcp_server.blueprints.command import read_command
from mcp_server.blueprints.first_step import read_first_step
from mcp_server.blueprints.headings import SECTIONS, BlueprintFault
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.options import Options, read_options
from mcp_server.blueprints.sections import split_sections
from mcp_server.blueprints.time_limit import read_time_limit

TIME_LIMIT_S, FIRST_STEP_TIMEOUT_S = 86_400.0, 1_200.0
MAX_CHARS = 1_000_000
_MAX_FAULTS = 50
_PATHS = ("codebase_dir", "venv_exe", "yaml_path", "result_dir")
_TOML_TEXT = re.compile(r"('''|\"\"\").*?\1", re.DOTALL)


@dataclass(frozen=True)
class Blueprint:
    """Values of a blueprint. Paths are as written, None where a default applies.

    Durations are in seconds.

    ``seeks_venv``: the python is left open, so that a virtual environment beside the document or in the code counts.
    ``lines`` has the line of each section's value, else of its heading. ``defaults_used`` names sections
    (``exp_max_time``) and ``first_step_timeout_s``.
    """

    purpose: str = ""
    codebase_dir: str | None = None
    venv_exe: str | None = None
    seeks_venv: bool = False
    yaml_path: str | None = None
    launch_command: str | None = None
    result_dir: str | None = None
    time_limit_s: float = TIME_LIMIT_S
    first_step_timeout_s: float = FIRST_STEP_TIMEOUT_S
    first_step_pattern: str | None = None
    defaults_used: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    notes: str = ""
    faults: tuple[BlueprintFault, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it can be run as written."""
        return not any(fault.fatal for fault in self.faults)


def parse_blueprint(text: str) -> Blueprint:
    """Return the blueprint in ``text``. Whatever is not understood is a fault with its line, never an exception."""
    if len(text) > MAX_CHARS:
        return Blueprint(faults=(BlueprintFault(1, f"longer than {MAX_CHARS:,} characters: this is not a blueprint."),))
    document = split_sections(text)
    if not document.sections and (unfenced := _unfence_yaml(text)) is not None:
        document = split_sections(unfenced)
    reader = fields.BlueprintReader(faults=list(document.faults))
    for section in document.sections:
        if (first := reader.sections.setdefault(section.name, section)) is not section:
            cause = f"[exp_{section.name}] is there twice, first in line {first.line}."
            reader.faults.append(BlueprintFault(section.line, cause, section=section.name))
    reader.lines = {name: section.line for name, section in reader.sections.items()}
    if not reader.sections and not any(fault.text.startswith("front matter") for fault in document.faults):
        reader.refuse("", 1, "no section of a blueprint was found, as [exp_launch_command].")
    paths = {name: fields.read_path(reader, name) for name in _PATHS}
    purpose = fields.read_purpose(reader)
    options = read_options(reader)
    command = read_command(reader)
    fields.keep_hints(reader)
    line = reader.lines.get("launch_command", 1)
    texts = [note.removeprefix("[exp_launch_command] ") for note in reader.notes]
    beside = [SourceLine(line, text, text, text) for text in texts]
    notes = (*document.notes, *beside) if reader.sections else ()  # of any other file nothing is quoted
    first_step_s, pattern = read_first_step(reader, notes)
    time_limit_s = read_time_limit(reader)
    absent = {name for name, path in paths.items() if path is None}
    # There is no configuration where it says none, and this host's python where it says python: neither is a default.
    absent -= {name for name in ("yaml_path", "venv_exe") if not fields.leaves_open(reader, name)}
    absent |= {name for name, value in (("purpose", purpose), ("max_time", time_limit_s)) if not value}
    absent -= {fault.section for fault in reader.faults if fault.fatal}  # it is there, and not understood
    return Blueprint(
        purpose=purpose or document.title,
        launch_command=command,
        time_limit_s=time_limit_s or TIME_LIMIT_S,
        first_step_timeout_s=first_step_s or FIRST_STEP_TIMEOUT_S,
        first_step_pattern=pattern,
        defaults_used=(
            *(f"exp_{name}" for name in SECTIONS if name in absent),
            *([] if first_step_s else ["first_step_timeout_s"]),
        ),
        options=options,
        seeks_venv=fields.leaves_open(reader, "venv_exe"),
        notes="\n".join(filter(None, [_join_notes(document.notes), *dict.fromkeys(reader.notes)])),
        faults=tuple(_shorten_faults(sorted(dict.fromkeys(reader.faults), key=lambda fault: fault.line))),
        lines=reader.lines,
        **paths,
    )


def _requote(match: re.Match[str]) -> str:
    """Return a text of TOML over several lines as YAML quotes it on one, with the lines kept behind it."""
    try:
        value = tomllib.loads(f"text = {match[0]}")["text"]
    except tomllib.TOMLDecodeError:
        return match[0]
    return json.dumps(value.rstrip("\n"), ensure_ascii=False) + "\n" * match[0].count("\n")


def _unfence_yaml(text: str) -> str | None:
    """Return a document whose sections are in its only code block, of YAML, JSON or TOML, with it as front matter.

    Lines keep their numbers. None where there is no such block.
    """
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    if len(fences) != 2 or not re.fullmatch(r"```\s*(?:ya?ml|json|toml)\s*", lines[fences[0]]):  # noqa: PLR2004 - begin and end
        return None
    first, last = fences
    if not any(line.strip(' {"').startswith("exp_") for line in lines[first:last]):
        return None
    text = _TOML_TEXT.sub(_requote, "\n".join(lines[first + 1 : last]))
    block = [re.sub(r"^(\w+)\s*=\s*", r"\1: ", line) for line in text.split("\n")]  # as TOML has it
    return "\n".join([*([""] * first), "---", *block, "---", *lines[last + 1 :]])


def _shorten_faults(faults: list[BlueprintFault]) -> list[BlueprintFault]:
    """Return the first faults, those that prevent running the document before all others, and a count of the rest."""
    if len(faults) <= _MAX_FAULTS:
        return faults
    chosen = sorted(faults, key=lambda fault: not fault.fatal)[:_MAX_FAULTS]
    rest = BlueprintFault(faults[-1].line, f"{len(faults) - _MAX_FAULTS:,} more problems up to here.", fatal=False)
    return [*sorted(chosen, key=lambda fault: fault.line), rest]


def _join_notes(notes: Sequence[SourceLine]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.text.rstrip() for line in notes)).strip()
