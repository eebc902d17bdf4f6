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
from typing import Any

from mcp_server.blueprints.command import read_command
from mcp_server.blueprints.fields import BlueprintReader, keep_hints, leaves_open, read_path, read_purpose
from mcp_server.blueprints.front_matter import YamlFault, compose, to_data
from mcp_server.blueprints.headings import SECTIONS, BlueprintFault, Section, split_row
from mcp_server.blueprints.markdown import SourceLine
from mcp_server.blueprints.sections import is_explanation, split_sections
from mcp_server.blueprints.time_limit import read_first_step, read_time_limit
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "parser")

# The styles, and how people write them.
_STYLES = {
    "--k v": re.compile(r"--<?(?:k|key|name|param)>?(?:\s+|\s*<)(?:v|val|value)>?(?![\w=]).*", re.IGNORECASE),
    "k=v": re.compile(r"<?(?:k|key|name|param)>?=<?(?:v|val|value)>?(?!\w).*", re.IGNORECASE),
}
TIME_LIMIT_S, FIRST_STEP_TIMEOUT_S = 86_400.0, 1_200.0
MAX_CHARS = 1_000_000
_MAX_FAULTS, _MAX_SEEDS = 50, 1_000
_PATHS = ("codebase_dir", "venv_exe", "yaml_path", "result_dir")
_TOML_TEXT = re.compile(r"('''|\"\"\").*?\1", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """Options of a launch as a blueprint has them. A field that it leaves open has its default."""

    recovery: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    param_style: str | None = None
    resume_args: tuple[str, ...] = ()
    tensorboard: str | None = None
    seeds: tuple[int, ...] = ()


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
    reader = BlueprintReader(faults=list(document.faults))
    for section in document.sections:
        if (first := reader.sections.setdefault(section.name, section)) is not section:
            cause = f"[exp_{section.name}] is there twice, first in line {first.line}."
            reader.faults.append(BlueprintFault(section.line, cause, section=section.name))
    reader.lines = {name: section.line for name, section in reader.sections.items()}
    if not reader.sections and not any(fault.text.startswith("front matter") for fault in document.faults):
        reader.refuse("", 1, "no section of a blueprint was found, as [exp_launch_command].")
    paths = {name: read_path(reader, name) for name in _PATHS}
    purpose = read_purpose(reader)
    options = _read_options(reader)
    command = read_command(reader)
    keep_hints(reader)
    line = reader.lines.get("launch_command", 1)
    texts = [note.removeprefix("[exp_launch_command] ") for note in reader.notes]
    beside = [SourceLine(line, text, text, text) for text in texts]
    notes = (*document.notes, *beside) if reader.sections else ()  # of any other file nothing is quoted
    first_step_s, pattern = read_first_step(reader, notes)
    time_limit_s = read_time_limit(reader)
    absent = {name for name, path in paths.items() if path is None}
    # There is no configuration where it says none, and this host's python where it says python: neither is a default.
    absent -= {name for name in ("yaml_path", "venv_exe") if not leaves_open(reader, name)}
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
        seeks_venv=leaves_open(reader, "venv_exe"),
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


def _read_options(reader: BlueprintReader) -> Options:
    """Return the options of a document. A text that is not understood is a fault with its line.

    They are written as YAML, in front matter or below their own names: ``[exp_params]`` with ``num_envs: 4096`` or
    ``num_envs=4096`` in each line. One seed is the parameter ``seed``, unless the command names ``${exp_seeds}``.
    """
    return Options(
        recovery=_read_recovery(reader),
        params=_read_params(reader),
        param_style=_read_style(reader),
        resume_args=_read_words(reader),
        tensorboard=read_path(reader, "tensorboard"),
        seeds=_read_seeds(reader),
    )


def _refuse(reader: BlueprintReader, name: str, cause: str) -> None:
    reader.refuse(name, reader.lines[name], cause)


def _read_recovery(reader: BlueprintReader) -> Any:
    value = _read_value(reader, "recovery")
    if value is None or isinstance(value, dict) or value in ("none", "default"):
        return value
    cause = f"is none, default or a table by failure kind, not {str(value)[:60]!r}. See guide://recovery."
    return _refuse(reader, "recovery", cause)


def _read_params(reader: BlueprintReader) -> dict[str, Any]:
    value = _read_value(reader, "params")
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        pairs = [pair for each in value for pair in each.items()]
        value = dict(pairs)
        if len(pairs) > len(value):
            _refuse(reader, "params", "has a name twice: write it once.")
    if value is None or value == "none":
        return {}
    if not isinstance(value, dict):
        cause = f"is not a table of names and values: {str(value)[:60]!r}."
        _refuse(reader, "params", f"{cause} Write e.g. num_envs: 4096 in each line.")
        return {}
    for key, each in value.items():
        if isinstance(each, str) and _RX.no_value.fullmatch(each):
            cause = f"{str(key)[:40]!r} is {each[:40]!r}: write the number without commas, and one value."
            _refuse(reader, "params", cause)
    return value


def _read_style(reader: BlueprintReader) -> str | None:
    value = _read_value(reader, "param_style")
    style = next((style for style, written in _STYLES.items() if written.fullmatch(str(value))), None)
    if value is not None and style is None:
        _refuse(reader, "param_style", f"is `--k v` or `k=v`, not {str(value)[:40]!r}.")
    return style


def _read_words(reader: BlueprintReader) -> tuple[str, ...]:
    value = _read_value(reader, "resume_args")
    words = value.split() if isinstance(value, str) else [] if value is None else value
    if isinstance(words, list) and all(isinstance(word, str | int | float) for word in words):
        return tuple(map(str, words))
    _refuse(reader, "resume_args", "is a list of words, as --resume.")
    return ()


def _read_seeds(reader: BlueprintReader) -> tuple[int, ...]:
    value = _read_value(reader, "seeds")
    if value is None:
        return ()
    if isinstance(value, dict) and len(value) == 1:  # `seed: 7` below its own name
        value = next(iter(value.values()))
    if isinstance(value, str):
        text = re.sub(r"^(?:random\s+)?seeds?\s*[:=：]?\s*|[\[\]]|\band\b|和", " ", value.strip(), flags=re.IGNORECASE)
        words = re.split(r"[\s,;、，]+", text.strip())
        value = [int(word) if re.fullmatch(r"\d{1,18}", word) else word for word in words]
    seeds = value if isinstance(value, list) else [value]
    is_right = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if is_right and 0 < len(seeds) <= _MAX_SEEDS and len(set(seeds)) == len(seeds):
        return tuple(seeds)
    _refuse(reader, "seeds", f"is not a list of different numbers: {str(value)[:60]!r}. Write each, as 0, 1, 2.")
    return ()


def _read_value(reader: BlueprintReader, name: str) -> Any:
    """Return the value of an option as JSON value; None if it is absent or cannot be read."""
    section = reader.sections.get(name)
    if section is None:
        return None
    reader.lines[name] = section.line
    if section.exact is not None:
        return section.data
    is_words = name in ("param_style", "resume_args")  # in which `k=v` stays as it is
    lines = _value_lines(section, is_table=not is_words)
    if not lines:
        return None
    reader.lines[name] = first = lines[0][0]
    numbers = [number for number, _ in lines]
    texts = [text for _, text in lines]
    plain = " ".join(texts).strip().strip("`*\"'").strip()
    if _RX.absent.fullmatch(plain):
        return "none" if name == "recovery" else None
    if is_words or (name == "recovery" and plain in ("none", "default")):
        return plain.removeprefix("- ").strip("`")
    if any("<" in text and ">" in text for text in texts) and name != "recovery":
        cause = f"still holds the template's {plain[:40]!r}: write the value, or remove the section."
        reader.refuse(name, first, cause)
        return None
    has_several = any(_RX.flags.fullmatch(text) or len(_RX.pair.findall(text)) > 1 for text in texts)
    has_several = has_several and all(_RX.flags.fullmatch(text) or _RX.pairs.fullmatch(text) for text in texts)
    if name == "params" and has_several:
        pairs = [(number, *pair) for number, text in lines for pair in _RX.pair.findall(text)]
        numbers, texts = [pair[0] for pair in pairs], [f"{flag or key}: {value}" for _, flag, key, value in pairs]
    try:
        return to_data(compose("\n".join(texts), 0), 0)
    except YamlFault as fault:
        reader.refuse(name, numbers[min(fault.line, len(numbers) - 1)], f"is {fault.text}.")
        return None


def _value_lines(section: Section, *, is_table: bool) -> list[tuple[int, str]]:
    """Return the lines of an option as YAML: from its code block, else without explanations, marks and table bars.

    ``is_table``: names and values, so that ``k=v`` means ``k: v``.
    """
    assigned = r"\1\2: " if is_table else r"\g<0>"
    code = [(line.number, line.text) for line in section.all_lines if line.fence is not None]
    if code:
        return [(number, _RX.assigned.sub(assigned, text)) for number, text in code]
    rows = [(line.number, split_row(line.text.strip())) for line in section.all_lines if line.text.strip()[:1] == "|"]
    if len(rows) == 3 and _is_wide(*(cells for _, cells in rows)):  # noqa: PLR2004 - names, line, values
        pairs = zip(rows[0][1], rows[2][1], strict=True)
        return [(rows[2][0], f"{name.strip(' `')}: {value.strip(' `')}") for name, value in pairs]
    lines: list[tuple[int, str]] = []
    for line in section.all_lines:
        text = re.sub(r"~~[^~]+~~", "", line.text.replace("**", "")).rstrip()
        if line.level or not text.strip() or re.fullmatch(r"[-=_*|: ]{3,}", text.strip()):
            continue
        label = _RX.label.match(text)
        if label and is_explanation(label[1].strip().lower()):
            continue
        if text.strip().startswith("|"):
            cells = [cell.strip(" `") for cell in split_row(text.strip())]
            if len(cells) < 2 or _RX.table_head.fullmatch(cells[0]):  # noqa: PLR2004 - name and value
                continue
            text = f"{cells[0]}: {cells[1]}"
        text = _RX.remark.sub(r"\1", text)
        text = re.sub(r"^(\s*)[*+](?=\s)", r"\1-", _RX.assigned.sub(assigned, text).replace("：", ": "))
        lines.append((line.number, re.sub(r"`", "", text)))
    depth = min((len(text) - len(text.lstrip()) for _, text in lines), default=0)
    return [(number, text[depth:]) for number, text in lines]


def _is_wide(names: list[str], line: list[str], values: list[str]) -> bool:
    has_names = all(re.fullmatch(r"[ `]*[A-Za-z_][\w.-]*[ `]*", name) for name in names)
    is_head = _RX.table_head.fullmatch(names[0]) is not None
    return len(names) == len(values) == len(line) and has_names and not is_head and bool(re.match(r"\W*\d", values[0]))
