"""The programs that a command line or a script runs, without the shell words and wrappers in front of them. Pure.

Text that a shell runs is looked into wherever it is written out: in ``bash -c TEXT``, ``$(…)``, here-documents, pipes
into a shell, variables, aliases, scripts that the command writes. Text that no shell runs is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePath

from mcp_server.command.programs import SHELLS, find_entry, list_assignments, unwrap
from mcp_server.command.shell import REDIRECTS, SimpleCommand, parse
from mcp_server.command.texts import LONGEST, find_run_texts, write_literally
from mcp_server.command.words import Substitution, Word, expand_word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_HEREDOC = re.compile(r"(?<!<)<<(?P<tabs>-?)\s*(?P<quote>['\"]?)\\?(?P<word>[A-Za-z_]\w*)(?P=quote)(?!<)")
_VARIABLE_USE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?-([^${}]*)\}")
_WHOLE_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))")
_READS_VARIABLE = frozenset({"read", "mapfile", "readarray"})
_DEEPEST = 6
_MOST_PROGRAMS = 5000
_LONGEST_VALUE = 4096


@dataclass(frozen=True)
class Program:
    """One program with its arguments. Its name is the last part of its path.

    ``line``: from 1. ``separator``: the operator that ends it. ``before``: the programs whose output it reads, the
    nearest last. ``substituted``: those of ``$(…)`` in its arguments. ``is_last``: nothing follows. ``by_xargs``:
    arguments come from its input. ``code``: the Python text that it runs, where the command holds it. ``wrappers``: the
    words in front of it, such as ``nohup`` and ``watch -n 5``.
    """

    name: str
    words: tuple[str, ...]
    line: int = 1
    separator: str = ""
    before: tuple[tuple[str, ...], ...] = ()
    substituted: tuple[tuple[str, ...], ...] = ()
    variables: tuple[str, ...] = ()
    is_last: bool = False
    by_xargs: bool = False
    code: str = ""
    wrappers: tuple[str, ...] = ()


@dataclass
class _Known:
    """Settings of a command so far: variables, aliases, and files that it wrote, as far as their text is known."""

    variables: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    sources: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)  # whose output a variable holds


def find_programs(command: str | Sequence[str]) -> list[Program]:
    """Return the programs that ``command`` runs, in the order of the text, at most 5,000. A text is read once."""
    return list(_find_cached(command if isinstance(command, str) else tuple(command)))


@functools.lru_cache(maxsize=16)
def _find_cached(command: str | tuple[str, ...]) -> list[Program]:
    return _find(command, _Known(), 0)


def _find(command: str | Sequence[str], known: _Known, depth: int) -> list[Program]:
    if not isinstance(command, str):
        reader = _Reader("", {}, known, depth)
        return reader.read([SimpleCommand(tuple(command))])[:_MOST_PROGRAMS]
    text, bodies = cut_heredocs(command)
    programs = _find_in_text(text, dict(bodies), known, depth)
    for line, body in bodies:
        if depth < _DEEPEST and any(p.line == line and p.name in (*SHELLS, "ssh") for p in programs):
            programs += [replace(p, line=p.line + line, is_last=False) for p in _find(body, known, depth + 1)]
    return programs[:_MOST_PROGRAMS]


def _find_in_text(text: str, bodies: dict[int, str], known: _Known, depth: int) -> list[Program]:
    parsed = parse(text)
    if not parsed.open_quote:
        return _Reader(text, bodies, known, depth).read(parsed.commands)
    # A quote that is never closed, mostly an apostrophe in text: every line that can be parsed counts.
    programs = []
    joined = text.replace("\\\n", "  ")
    for number, line in enumerate(joined.split("\n"), 1):
        if joined.count("\n") and not parse(line).open_quote:
            found = _Reader(line, {}, known, depth).read(parse(line).commands)
            programs += [replace(p, line=number) for p in found]
        if len(programs) > _MOST_PROGRAMS:
            break
    return programs


@dataclass
class _Stage:
    """One simple command as it is read: what is piped into it as text (``stdin``), and the programs before the pipe."""

    simple: SimpleCommand
    stdin: str | None
    before: tuple[tuple[str, ...], ...]
    substituted: tuple[tuple[str, ...], ...]
    is_last: bool


class _Reader:
    def __init__(self, text: str, bodies: dict[int, str], known: _Known, depth: int) -> None:
        self._text, self._bodies, self._known, self._depth = text, bodies, known, depth

    def read(self, commands: Sequence[SimpleCommand]) -> list[Program]:
        return list(islice(self._walk(commands), _MOST_PROGRAMS))

    def _walk(self, commands: Sequence[SimpleCommand]) -> Iterator[Program]:
        before: tuple[tuple[str, ...], ...] = ()
        piped: str | None = None
        for index, simple in enumerate(commands):
            substituted = self._list_substituted(simple)
            if variable := _find_variable(simple.words):
                loop_input = self._find_loop_input(commands[index + 1 :]) if not (substituted or before) else ()
                if source := substituted or before or loop_input:
                    self._known.sources[variable] = source
            used = (name for word in simple.words for name in _VARIABLE_USE.findall(_outside(word)))
            substituted += tuple(words for name in used for words in self._known.sources.get(name, ()))
            is_last = all(set(rest.words) <= {"fi", "done", "esac", "}", "wait"} for rest in commands[index + 1 :])
            stage = _Stage(simple, self._read_input(simple, piped), before, substituted, is_last)
            yield from self._unfold(stage)
            written = self._note(stage)
            is_piped = simple.separator == "|"
            before = (*before, unwrap(simple.words)[0]) if is_piped else ()
            piped = written if is_piped else None

    def _unfold(self, stage: _Stage) -> Iterator[Program]:
        """Yield the program of a simple command, then those of the texts that it has a shell run."""
        simple = stage.simple
        words, variables, by_xargs = self._resolve(simple.words)
        line = self._text.count("\n", 0, simple.start) + 1
        name = PurePath(_outside(words[0]).lstrip("(")).name or words[0] if words else ""  # "." has no name
        if words or variables:
            yield Program(
                name,
                words,
                line,
                simple.separator,
                stage.before,
                stage.substituted,
                variables,
                stage.is_last,
                by_xargs,
                self._find_code(words, stage.stdin or self._bodies.get(line)),
                simple.words[: max(0, len(simple.words) - len(words))],
            )
        if self._depth >= _DEEPEST:
            return
        for part in self._find_parts(simple):
            inner = _find(part.text, self._known, self._depth + 1) if part.opening != "$'" else []
            yield from (replace(p, line=line + p.line - 1, is_last=False) for p in inner)
        literal = tuple(self._expand(word) for word in words)
        if by_xargs and stage.stdin is not None:
            literal = tuple(word.replace("{}", stage.stdin.strip()) for word in literal)
        for text in (*find_run_texts(name, literal, stage.stdin), *self._find_read_files(words)):
            inner = _find(text, self._known, self._depth + 1)
            if by_xargs or name.endswith("awk"):  # what it reads comes into the text
                inner = [replace(p, before=(*stage.before, *p.before), by_xargs=True) for p in inner]
            yield from (replace(p, line=line, is_last=stage.is_last and p.is_last) for p in inner)

    def _resolve(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """Unwrap ``words``. A program named by a variable, an alias or ``$(which NAME)`` gets its name."""
        rest, variables, by_xargs = unwrap(words)
        first = rest[0] if rest else ""
        named: list[str] = []
        if variable := _WHOLE_VARIABLE.fullmatch(first):
            named = self._known.variables.get(variable[1] or variable[2], "").split()
        elif (part := _read_whole(first)) is not None:
            inner = [unwrap(each.words)[0] for each in parse(part.text).commands]
            is_path = len(inner) == 1 and inner[0][:1] in (("which",), ("type",))
            named = list(inner[0][-1:]) if is_path else (self._write(part) or "").split()
        elif first in self._known.aliases:
            named = self._known.aliases[first].split()
        if not named:
            return rest, variables, by_xargs
        rest, more, by_more = unwrap((*named, *rest[1:]))
        return rest, (*variables, *more), by_xargs or by_more

    def _list_substituted(self, simple: SimpleCommand) -> tuple[tuple[str, ...], ...]:
        return tuple(
            unwrap(each.words)[0]
            for part in self._find_parts(simple)
            if part.opening in ("$(", "<(")
            for each in parse(part.text).commands
        )

    def _find_parts(self, simple: SimpleCommand) -> list[Substitution]:
        texts = (*simple.words, *(each.target for each in simple.redirections))
        return [part for text in texts if isinstance(text, Word) for part in text.substitutions]

    def _find_loop_input(self, following: Sequence[SimpleCommand]) -> tuple[tuple[str, ...], ...]:
        """Return the programs whose output a loop reads by ``done < <(…)``."""
        done = next((each for each in following if each.words[0] == "done"), None)
        return self._list_substituted(done) if done else ()

    # --- texts that are written out in the command

    def _expand(self, word: str) -> str:
        """Return ``word`` with what is known of its substitutions and variables in their place."""
        text = expand_word(word, self._write_or_restore)
        text = _WHOLE_VARIABLE.sub(lambda match: self._known.variables.get(match[1] or match[2], match[0]), text)
        text = _DEFAULT.sub(lambda match: self._known.variables.get(match[1]) or match[2], text)
        return text[:LONGEST]

    def _write_or_restore(self, part: Substitution) -> str:
        text = self._write(part)
        return part.raw if text is None else text.rstrip("\n")

    def _write(self, part: Substitution) -> str | None:
        """Return what the programs of a substitution write; None where that is not in their words."""
        if part.opening == "$'":
            return part.text
        if self._depth >= _DEEPEST:
            return None
        text, bodies = cut_heredocs(part.text)
        reader = _Reader(text, dict(bodies), self._known, self._depth + 1)
        written, piped = "", None
        for simple in parse(text).commands:
            output = reader._write_simple(simple, reader._read_input(simple, piped))
            if output is None:
                return None
            piped = output if simple.separator == "|" else None
            written += "" if simple.separator == "|" else output
        return written or None

    def _write_simple(self, simple: SimpleCommand, stdin: str | None) -> str | None:
        words = tuple(self._expand(word) for word in unwrap(simple.words)[0])
        if stdin is None:
            stdin = self._bodies.get(self._text.count("\n", 0, simple.start) + 1)
        return write_literally(words, stdin)

    def _read_input(self, simple: SimpleCommand, piped: str | None) -> str | None:
        """Return the text that a program reads, from a here-string, ``< <(…)``, a file just written, or the pipe."""
        for each in simple.redirections:
            if each.operator == "<<<":
                return self._expand(each.target)
            if each.operator == "<":
                part = _read_whole(each.target)
                return self._write(part) if part else self._read_file(each.target)
        return piped

    def _note(self, stage: _Stage) -> str | None:
        """Keep the variables, aliases and files that a command sets; return what it writes, where that is known."""
        words = unwrap(stage.simple.words)[0]
        is_alias = words[:1] == ("alias",)
        into = self._known.aliases if is_alias else self._known.variables
        for word in words[1:] if is_alias else list_assignments(stage.simple.words):
            match = _ASSIGNMENT.fullmatch(self._expand(word))
            is_array = isinstance(word, Word) and word.is_array
            if match is not None and (is_array or "=(" not in word):
                into[match[1]] = (match[2][1:-1] if is_array else match[2])[:_LONGEST_VALUE]
        written = self._write_simple(stage.simple, stage.stdin)
        targets = [each for each in stage.simple.redirections if each.operator in REDIRECTS]
        paths = [(each.target, each.operator == ">>") for each in targets]
        if words[:1] == ("tee",):
            paths += [(word, "-a" in words) for word in words[1:] if not word.startswith("-")]
        for path, is_added in paths if written is not None else ():
            kept = self._known.files.get(_normalise(path), "") if is_added else ""
            self._known.files[_normalise(path)] = (kept + (written or ""))[:LONGEST]
        return None if targets else written

    def _read_file(self, word: str) -> str | None:
        return self._known.files.get(_normalise(word))

    def _find_read_files(self, words: Sequence[str]) -> list[str]:
        """Return the text of the script that a shell reads and the command itself wrote, or writes by ``<(…)``."""
        entry = find_entry(words)
        scripts = words[:1] if entry is None else [entry.value] if entry.is_shell and entry.kind == "script" else []
        return [text for script in scripts if (text := self._read_script(script)) is not None]

    def _read_script(self, word: str) -> str | None:
        if (part := _read_whole(word)) is not None:
            return self._write(part) if part.opening == "<(" else None
        return self._read_file(word)

    def _find_code(self, words: Sequence[str], stdin: str | None) -> str:
        entry = find_entry(words)
        if entry is None or entry.is_shell or entry.kind == "module":
            return ""
        if entry.kind == "code":
            return self._expand(entry.value)
        return (stdin if entry.kind == "input" else self._read_script(entry.value)) or ""


def _read_whole(word: str) -> Substitution | None:
    """Return the substitution that a word is, alone or in double quotes."""
    parts = word.substitutions if isinstance(word, Word) else []
    return parts[0] if len(parts) == 1 and not _outside(word) else None


def _outside(word: str) -> str:
    return expand_word(word, lambda _: "")


def _normalise(path: str) -> str:
    return str(PurePath(path))


def _find_variable(words: Sequence[str]) -> str:
    """Return the variable that takes the output of a program: ``NAME=$(…)``, ``for NAME in $(…)``, ``read NAME``."""
    if words[0] == "for":
        return "".join(words[1:2])
    if (assigned := _ASSIGNMENT.fullmatch(words[-1])) is not None and _outside(words[-1]) != words[-1]:
        return assigned[1]
    return words[-1] if not _READS_VARIABLE.isdisjoint(words[:2]) else ""


def cut_heredocs(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return ``text`` with the bodies of here-documents emptied, and each body with the number of its first line's."""
    if "<<" not in text:
        return text, []
    lines, bodies = text.split("\n"), []
    index = 0
    while index < len(lines):
        begun = index
        for match in list(_HEREDOC.finditer(lines[begun])):
            end = next(
                (at for at in range(index + 1, len(lines)) if _ends(lines[at], match["word"], match["tabs"])), None
            )
            if end is None:
                break
            bodies.append((begun + 1, "\n".join(lines[index + 1 : end])))
            lines[index + 1 : end + 1] = [""] * (end - index)
            index = end
        lines[begun] = _HEREDOC.sub(" ", lines[begun]) if index > begun else lines[begun]
        index += 1
    return "\n".join(lines), bodies


def _ends(line: str, word: str, tabs: str) -> bool:
    return (line.lstrip("\t") if tabs else line) == word
