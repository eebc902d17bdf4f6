"""Commands that agents type into a shell although runward has a call: trainings, polls, stops by a name. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from mcp_server.command.killers import ENDS_ALL, Killer, find_killers
from mcp_server.command.programs import CONTAINERS, PYTHON, RUNNERS, SHELLS, TASK_RUNNERS, TEXT_PROGRAMS, find_entry
from mcp_server.command.shell import parse
from mcp_server.command.started import Program, find_programs
from mcp_server.command.trainings import classify
from mcp_server.text.invisible import escape_unsendable
from mcp_server.text.rows import read_patterns, read_words

Kind = Literal["stop", "launch", "sweep", "wait", "gpu"]

_RX = read_patterns("command/patterns", "habits")
_WORDS = read_words("command/words")
_HYDRA_ASKS = re.compile(r"--(?:cfg|info)[ =](?:job|hydra|all|config|defaults|defaults-tree|plugins|searchpath)\b")
_SHOWS_PROGRESS, _LOOKS = _WORDS["progress"], _WORDS["progress"] + _WORDS["look"]
_SHORTEST_POLL_S, _SHORTEST_LOOK_S, _LONG_PAUSE_S = 5.0, 15.0, 60.0
_SHOWN_CHARS = 160
_CHOOSE_PYTHON = RUNNERS | {"mpirun", "mpiexec", "xvfb-run"}
_LAUNCHES: tuple[str, ...] = ("training", "launcher")
_JOBS: tuple[str | None, ...] = (*_LAUNCHES, "evaluation", "serving")
_KILLS_NOTHING = (("-0",), ("-l",), ("-L",))


@dataclass(frozen=True)
class Habit:
    """A raw command for which runward has a call. ``text``: the command to launch, or the part that stops or polls.

    ``killers``: of a stop, those that may end live runs.
    """

    kind: Kind
    text: str
    cwd: str = ""
    gpus: int = 0
    killers: tuple[Killer, ...] = ()


def find_habit(command: str | Sequence[str], *, in_background: bool = False) -> Habit | None:
    """Return the first habit of a command, stops before launches before waits, or None.

    ``in_background``: the client itself lets it go on behind the agent's next steps.
    """
    programs = find_programs(command)
    return (
        _find_stop(command, programs)
        or _find_launch(command, programs, in_background=in_background)
        or _find_gpu_poll(programs)
        or _find_poll(programs)
    )


# --- stops


def _find_stop(command: str | Sequence[str], programs: Sequence[Program]) -> Habit | None:
    killers = tuple(find_killers(command, closes_sessions=True))
    killers += tuple(Killer(p, "") for p in programs if _ends_tmux_server(p) and all(p != k.program for k in killers))
    interrupts = [p for p in programs if _sends_keys(p) and any(word in _WORDS["stop key"] for word in p.words)]
    by_number = [
        p for p in programs if p.name == "kill" and p.words[1:2] not in _KILLS_NOTHING and p.words[-1].isdigit()
    ]
    if not (killers or interrupts or by_number):
        return None
    first = killers[0].program if killers else (interrupts or by_number)[0]
    more = tuple(Killer(p, "") for p in by_number)
    return Habit("stop", _quote(first), killers=(*killers, *more))


def _ends_tmux_server(program: Program) -> bool:
    return program.name == "tmux" and "kill-server" in program.words


def stops_a_training(habit: Habit) -> bool:
    """Return whether a stop is of trainings by its words, whatever lives here: that of an editor is not."""
    return not habit.killers or any(_names_training(killer.program) for killer in habit.killers)


def _names_training(program: Program) -> bool:
    if program.name == "kill":
        sources = [" ".join(words) for words in (*program.substituted, *program.before)]
        return "-1" in program.words[2:] or any(_RX.of_training.search(text) for text in sources)
    if program.name == "tmux":
        is_own = any(word.startswith(("-L", "-S")) for word in program.words)  # a server of its own
        return not is_own and ("-a" in program.words or "kill-server" in program.words or bool(program.substituted))
    if program.name in CONTAINERS:
        return False
    is_full = any(re.fullmatch(r"-[a-z]*f[a-z]*|--full", word) for word in program.words[1:])
    text = " ".join(program.words[1:])
    if program.name in ("pkill", "killall"):
        is_named = bool(_RX.of_training.search(text)) or "$" in text
        return is_named or (program.name == "pkill" and is_full and not _RX.of_services.search(text))
    return (
        program.name in ENDS_ALL or Killer(program, "").of_jobs or bool(_RX.of_training.search(" ".join(program.words)))
    )


# --- launches


def _find_launch(command: str | Sequence[str], programs: Sequence[Program], *, in_background: bool) -> Habit | None:
    words = parse(command).words if isinstance(command, str) else ()
    is_loop = _has_loop(programs)
    for index, program in enumerate(programs):
        follows = programs[index + 1].name if programs[index + 1 :] else ""
        is_behind = in_background or program.separator == "&" or follows == "disown" or _is_detached(program)
        if not _is_launched(program, is_behind=is_behind):
            continue
        kind: Kind = (
            "sweep" if program.by_xargs or (is_loop and any("$" in word for word in program.words)) else "launch"
        )
        first = programs[0]
        cwd = first.words[1] if first.name == "cd" and len(first.words) == 2 and "$" not in first.words[1] else ""  # noqa: PLR2004
        return Habit(kind, _write_command(program), cwd, _count_gpus(program, words))
    return None


def _is_detached(program: Program) -> bool:
    return any(PurePath(word).name in _WORDS["detaches"] for word in program.wrappers)


def _is_launched(program: Program, *, is_behind: bool) -> bool:
    asks = any(word in _WORDS["asks"] for word in program.words) or _HYDRA_ASKS.search(" ".join(program.words))
    if asks or not program.words:
        return False
    if _sends_keys(program) or _opens_window(program):
        return True
    if program.name in TEXT_PROGRAMS and not _is_detached(program):
        return False
    kind = classify_launch(program)
    if kind in _LAUNCHES or (kind in _JOBS and is_behind):
        return True
    if _is_detached(program):
        return program.name not in SHELLS or find_entry(program.words) is not None
    entry = find_entry(program.words)
    is_script = entry is not None and entry.kind == "script" and not entry.is_shell
    serves = entry is not None and bool(_RX.serves.search(PurePath(entry.value).stem))
    is_job = (is_behind and not serves) or any(
        re.fullmatch(r"CUDA_VISIBLE_DEVICES=\S+", word) for word in program.variables
    )
    return is_script and (is_job or _names_training_options(program))


def classify_launch(program: Program) -> str | None:
    """Return what a program does, as ``classify`` says it of a process; also for scripts of a shell and targets."""
    words = program.words
    name = program.name
    if name in CONTAINERS:
        image = next((at for at, word in enumerate(words) if PYTHON.fullmatch(PurePath(word).name)), None)
        started = words[image:] if image is not None and not {"run", "exec"}.isdisjoint(words[1:3]) else ()
        return classify(started)
    if name in TASK_RUNNERS and not any(word in _WORDS["rehearses"] for word in words):
        targets = [word for word in words[1:4] if not word.startswith("-") and word not in ("run", "run-script")]
        return classify(["python", f"{targets[0].replace(':', '_')}.py"]) if targets else None
    entry = find_entry(words)
    script = entry.value if entry is not None and entry.is_shell and entry.kind == "script" else ""
    if script and "-n" in words[: words.index(script)]:
        return None
    script = script or (next(iter(words[1:]), "") if name in ("sbatch", "qsub", "bsub") else "")
    script = script or (words[0] if _RX.script.search(words[0]) else "")
    if script:
        stem = _RX.script.sub("", PurePath(script).name)
        return classify(["python", f"{stem}.py"])
    if (kind := classify(words)) is not None or entry is not None:
        return kind
    if _RX.training_program.fullmatch(name):
        return "training"
    if words[:3] == ("ray", "job", "submit") and "--" in words:
        return classify(words[words.index("--") + 1 :])
    follows = words[1:3] if _names_training_options(program) else words[1:2]
    return "training" if any(map(_RX.verb.fullmatch, follows)) and _has_settings(program) else None


def _has_settings(program: Program) -> bool:
    return _names_training_options(program) or any(_RX.settings_file.search(word) for word in program.words[2:])


def _names_training_options(program: Program) -> bool:
    options, _ = parse(list(program.words)).split_options()
    names = (name.rpartition(".")[2].replace("-", "_").lower() for name in options)
    return any(_RX.training_option.fullmatch(name) for name in names)


def _count_gpus(program: Program, words: Sequence[str]) -> int:
    pinned = next((word for word in (*program.variables, *words) if word.startswith("CUDA_VISIBLE_DEVICES=")), "")
    return len([each for each in pinned.partition("=")[2].split(",") if each.strip().isdigit()])


def _write_command(program: Program) -> str:
    if program.name in ("tmux", "screen") and (text := _find_typed(program)):
        return escape_unsendable(text[:_SHOWN_CHARS])
    variables = [word for word in program.variables if not word.startswith("CUDA_VISIBLE_DEVICES=")]
    runner = next((at for at, word in enumerate(program.wrappers) if PurePath(word).name in _CHOOSE_PYTHON), None)
    return _quote(program, [*variables, *(program.wrappers[runner:] if runner is not None else ())])


def _quote(program: Program, variables: Sequence[str] = ()) -> str:
    has_code = any("$" in word or "`" in word for word in program.words)
    text = " ".join([*variables, " ".join(program.words) if has_code else shlex.join(program.words)])
    return escape_unsendable(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…")


# --- tmux and screen


def _subcommand(program: Program) -> tuple[str, tuple[str, ...]]:
    """Return the first command of tmux, and the words behind it."""
    rest = list(program.words[1:])
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-L", "-S", "-f", "-T") and rest:
            rest.pop(0)
    return (rest[0], tuple(rest[1:])) if rest else ("", ())


def _sends_keys(program: Program) -> bool:
    if program.name == "screen":
        return "stuff" in program.words
    return program.name == "tmux" and _subcommand(program)[0] in _WORDS["types"]


def _opens_window(program: Program) -> bool:
    """Return whether a session or a window is opened for a command, rather than for a person's shell."""
    if program.name == "screen":
        flags = [word for word in program.words[1:3] if word.startswith("-")]
        return any("m" in flag and "d" in "".join(flags).lower() for flag in flags)
    return program.name == "tmux" and _subcommand(program)[0] in _WORDS["opens"] and bool(_find_typed(program))


