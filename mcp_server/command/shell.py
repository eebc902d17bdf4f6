"""One parsed shell command: its words, programs, redirections and options. Pure.

The parser follows bash as far as a reader needs it: quotes, backslashes, comments, operators, substitutions. It expands
nothing: ``$(…)``, backquotes, ``${…}`` and ``<(…)`` are part of the word that they stand in. Where one is not closed,
its parentheses are operators, and what follows them is not certain.
"""

from __future__ import annotations

import functools
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from mcp_server.command.programs import LOG_VIEWERS, PAUSES, PREPARES, PYTHON, REPORTS, SETTINGS, SHELL_BUILTINS, unwrap
from mcp_server.command.words import Piece, Word, find_end, join_pieces, split_inside, split_part, split_plain
from mcp_server.text.regex import compile_lazily

_SKIPPED = compile_lazily(r"(?P<blank>(?:[ \t\r]|\\\n)+)|\#[^\n]*")
_OPERATOR = compile_lazily(r"&&|\|\||;;|\|&|&>>|&>|<<<|<<-|<<|<\(|<&|<>|>>|>\(|>&|>\||[;&|()<>\n]")
# The parts of a word: one that holds no other, and the beginning of one that may hold blanks, quotes and operators.
_PLAIN = compile_lazily(r"""(?:[^ \t\r\n'"\\;&|()<>$`]+|\$'(?:[^'\\]|\\.)*'|\$(?![({])|\\.|'[^']*')+""", re.DOTALL)
_OPENING = compile_lazily(r'"|`|\$\(|\$\{|[<>]\(')
_DOUBLE_QUOTED = compile_lazily(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ASSIGNMENT = compile_lazily(r"[A-Za-z_]\w*\+?=")
# Words in front of a program that leave the meaning of its arguments alone.
_PREFIXES = frozenset({"exec", "nohup", "time", "env", "command"})
# Text that a shell, or runward itself, replaces; several paths in one word; a path on another machine.
_REPLACED = compile_lazily(r"[$`*?\[\]{}<>|;&,:\s]|^~[^/]|^-$")
_DISCARDS = ("/dev/null", "/dev/stdout", "/dev/stderr")
_LONGEST_PATH = 4096  # PATH_MAX
_NAMED_VALUE = compile_lazily(r"[+~]*(?:--?)?([A-Za-z][\w.\-/@]*)=(.*)", re.DOTALL)
_JOINS = ("|", "|&", "&&", "||")
# What may stand in the foreground where the training itself is in the background.
_BESIDE = REPORTS | SETTINGS | PAUSES | LOG_VIEWERS | {"exit", "cd", "kill", "source", ".", "tail"}
_HELPERS = PREPARES | {"grep", "egrep", "awk", "cat"}  # their flags are no settings
_FLAG = compile_lazily(r"--?[A-Za-z][\w.\-]*")
_NUMBER = compile_lazily(r"-[\d.]\S*")


@dataclass(frozen=True)
class Token:
    """A word or an operator. ``text``: a word without its quotes. ``raw``: as written, from ``start`` on."""

    text: str  # a Word where it has substitutions
    raw: str
    start: int
    is_operator: bool = False


# The operators that write to a file.
REDIRECTS = (">", ">>", ">|", "&>", "&>>")


@dataclass(frozen=True)
class Redirection:
    """An operator such as ``>`` or ``>&``, the word after it, and the number in front, empty without one."""

    operator: str
    target: str
    descriptor: str = ""


@dataclass(frozen=True)
class SimpleCommand:
    """One program with its arguments.

    ``separator`` is the operator that ends it, empty at the end of the line. ``is_certain`` is false from the first
    parenthesis or here-document on: what follows can be text, a function or a subshell. ``start`` is where it begins.
    ``base``: the directory that it runs in, by ``cd`` words from that of the command; None where that is not certain.
    """

    words: tuple[str, ...]
    redirections: tuple[Redirection, ...] = ()
    separator: str = ""
    is_certain: bool = True
    start: int = field(default=0, compare=False)
    base: tuple[str, ...] | None = field(default=(), compare=False)

    def find_directory(self, cwd: str) -> str | None:
        """Return the directory it runs in, where the command begins in ``cwd``; None where that is not certain."""
        if not self.base:
            return None if self.base is None else cwd
        return os.path.normpath(os.path.join(cwd, *map(os.path.expanduser, self.base)))  # noqa: PTH118 - a text

    @property
    def program_words(self) -> tuple[str, ...]:
        """The program and its arguments, without assignments and without prefixes such as ``nohup``."""
        for index, word in enumerate(self.words):
            if not _ASSIGNMENT.match(word) and word not in _PREFIXES:
                return self.words[index:]
        return ()

    @property
    def written_files(self) -> list[str]:
        """The files into which its output is redirected."""
        files = [each.target for each in self.redirections if each.operator in REDIRECTS]
        return [file for file in files if file not in _DISCARDS]

    @property
    def program(self) -> str:
        """The program as written, or empty for assignments alone."""
        return next(iter(self.program_words), "")


@dataclass(frozen=True)
class ReadCommand:
    """A command line with all that its readers need.

    ``open_quote`` is the quote, or backslash, that nothing closes: then the line has no tokens and no commands.
    ``comments``: where each begins.
    """

    source: str | tuple[str, ...]
    tokens: tuple[Token, ...] = ()
    commands: tuple[SimpleCommand, ...] = ()
    open_quote: str = ""
    comments: tuple[int, ...] = ()

    @property
    def words(self) -> list[str]:
        """All words without quotes, operators left out. Split at blanks where a quote is open."""
        if self.open_quote and isinstance(self.source, str):
            return self.source.split()
        return [token.text for token in self.tokens if not token.is_operator]

    @property
    def is_one_program(self) -> bool:
        """Whether ``exec`` can be put in front: then the program's exit status and signal reach the supervisor."""
        if not isinstance(self.source, str):
            return True
        if self.comments or not self.tokens or self.tokens[0].is_operator:
            return False
        if "\n" in self.source and any("\n" in token.raw or token.raw.startswith("<<") for token in self.tokens):
            return False  # a line that goes on behind a backslash is one
        if any("$'" in token.raw or (token.is_operator and set(token.raw) & set(";&|()")) for token in self.tokens):
            return False
        first = self.tokens[0].text
        return bool(re.fullmatch(r"[\w./~+-]+", first)) and first not in SHELL_BUILTINS

    @property
    def is_one_python(self) -> bool:
        """Whether it is one Python program, which chooses the exit code itself: no shell or launcher passes it on."""
        return self.is_one_program and bool(self.words) and PYTHON.fullmatch(PurePath(self.words[0]).name) is not None

    @property
    def ends_in_background(self) -> bool:
        """Whether the last operator is ``&``: a shell does not wait for the last program."""
        last = next((token for token in reversed(self.tokens) if token.raw != "\n"), None)
        return last is not None and last.is_operator and last.raw == "&"

    def count_word(self, word: str) -> int:
        """Return how often ``word`` is a word of its own, outside quotes."""
        return sum(token.raw == word for token in self.tokens)

    def split_options(self) -> tuple[dict[str, str], list[str]]:
        """Return the last value of ``--name value``, ``--flag`` (``true``) and ``name=value``, and other tokens.

        Flags of ``mkdir``, ``tee`` and the like, which prepare or pass on text, are such tokens.
        """
        options, rest = self.split_tokens()
        return options, [token.text for token in rest]

    def split_tokens(self) -> tuple[dict[str, str], list[Token]]:
        """Return the same, the other tokens with their places."""
        tokens = [Token(word, word, 0) for word in self.words] if self.open_quote else self.tokens
        options: dict[str, str] = {}
        rest: list[Token] = []
        flag = ""  # the flag in front, which the next word can be the value of
        starts = [simple.start for simple in self.commands]
        for token in tokens:
            text, is_operator = token.text, token.is_operator
            if text == "\n":
                continue
            is_value = bool(flag) and not is_operator and (not text.startswith("-") or bool(_NUMBER.fullmatch(text)))
            if is_value:
                options[flag] = text
            flag = ""
            if is_operator:
                rest.append(token)
            elif match := _NAMED_VALUE.fullmatch(text):
                options[match[1]] = match[2]
            elif _FLAG.fullmatch(text) and not self._is_of_helper(bisect_right(starts, token.start) - 1):
                flag = text.lstrip("-")
                options[flag] = "true"
            elif not is_value:
                rest.append(token)
        return options, rest

    def _is_of_helper(self, index: int) -> bool:
        if index < 0 or len(self.commands) == 1:
            return False
        return not _HELPERS.isdisjoint(unwrap(self.commands[index].words)[0][:1])


def join_as_written(tokens: Sequence[Token]) -> str:
    """Return the texts of tokens, an operator without a space where none was written: ``2>&1``."""
    text, last = "", None
    for token in tokens:
        is_close = last is not None and token.start == last.start + len(last.raw)
        glued = last is None or (is_close and (token.is_operator or last.is_operator))
        text, last = f"{text}{'' if glued else ' '}{token.text}", token
    return text


def parse(command: str | Sequence[str]) -> ReadCommand:
    """Return ``command`` parsed, once a process: a string as bash reads it, a list as the words of one program."""
    if isinstance(command, str):
        return _parse_text(command)
    words = tuple(command)
    simple = (SimpleCommand(words),) if words else ()
    return ReadCommand(words, tuple(Token(word, word, 0) for word in words), simple)


@functools.lru_cache(maxsize=16)
def _parse_text(command: str) -> ReadCommand:
    tokens: list[Token] = []
    comments: list[int] = []
    words = _WordReader(command)
    at = 0
    while at < len(command):
        start = at
        if skipped := _SKIPPED.match(command, at):
            at = skipped.end()
            comments += [start] if skipped["blank"] is None else []
        elif (word := words.read(at)).raw:
            at += len(word.raw)
            tokens.append(word)
        elif operator := _OPERATOR.match(command, at):
            at = operator.end()
            tokens.append(Token(operator[0], operator[0], start, is_operator=True))
        if at == start or words.open_quote:
            return ReadCommand(command, open_quote=words.open_quote or command[at])
    commands = _place_commands(_split_commands(_join_arrays(command, tokens)))
    return ReadCommand(command, tuple(tokens), tuple(commands), comments=tuple(comments))


class _WordReader:
    """Reads the words of a text, from left to right. ``open_quote``: the quote in a word that nothing closes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._unclosed: set[str] = set()  # openings that nothing closes, so that a text is not searched again for each
        self.open_quote = ""

    def read(self, start: int) -> Token:
        """Return the word that begins at ``start``; without ``raw`` where none does."""
        pieces: list[Piece] = []
        at = start
        while not self.open_quote:
            if plain := _PLAIN.match(self._text, at):
                part = plain[0]
                pieces += split_plain(part) if "'" in part or "\\" in part else (part,)
                end = plain.end()
            elif opening := _OPENING.match(self._text, at):
                end = self._read_nested(opening[0], at)
                pieces += split_part(opening[0], self._text[at:end])
            else:
                end = at
            if end == at:
                break
            at = end
        return Token(join_pieces(pieces), self._text[start:at], start)

    def _read_nested(self, opening: str, start: int) -> int:
        """Return where the part ends that begins with ``opening``; ``start`` where that is an operator."""
        if opening not in self._unclosed:
            if (end := find_end(self._text, opening, start)) is not None:
                return end
            self._unclosed.add(opening)
        if opening == '"':
            if quoted := _DOUBLE_QUOTED.match(self._text, start):
                return quoted.end()
            self.open_quote = opening
        return start if opening[0] in "<>" else start + 1


def leave_out_helpers(command: str | list[str]) -> str | list[str]:
    """Return a command without what it starts in the background; ``python train.py & wait`` stays as it is."""
    if not isinstance(command, str):
        return command
    groups: list[list[SimpleCommand]] = [[]]
    for simple in parse(command).commands:
        groups[-1].append(simple)
        if simple.separator not in _JOINS:
            groups.append([])
    groups = [group for group in groups if group]
    kept = [group for group in groups if group[-1].separator != "&"]
    if not any(simple.program not in _BESIDE and simple.program for group in kept for simple in group):
        return command
    ends = [group[0].start for group in groups[1:]] + [len(command)]
    parts = (
        command[group[0].start : end]
        for group, end in zip(groups, ends)
        if group[-1].separator != "&" or end == ends[-1]
    )
    return command[: groups[0][0].start] + "".join(parts)


def name_helpers(command: str | list[str]) -> list[str]:
    """Return the programs that a command starts in the background beside its last one."""
    kept = parse(leave_out_helpers(command)).commands
    programs = [simple.program.rpartition("/")[2] for simple in parse(command).commands]
    for simple in kept:
        programs.remove(simple.program.rpartition("/")[2])
    return [program for program in dict.fromkeys(programs) if program not in ("", "cd", "tee", "export")]


def find_directory(command: str | Sequence[str], cwd: str) -> str:
    """Return where the last program of a command works: its relative paths are those of there."""
    last = next(reversed(parse(command).commands), None)
    return (last.find_directory(cwd) if last is not None else None) or cwd


def is_literal(word: str) -> bool:
    """Return whether a word is a path that means itself: nothing in it is expanded or replaced."""
    return not _REPLACED.search(word) and len(word) < _LONGEST_PATH


def _join_arrays(source: str, tokens: Sequence[Token]) -> Sequence[Token]:
    """Return the tokens of ``source`` in which an array such as ``NAME=(a b)`` is one word."""
    if "=(" not in source:
        return tokens
    joined, end = list[Token](), 0
    for token, after in zip(tokens, [*tokens[1:], None]):
        if token.start < end:
            continue
        array_end: int | None = None
        if after is not None and after.raw == "(" and token.raw[-1] == "=" and _ASSIGNMENT.fullmatch(token.raw):
            array_end = find_end(source, "(", after.start)
        if array_end is not None:
            end = array_end
            raw = source[token.start : end]
            token = Token(word := Word.of(split_inside(raw)), raw, token.start)  # noqa: PLW2901 - it takes its place
            word.is_array = True
        joined.append(token)
    return joined


def _split_commands(tokens: Sequence[Token]) -> Iterator[SimpleCommand]:
    """Yield the programs of a line in order; a redirection without a program is left out."""
    words: list[str] = []
    redirections: list[Redirection] = []
    is_certain, redirects, descriptor, start = True, "", "", 0
    following = [*tokens[1:], None]
    for token, after in zip(tokens, following):
        if not token.is_operator:
            if redirects:
                redirections.append(Redirection(redirects, token.text, descriptor))
                descriptor = ""
            elif _is_descriptor(token, after):
                descriptor = token.raw
            else:
                start = start if words else token.start
                words.append(token.text)
            redirects = ""
        elif "<" in token.raw or ">" in token.raw:
            is_certain = is_certain and token.raw not in ("<<", "<<-", "<<<", "<(", ">(")
            redirects = token.raw
        else:
            if words:
                yield SimpleCommand(tuple(words), tuple(redirections), token.raw, is_certain, start)
            is_certain = is_certain and token.raw not in "()"
            words, redirections, redirects = [], [], ""
    if words:
        yield SimpleCommand(tuple(words), tuple(redirections), "", is_certain, start)


def _place_commands(commands: Iterable[SimpleCommand]) -> Iterator[SimpleCommand]:
    base: tuple[str, ...] | None = ()
    for simple in commands:
        yield replace(simple, base=base) if base != () else simple
        words = simple.program_words
        if simple.program in ("cd", "pushd", "popd"):
            is_known = simple.is_certain and len(words) == 2 and words[0] == "cd" and is_literal(words[1])  # noqa: PLR2004 - cd DIR
            is_known = is_known and (base is not None or words[1].startswith("/"))
            base = (*(base or ()), words[1]) if is_known else None


def _is_descriptor(token: Token, after: Token | None) -> bool:
    """Return whether a word is the file descriptor of the redirection right after it, as in ``2>``."""
    return (
        token.raw.isdigit()
        and after is not None
        and after.is_operator
        and after.raw[0] in "<>"
        and after.start == token.start + len(token.raw)
    )
