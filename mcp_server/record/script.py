"""The script with which bash runs an attempt of a run, and the name of a command. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from mcp_server.command.outputs import RUN_NAMES
from mcp_server.command.programs import SHELLS, find_entry
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.record.spec import RunSpec
from mcp_server.text.regex import compile_lazily

LONGEST_NAME = 64
PARAMS, RUN_ID, ATTEMPT = "{params}", "{run_id}", "{attempt}"
_POSITIONAL = compile_lazily(r"\$(?:[@*1-9]|\{[@*1-9])")
_NO_PARAMS: Mapping[str, object] = {}
# Text in another language than the shell's, in which braces are that language's: the argument of `python -c`, a
# here-document that Python reads, a filter of jq.
_LANGUAGES = r"\b(?:i?python[\d.]*|node|perl|ruby|julia|Rscript|lua|php)\b"
_QUOTED = r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+"""
_FOREIGN_TEXT = compile_lazily(
    rf"""{_LANGUAGES}[^\n;&|]*?<<-?[ \t]*['"]?(?P<end>\w+)['"]?[^\n]*\n.*?^[ \t]*(?P=end)[ \t]*$"""
    rf"""|{_LANGUAGES}(?:[ \t]+-[\w=.]+)*?[ \t]+-[A-Za-z]*[ce][ \t]+{_QUOTED}"""
    rf"""|\b(?:jq|[gm]?awk)\b[^\n;&|'"]*{_QUOTED}""",
    re.DOTALL | re.MULTILINE,
)
_PLAIN_NAME = compile_lazily(r"(?!(?:true|false|none|null)$)[A-Za-z][\w.-]{1,63}", re.IGNORECASE)