def _find_typed(program: Program) -> str:
    """Return the text that is typed into a terminal, or started in a new one."""
    if program.name == "screen":
        if "stuff" in program.words:
            return " ".join(program.words[program.words.index("stuff") + 1 :])
        rest = list(program.words[1:])
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option[-1] in "Stcesh" and rest:
                rest.pop(0)
        return " ".join(rest)
    name, words = _subcommand(program)
    rest, with_value = list(words), "tNctxy" if name in _WORDS["types"] else "sntcexyFlp"
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option[-1] in with_value and rest:
            rest.pop(0)
    return " ".join(word for word in rest if word not in ("Enter", "C-m", ";") and word not in _WORDS["stop key"])


# --- polls


def _find_gpu_poll(programs: Sequence[Program]) -> Habit | None:
    pauses = any(p.name == "sleep" for p in programs)
    for program in programs:
        watched = _is_wrapped(program, "watch")
        shows = program.name in ("nvidia-smi", "gpustat", "rocm-smi")
        repeats = any(_RX.repeats.fullmatch(f"{program.name} {word}") for word in program.words[1:])
        if (shows and (watched or repeats or pauses)) or program.name in ("nvtop", "nvitop"):
            return Habit("gpu", _quote(program))
    return None


def _find_poll(programs: Sequence[Program]) -> Habit | None:
    is_watched = any(_is_wrapped(program, "watch") for program in programs)
    for program in programs:
        if is_watched and program.name in _LOOKS:
            return Habit("wait", _quote(program))
        if program.name == "tail" and _follows(program) and _is_log_of_training(program):
            return Habit("wait", _quote(program))
    pauses = {index: pause_s for index, p in enumerate(programs) if (pause_s := _read_pause(p)) is not None}
    longest = max(pauses.values(), default=0.0)
    if longest >= _LONG_PAUSE_S and len(programs) == 1:
        return Habit("wait", _quote(programs[0]))
    # In a loop, what stands before the pause is looked at again.
    seen_from = 0 if _has_loop(programs) else min(pauses, default=len(programs))
    for program in programs[seen_from:]:
        least_s = _SHORTEST_POLL_S if _shows_progress(program) else _SHORTEST_LOOK_S
        if (program.name in _LOOKS or _shows_progress(program)) and longest >= least_s and not program.before:
            return Habit("wait", _quote(program))
    return None


