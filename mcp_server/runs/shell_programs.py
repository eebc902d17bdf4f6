"""The programs that a command line or a script runs, without the shell words and wrappers in front of them. Pure.

``bash -c TEXT``, ``eval``, ``trap``, ``$(…)`` and here-documents of a shell are looked into. Text that no shell runs is
not: comments, the arguments of ``echo`` or ``grep``, and here-documents of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from mcp_server.text.shell import SimpleCommand, parse
from mcp_server.text.ssh_command import parse_ssh

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
# Their arguments are text, whatever they say.
TEXT_PROGRAMS = frozenset(
    """echo printf grep egrep fgrep rg ag sed awk gawk man which type whereis help cat less head tail tee logger wall
    notify-send git cowsay read test [ [[ export declare local alias unset pip conda apt apt-get yum dnf brew wandb
    ls find cp mv touch mkdir rm chmod vim nano diff wc sort uniq tr cut""".split()  # noqa: SIM905 - a list of words
)
_KEYWORDS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "!", "{", "}", "time", "coproc", "&&"})
_NO_PROGRAM = frozenset({"for", "select", "case", "in", "esac", "done", "fi"})
# By wrapper: its options that take a value, and how many words of its own follow them.
_WRAPPERS: dict[str, tuple[tuple[str, ...], int]] = {
    "nohup": ((), 0),
    "exec": (("-a",), 0),
    "command": ((), 0),
    "builtin": ((), 0),
    "busybox": ((), 0),
    "env": (("-u", "-C", "--unset", "--chdir"), 0),
    "sudo": (("-u", "-g", "-h", "-p", "-C", "-D", "-r", "-t", "-U", "--user", "--group"), 0),
    "doas": (("-u", "-C"), 0),
    "setsid": ((), 0),
    "timeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "gtimeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "-n", "-p"), 0),
    "stdbuf": (("-i", "-o", "-e"), 0),
    "taskset": ((), 1),
    "numactl": (("-m", "-N", "-C", "-i", "-p"), 0),
    "chrt": ((), 1),
    "time": (("-f", "-o"), 0),
    "unbuffer": ((), 0),
    "xvfb-run": (("-n", "-s", "-e"), 0),
    "catchsegv": ((), 0),
    "xargs": (("-n", "-I", "-P", "-L", "-d", "-a", "-s", "-E"), 0),
    "watch": (("-n", "--interval"), 0),
    "parallel": (("-j", "--jobs", "-a", "--arg-file", "-N", "--delay", "--joblog", "-S", "--sshlogin"), 0),
}
# These start another program of the same line, after options of their own that are too many to list.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "srun", "pdsh", "clush", "parallel-ssh", "pssh"})
_RUNNERS = frozenset({"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi", "hatch", "rye", "pdm"})  # `run`
_STARTED = TEXT_PROGRAMS | SHELLS | frozenset({"python", "python3", "ray", "env", "pkill", "killall", "kill", "fuser"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_HEREDOC = re.compile(r"(?<!<)<<(?P<tabs>-?)\s*(?P<quote>['\"]?)\\?(?P<word>[A-Za-z_]\w*)(?P=quote)(?!<)")
# Comments and what quotes keep stay as they are.
_BACKQUOTED = re.compile(
    r"(?P<kept>\\.|'[^']*'|(?:^|(?<=\s))\#[^\n]*)|(?P<double>\"(?:[^\"\\]|\\.)*\")|`(?P<text>[^`]*)`"
)
_SUBSTITUTION = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)|`([^`]*)`")
_VARIABLE_USE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_DEEPEST = 4
_MOST_PROGRAMS = 5000


@dataclass(frozen=True)
class Program:
    """One program with its arguments. Its name is the last part of its path.

    ``line``: the number of its line, from 1. ``separator``: the operator that ends it. ``before``: the programs whose
    output it reads through pipes, the nearest last. ``substituted``: the programs of ``$(…)`` in its arguments.
    ``is_last``: nothing follows it. ``by_xargs``: its arguments are read from its input.
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


def find_programs(command: str | Sequence[str], depth: int = 0) -> list[Program]:
    """Return the programs that ``command`` runs, in the order of the text, at most 5,000."""
    if not isinstance(command, str):
        simple = SimpleCommand(tuple(command))
        return list(_unfold(simple, "", (), (), is_last=True, depth=depth))[:_MOST_PROGRAMS]
    text, bodies = cut_heredocs(_replace_backquotes(command))
    programs = _find_in_text(text, depth)
    for line, body in bodies:
        if depth < _DEEPEST and any(p.line == line and p.name in (*SHELLS, "ssh") for p in programs):
            programs += [replace(p, line=p.line + line, is_last=False) for p in find_programs(body, depth + 1)]
    return programs[:_MOST_PROGRAMS]


def _replace_backquotes(text: str) -> str:
    """Return ``text`` with ``$(…)`` instead of backquotes, which mean the same."""
    if "`" not in text:
        return text

    def replace_one(match: re.Match[str]) -> str:
        if match["text"] is not None:
            return f"$({match['text']})"
        return match["kept"] or re.sub(r"(?<!\\)`([^`]*)`", r"$(\1)", match["double"])

    return _BACKQUOTED.sub(replace_one, text)


def _find_in_text(text: str, depth: int) -> list[Program]:
    parsed = parse(text)
    if not parsed.open_quote:
        return list(_walk(parsed.commands, text, depth))
    # A quote that is never closed, mostly an apostrophe in text: every line that can be parsed counts.
    programs = []
    joined = text.replace("\\\n", "  ")
    for number, line in enumerate(joined.split("\n"), 1):
        if joined.count("\n") and not parse(line).open_quote:
            programs += [replace(p, line=number) for p in _walk(parse(line).commands, line, depth)]
    return programs


def _walk(commands: Sequence[SimpleCommand], text: str, depth: int) -> Iterator[Program]:
    pipeline: tuple[tuple[str, ...], ...] = ()
    in_array = False
    sources: dict[str, tuple[tuple[str, ...], ...]] = {}  # by variable: the programs whose output it holds
    for index, simple in enumerate(commands):
        if in_array:  # NAME=(…): words, not a program
            in_array = simple.separator != ")"
            continue
        if simple.separator == "(" and _ARRAY.fullmatch(simple.words[-1]):
            in_array = True
        substituted: list[tuple[str, ...]] = []
        if (simple.separator == "(" and simple.words[-1].endswith("$")) or simple.separator == "<(":
            for inner in commands[index + 1 :]:
                substituted.append(_unwrap(inner.words)[0])
                if inner.separator == ")":
                    break
        if (variable := _find_variable(simple.words)) and (source := tuple(substituted) or pipeline):
            sources[variable] = source
        used = (name for word in simple.words for name in _VARIABLE_USE.findall(word))
        substituted += [words for name in used for words in sources.get(name, ())]
        is_last = all(set(rest.words) <= {"fi", "done", "esac", "}", "wait"} for rest in commands[index + 1 :])
        yield from _unfold(simple, text, pipeline, tuple(substituted), is_last=is_last, depth=depth)
        pipeline = (*pipeline, _unwrap(simple.words)[0]) if simple.separator == "|" else ()


def _find_variable(words: Sequence[str]) -> str:
    """Return the variable that takes the output of a program: ``NAME=$(…)``, ``for NAME in $(…)``, ``read NAME``."""
    if words[0] == "for":
        return "".join(words[1:2])
    if words[-1].endswith("=$") and _ARRAY.fullmatch(words[-1][:-1]):
        return words[-1][:-2]
    return words[-1] if "read" in words[:2] else ""


def _unfold(
    simple: SimpleCommand,
    text: str,
    before: tuple[tuple[str, ...], ...],
    substituted: tuple[tuple[str, ...], ...],
    *,
    is_last: bool,
    depth: int,
) -> Iterator[Program]:
    """Yield the program of a simple command, then those of the text that it has a shell run."""
    words, variables, by_xargs = _unwrap(simple.words)
    line = text.count("\n", 0, simple.start) + 1
    quoted = [match[1] or match[2] or "" for word in simple.words for match in _SUBSTITUTION.finditer(word)]
    substitutes = tuple(_unwrap(part.words)[0] for each in quoted for part in parse(each).commands)
    name = PurePath(words[0].lstrip("`(")).name or words[0] if words else ""  # "." has no name
    if words or variables:
        yield Program(
            name, words, line, simple.separator, before, (*substituted, *substitutes), variables, is_last, by_xargs
        )
    if depth >= _DEEPEST:
        return
    # In single quotes a substitution is text: those are not distinguished here, so only a program that runs its words
    # as a command is looked into.
    inner = [] if name in TEXT_PROGRAMS else _find_run_texts(name, words, before)
    for each in inner:
        yield from (replace(p, line=line, is_last=is_last and p.is_last) for p in find_programs(each, depth + 1))


def _find_run_texts(name: str, words: Sequence[str], before: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts that a program runs as commands. ``before``: the programs whose output it reads."""
    texts = [words[at] for at in _find_shell_texts(words)]
    if name == "eval":
        texts.append(" ".join(words[1:]))
    elif name == "trap" and words[2:]:
        texts.append(words[1])
    elif name == "su" and "-c" in words[:-1]:
        texts.append(words[words.index("-c") + 1])
    elif name == "sbatch":
        texts += [
            text.partition("=")[2] or after
            for text, after in zip(words, (*words[1:], ""), strict=True)
            if text.partition("=")[0] == "--wrap"
        ]
    elif name in SHELLS and not words[1:]:
        texts += [" ".join(source[1:]) for source in before[-1:] if source and source[0] in ("echo", "printf")]
    elif (remote := parse_ssh(words)) is not None:
        texts.append(remote.text)
    return texts


def _find_shell_texts(words: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the texts that ``bash -c`` and its like run, wherever they are in ``words``."""
    for index, word in enumerate(words):
        if PurePath(word).name not in SHELLS:
            continue
        for at in range(index + 1, len(words) - 1):
            if not words[at].startswith(("-", "+")) and words[at - 1] not in ("-o", "+o", "-O"):
                break
            if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", words[at]):
                yield at + 1
                return


def _unwrap(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the program's own words, the assignments in front of it, and whether ``xargs`` appends arguments."""
    rest, variables, by_xargs = list(words), [], False
    while rest:
        word = rest[0]
        name = PurePath(word).name
        if _ASSIGNMENT.match(word):
            variables.append(rest.pop(0))
        elif word in _KEYWORDS and word != "time":
            rest.pop(0)
        elif word == "function":
            rest = rest[2:]
        elif word in _NO_PROGRAM:
            return (), tuple(variables), False
        elif name in _WRAPPERS:
            if name == "command" and rest[1:2] and rest[1] in ("-v", "-V"):
                return ("type", *rest[2:]), tuple(variables), False
            by_xargs = by_xargs or name in ("xargs", "parallel")
            rest = _skip_wrapper(rest, *_WRAPPERS[name])
        elif (name in _LAUNCHERS or (name in _RUNNERS and rest[1:2] == ["run"])) and (at := _find_started(rest)):
            rest = rest[at:]
        else:
            break
    return tuple(rest), tuple(variables), by_xargs


def _find_started(words: Sequence[str]) -> int:
    """Return the index of the program that a launcher starts; 0 where that is not certain."""
    after_option = False
    for at in range(2 if PurePath(words[0]).name in _RUNNERS else 1, len(words)):
        if words[at].startswith("-"):
            after_option = "=" not in words[at]
        elif not after_option or PurePath(words[at]).name in _STARTED:
            return at
        else:
            after_option = False  # the value of the option, by all signs
    return 0


def _skip_wrapper(words: list[str], with_value: tuple[str, ...], own: int) -> list[str]:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option == "--":
            break
        if option in with_value and rest:
            rest.pop(0)
    return rest[own:]


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