@dataclass(frozen=True)
class AttemptInputs:
    """An attempt's settings in addition to its run's spec.

    ``params`` are all parameters of the attempt; where ``resumes`` is true, the spec's ``resume_args`` follow them.
    ``environment`` holds the variables that retries changed. ``placeholders`` maps a text such as ``{gpus}`` or
    ``{run_id}`` to the text that replaces it in environment, arguments and command; the replacement must need no shell
    quotes.
    """

    params: Mapping[str, object]
    resumes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    placeholders: Mapping[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """Return ``text`` with all placeholders replaced."""
        for placeholder, replacement in self.placeholders.items():
            if placeholder in text:  # `${gpus}` is a variable of the shell, `{{run_id}}` a program's own template
                text = replacement.join(re.split(rf"(?<![${{]){re.escape(placeholder)}", text))
        return text

    def fill_words(self, command: str | list[str]) -> str | list[str]:
        """Return a command, or its words, with all placeholders replaced."""
        return self.fill(command) if isinstance(command, str) else [self.fill(word) for word in command]

    def fill_command(self, text: str, *, is_template: bool) -> str:
        """Return a command with all placeholders replaced.

        ``{run_id}`` and ``{attempt}`` can be a program's own in text of another language (an f-string in the text of
        ``python -c``), and as ``{{run_id}}``: there they stay, unless the command is a template, as a sweep's is.
        """
        if is_template or not any(name in text for name in (RUN_ID, ATTEMPT)):
            return self.fill(text)
        gpus = AttemptInputs(
            {}, placeholders={p: t for p, t in self.placeholders.items() if p not in (RUN_ID, ATTEMPT)}
        )
        parts = ((gpus.fill(part), is_foreign) for part, is_foreign in _split_foreign(text))
        return "".join(part if is_foreign else self.fill(part) for part, is_foreign in parts)


def _split_foreign(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a command, and of each whether it is text of another language than the shell's."""
    end = 0
    for match in _FOREIGN_TEXT.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def name_attempt(run_id: str, attempt: int) -> dict[str, str]:
    """Return the placeholders that stand for a run and its attempt, with the texts that replace them."""
    return {RUN_ID: run_id, ATTEMPT: str(attempt)}


def render(spec: RunSpec, inputs: AttemptInputs | None = None) -> str:
    """Return the script of an attempt, by default that of the first attempt before it has GPUs.

    The supervisor passes the arguments of the attempt to the script. A person may run it by hand as well: without
    arguments it uses the same ones.
    """
    inputs = inputs or AttemptInputs(spec.params)
    environment = {**spec.env, **inputs.environment}
    lines = ["#!/usr/bin/env bash", "set -o pipefail"]
    lines += [inputs.fill(f"export {name}={shlex.quote(value)}") for name, value in sorted(environment.items())]
    lines.append(f"cd -- {shlex.quote(spec.cwd)} || exit")
    lines += [f"# {name}: a secret, handed over in memory" for name in spec.secrets]
    if spec.params or (inputs.resumes and spec.resume_args):
        words = shlex.join(attempt_arguments(spec, inputs))
        lines.append(f'[ $# -gt 0 ] || [ "${{RUNWARD_ATTEMPT-}}" ] || set -- {words}')
    return "\n".join([*lines, inputs.fill_command(_command_line(spec), is_template=bool(spec.sweep))]) + "\n"


def command_text(spec: RunSpec, inputs: AttemptInputs | None = None) -> str:
    """Return the command of an attempt with its arguments, by default of the first, as a person would type it."""
    inputs = inputs or AttemptInputs(spec.params)
    words = attempt_arguments(spec, inputs)
    if isinstance(spec.command, list):
        has_place = PARAMS in spec.command
        command = [one for word in spec.command for one in (words if word == PARAMS else [word])]
        text = shlex.join(command + ([] if has_place else words))
    else:
        text, arguments = spec.command, shlex.join(words)
        if parse(text).count_word(PARAMS):
            text = text.replace(PARAMS, arguments)
        elif arguments:
            text = f"{text} {arguments}"
    return inputs.fill_command(text, is_template=bool(spec.sweep))


def attempt_arguments(spec: RunSpec, inputs: AttemptInputs) -> list[str]:
    """Return the arguments that the script of an attempt is called with: its parameters, then ``resume_args``."""
    words = format_arguments(inputs.params, spec.param_style, spec.resume_args if inputs.resumes else ())
    return [inputs.fill(word) for word in words]


def format_arguments(params: Mapping[str, object], style: str, extra: Sequence[str] = ()) -> list[str]:
    """Return parameters as words of a command line, in the style ``--k v`` or ``k=v``, followed by ``extra``.

    In the style ``--k v``, a parameter that is true becomes a flag; one that is false or None is left out.
    """
    words: list[str] = []
    for name, value in params.items():
        if style == "k=v":
            words.append(f"{name}={write_value(value)}")
        elif value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", write_value(value)]
    return [*words, *extra]


def write_value(value: object) -> str:
    """Return a parameter's value as a command has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _command_line(spec: RunSpec) -> str:
    """Return the line, or the lines, of the script that run the command with ``"$@"``."""
    command, parsed = spec.command, parse(spec.command)
    # Without {params} in the command the arguments follow it.
    end = ' "$@"' if (spec.params or spec.resume_args) and not parsed.count_word(PARAMS) else ""
    if isinstance(command, list):
        dashes = "-- " if command[0].startswith("-") else ""
        words = " ".join('"$@"' if word == PARAMS else shlex.quote(word) for word in command)
        return f"exec {dashes}{words}{end}"
    line = f"exec {command}" if parsed.is_one_program else command
    return (line.replace(PARAMS, '"$@"') if takes_arguments(parsed) else line) + end


def takes_arguments(command: ReadCommand) -> bool:
    """Return whether the command has a position for arguments: at ``{params}``, or at the end of one program's line.

    ``{params}`` counts only as a word of its own outside quotes, since it is replaced by several words.
    """
    source = [command.source] if isinstance(command.source, str) else command.source
    if mentions := sum(word.count(PARAMS) for word in source):
        return mentions == command.count_word(PARAMS)
    return command.is_one_program and not _is_shell_text(command)


def _is_shell_text(command: ReadCommand) -> bool:
    """Return whether the program is a text for a shell that passes no arguments on: ``bash -c 'python t.py'``."""
    words = command.commands[0].words if command.commands else ()
    entries = (find_entry(words, at) for at, word in enumerate(words) if PurePath(word).name in SHELLS)
    text = next((entry.value for entry in entries if entry and entry.kind == "code"), "$1")
    return _POSITIONAL.search(text) is None


def name_of(command: ReadCommand, params: Mapping[str, object] = _NO_PARAMS) -> str:
    """Return a label for a command: its own name of the experiment, its script, its module, else its first program."""
    settings = {**command.split_options()[0], **params}
    for key in RUN_NAMES:
        for setting, value in settings.items():
            is_named = setting.rpartition(".")[2].lower().replace("-", "_") == key
            if is_named and isinstance(value, str) and _PLAIN_NAME.fullmatch(value):
                return value
    words = command.words
    for before, word in zip(["", *words], words):
        if word.endswith((".py", ".sh")):
            return PurePath(word).stem
        if before == "-m":
            return word.rpartition(".")[2]
    programs = (PurePath(word).name for word in words if "=" not in word)
    return next(filter(None, programs), "run")


def slug(name: str) -> str:
    """Return ``name`` as a label that tmux and file systems accept: letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:LONGEST_NAME] or "run"