def _has_loop(programs: Sequence[Program]) -> bool:
    return any(word in _WORDS["loop"] for program in programs for word in program.wrappers)


def _is_wrapped(program: Program, wrapper: str) -> bool:
    return any(PurePath(word).name == wrapper for word in program.wrappers)


def _shows_progress(program: Program) -> bool:
    asks_for_process = program.name == "pgrep" or program.words[:2] in (("kill", "-0"), ("ps", "-p"))
    return program.name in _SHOWS_PROGRESS or asks_for_process


def _follows(program: Program) -> bool:
    return any(re.fullmatch(r"-[0-9a-z]*[fF][0-9]*|--follow.*", word) for word in program.words[1:])


def _is_log_of_training(program: Program) -> bool:
    files = [PurePath(word).stem for word in program.words[1:] if not word.startswith("-") and not word.isdigit()]
    return _is_wrapped(program, "timeout") or any(classify(["python", f"{stem}.py"]) in _LAUNCHES for stem in files)


def _read_pause(program: Program) -> float | None:
    """Return the seconds of a ``sleep``; a length that is computed counts as long."""
    if program.name != "sleep" or not program.words[1:]:
        return None
    lengths = [_RX.length.fullmatch(word) for word in program.words[1:]]
    if not all(lengths):
        return _LONG_PAUSE_S - 1
    units = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    return sum(float(each["number"]) * units[each["unit"]] for each in lengths if each)
