"""Effects of a command that its launcher does not expect: to other runs of this host, or to its own end. Pure.

Nothing is refused for it: the warnings are in the answer of launch_run, and of its dry run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from mcp_server.command.programs import CONTAINERS, ENDS_OTHERS, SHELLS, TEXT_PROGRAMS
from mcp_server.command.python import find_programs_of_python
from mcp_server.command.shell import parse
from mcp_server.command.ssh_command import parse_ssh
from mcp_server.command.started import Program, find_programs
from mcp_server.text.rows import read_patterns

_RX = read_patterns("command/patterns", "killers")


_MOST_WARNINGS = 8
_SHOWN_CHARS = 60
_OTHERS = "it ends processes of other runs and people on this host too. A run's own end with it: leave {} out."
_OF_RAY = "it stops every Ray of this user on this host, also those of other runs. A run's own Ray ends with it."
# These find processes by what they are, not by who started them.
_FINDERS = frozenset({"pgrep", "pidof", "ps", "lsof", "nvidia-smi", "fuser", "ss", "netstat", "screen"})
ENDS_ALL = frozenset({"killall5", "reboot", "shutdown", "poweroff", "halt", "init", "telinit"})
_NO = frozenset({"false", "0", "no", "off", "none"})
_OF_SCHEDULERS = frozenset({"scancel", "bkill", "qdel", "condor_rm", "kubectl"})
NAME_CHARS = 15  # of a process
_ASKS_ONLY = frozenset({"--help", "-h", "--version", "-V", "-l", "--list"})


def find_warnings(command: str | Sequence[str], scripts: Mapping[str, str] | None = None) -> list[str]:
    """Return what to know before ``command`` runs, at most eight texts. ``scripts``: texts by the name to show."""
    texts: dict[str, None] = {}
    for where, programs in _list_programs(command, scripts or {}):
        for program in programs:
            place = f" ({where} line {program.line})" if where else ""
            for warning in _warn(program):
                text = warning.format(place=place)
                texts.setdefault(text)
    if isinstance(command, str) and parse(command).ends_in_background:
        texts.setdefault(
            "The command ends with &: the run ends with its shell, and what it leaves behind is stopped. Leave & out."
        )
    return list(texts)[:_MOST_WARNINGS]


def _list_programs(command: str | Sequence[str], scripts: Mapping[str, str]) -> Iterator[tuple[str, Sequence[Program]]]:
    yield "", _with_python(find_programs(command))
    for name, text in scripts.items():
        if name.endswith(".py"):
            yield name, find_programs_of_python(text)
        else:
            directives = [line.split() for line in text.splitlines()[:200] if line.startswith("#SBATCH")]
            waits = any(word in ("--wait", "-W") for words in directives for word in words)
            yield name, [p for p in _with_python(find_programs(text)) if not (waits and p.name == "sbatch")]


def _with_python(programs: Sequence[Program]) -> list[Program]:
    """Return ``programs``, and after each what the Python text that it runs starts, on its line."""
    return [
        each
        for program in programs
        for each in (program, *(replace(p, line=program.line) for p in find_programs_of_python(program.code)))
    ]


# --- what each program does


@dataclass(frozen=True)
class Killer:
    """A program that ends processes beyond its own run: the program, and the warning of it."""

    program: Program
    text: str

    @property
    def of_jobs(self) -> bool:
        """Whether it ends jobs of a scheduler, and no processes of this host."""
        return self.program.name in _OF_SCHEDULERS

    def hits(self, name: str, command: str) -> bool:
        """Return whether it may end a process of this name and command line; true wherever that is not certain."""
        return self._match(name, command) is not False

    def surely_hits(self, pid: int, name: str, command: str) -> bool:
        """Return whether it ends this process, as far as its words alone prove that."""
        words = self.program.words
        if self.program.name != "kill":
            return self.program.name in ENDS_ALL or self._match(name, command) is True
        if str(pid) in words[1:] or "-1" in words[2:]:
            return True
        searches = (*self.program.substituted, *(self.program.before if self.program.by_xargs else ()))
        for search in searches:
            is_search = search[:1] == ("pgrep",)
            pattern = (
                ("pkill", *search[1:]) if is_search else ("pkill", "-f", *search[-1:]) if "grep" in search[0] else ()
            )
            if pattern and "-v" not in search:
                return Killer(Program("pkill", pattern), "").surely_hits(pid, name, command)
        return False

    def _match(self, name: str, command: str) -> bool | None:
        words = self.program.words
        if self.program.by_xargs or self.program.substituted or not {"pkill", "killall"} & {self.program.name}:
            return None
        options = {word for word in words[1:] if word.startswith("-")}
        named = [word for word in words[1:] if not word.startswith("-")]
        if not named or any(re.search(r"[$`{}]", word) for word in named):
            return None
        if not all(_RX.plain_option.fullmatch(option) for option in options):
            return None
        if self.program.name == "killall":
            return any(name[:NAME_CHARS] == word[:NAME_CHARS] for word in named)
        if len(named) != 1:
            return None
        is_full = any(option == "--full" or re.fullmatch(r"-[a-z]*f[a-z]*", option) for option in options)
        is_loose = any(re.fullmatch(r"-[a-z]*i[a-z]*", option) for option in options)
        try:
            pattern = re.compile(named[0], re.IGNORECASE if is_loose else 0)
        except re.error:
            return None
        return pattern.search(command if is_full else name) is not None


def find_killers(
    command: str | Sequence[str], scripts: Mapping[str, str] | None = None, *, closes_sessions: bool = False
) -> list[Killer]:
    """Return what ends processes of others, each sort once. ``closes_sessions``: also what closes one by its name."""
    killers: dict[str, Killer] = {}
    for where, programs in _list_programs(command, scripts or {}):
        for program in programs:
            if any(rule(program) for rule in _KILLERS) or (closes_sessions and find_closed_session(program)):
                place = f" ({where} line {program.line})" if where else ""
                warning = next(iter(_warn(program)), "").format(place=place)
                text = warning or _CLOSES_A_SESSION.format(words=_quote(program), place=place)
                killers.setdefault(text, Killer(program, text))
    return list(killers.values())


def _quote(program: Program) -> str:
    """Return the words of a program, in short: a flag that says what it does stands in it whole."""
    words = program.words
    text = " ".join(words)
    if len(text) <= _SHOWN_CHARS:
        return text
    flag = next((word for word in words if _RX.autokill.fullmatch(word)), "")
    kept = _SHOWN_CHARS - len(flag)
    return f"{text[:kept].rstrip()} … {flag}".rstrip() if flag and flag not in text[:kept] else f"{text[:kept]}…"


def _warn(program: Program) -> Iterator[str]:
    words = _quote(program).replace("{", "{{").replace("}", "}}")
    if any(rule(program) for rule in _KILLERS):
        flag = next((word for word in program.words if _RX.autokill.fullmatch(word)), "")
        left_out = flag if flag and _cleans_up_by_itself(program) else "it"
        consequence = _OF_RAY if program.name == "ray" else _OTHERS.format(left_out)
        yield f"`{words}`{{place}}: {consequence}"
    elif program.name == "sbatch" and not _has_option(program, "--wait", "W") and "--test-only" not in program.words:
        yield (
            f"`{words}`{{place}}: sbatch returns when the job is queued, so the run's end says nothing of the job. "
            'Add --wait, or launch what it starts with backend="slurm".'
        )
    elif program.name == "ray" and program.words[1:2] == ("start",) and not _has_flag(program, "--block"):
        yield (
            f"`{words}`{{place}}: without --block Ray goes to the background, and "
            + ("the run ends at once and stops it. Add --block." if program.is_last else "ends with the command.")
        )
    elif program.words[:3] == ("ray", "job", "submit") and _has_flag(program, "--no-wait"):
        yield (
            f"`{words}`{{place}}: it returns when the job is submitted, so the run's end says nothing of the job. "
            'Run the job\'s command with backend="ray".'
        )
    elif (remote := parse_ssh(program.words)) is not None and not remote.has_terminal:
        yield (
            f"`{words}`{{place}}: stopping this run does not stop the command on {remote.host[:40]}, and a lost "
            "connection says nothing of it. Use ssh -tt."
        )


def _has_option(program: Program, long: str, letter: str) -> bool:
    for word in program.words[1:]:
        if word == long or word.startswith(f"{long}="):
            return word.partition("=")[2].lower() not in _NO
        if re.fullmatch(rf"-[A-Za-z]*{letter}[A-Za-z]*", word):
            return True
        if not word.startswith("-") and word.endswith((".sh", ".slurm", ".sbatch", ".job")):
            return False  # the script: what follows are its arguments
    return False


def _has_flag(program: Program, flag: str) -> bool:
    return any(
        word == flag or (word.startswith(f"{flag}=") and word.partition("=")[2].lower() not in _NO)
        for word in program.words
    )


def _kills_by_pattern(program: Program) -> bool:
    words = program.words
    own = any(
        option in ("-P", "--parent") or (option in ("-g", "-s", "--pgroup", "--session") and value in ("0", "$$"))
        for option, value in zip(words, words[1:])
    )
    return program.name == "pkill" and not own and not _asks_only(words) and "-0" not in words[1:2]


def _kills_found_processes(program: Program) -> bool:
    """Return whether ``kill`` gets its process ids from a search, or all of them; in a text that a shell reads, too."""
    if program.name in SHELLS:
        text = " ".join(word for words in program.before for word in words)
        return bool(re.search(r"\bkill\b", text)) and any(_is_search(words) for words in program.before)
    if program.name == "process_iter":
        return True
    if program.name != "kill":
        return False
    rest = list(program.words[1:])
    if rest[:1] in (["-0"], ["-l"], ["-L"]):
        return False
    if rest and rest[0] in ("-s", "-n", "--signal"):
        rest = rest[2:]
    elif rest and rest[0].startswith("-") and rest[0] != "--":
        rest = rest[1:]
    if "-1" in rest:
        return True
    searches = [*program.substituted, *(program.before if program.by_xargs else ())]
    return any(_is_search(words) for words in searches) or bool(_RX.found.search(" ".join(w for w in rest if "`" in w)))


def _is_search(words: Sequence[str]) -> bool:
    name = words[0].rpartition("/")[2] if words else ""
    return (name in _FINDERS and not (name == "pgrep" and "-P" in words)) or (name == "find" and "/proc" in words)


_CLOSES_A_SESSION = "`{words}`{place} closes a tmux session, and so stops the run in it."
_CLOSES = frozenset({"kill-session", "kill-window", "kill-pane", "killw", "killp"})


def _closes_other_sessions(program: Program) -> bool:
    words = program.words
    if program.name != "tmux" or any(word.startswith(("-L", "-S")) for word in words):
        return False  # of a tmux server of its own
    is_computed = program.by_xargs or any(source[:1] == ("tmux",) for source in program.substituted)
    return "kill-server" in words or ("kill-session" in words and ("-a" in words or is_computed))


def find_closed_session(program: Program) -> str:
    """Return the tmux session that a program closes by its name; empty where it closes none, or one that is unknown."""
    words = program.words
    if program.name != "tmux" or _CLOSES.isdisjoint(words):
        return ""
    target = next((after for word, after in zip(words, words[1:]) if word == "-t"), "")
    return target.lstrip("=").partition(":")[0].partition(".")[0]


def _removes_found_containers(program: Program) -> bool:
    words = program.words
    if program.name not in CONTAINERS or not {"rm", "kill", "stop", "restart"} & set(words[1:3]):
        return False
    text = " ".join(words)
    is_all = not {"-a", "--all"}.isdisjoint(words[2:])
    return program.by_xargs or bool(program.substituted) or is_all or "$(" in text or "`" in text


def _ends_others(program: Program) -> bool:
    if "ray.scripts.scripts" in program.words:
        return "stop" in program.words
    arguments = ENDS_OTHERS.get(program.name)
    is_asking = program.name in ("killall", "killall5", "skill", "ray") and _asks_only(program.words)
    return arguments is not None and not is_asking and bool(re.match(arguments, " ".join((*program.words[1:], ""))))


def _cleans_up_by_itself(program: Program) -> bool:
    """Return whether ``--autokill`` makes a program kill what it takes for its own former processes."""
    if program.name in TEXT_PROGRAMS:
        return False
    for word, following in zip_longest(program.words[1:], program.words[2:], fillvalue=""):
        if (match := _RX.autokill.fullmatch(word)) is not None:
            value = match["value"] if match["value"] is not None else following
            return value.lower() not in _NO
    return False


def _asks_only(words: Sequence[str]) -> bool:
    return not _ASKS_ONLY.isdisjoint(words[1:])


_KILLERS: tuple[Callable[[Program], bool], ...] = (
    _kills_by_pattern,
    _kills_found_processes,
    _ends_others,
    _closes_other_sessions,
    _removes_found_containers,
    _cleans_up_by_itself,
)
