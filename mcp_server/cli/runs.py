"""ls, wait, attach, logs, kill: what agents can do, typed by people and scripts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_server.backends import tmux_client
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.exit_status import shell_status
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import ENDED, Run
from mcp_server.runs import stop as kill
from mcp_server.runs.wait import Memory, watch
from mcp_server.store.file_watch import Changes
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.log_excerpt import grep_lines, tail_lines
from mcp_server.views.run_status import status_of

# As timeout(1) says it, and nothing that a training would say.
_GAVE_UP = 124
_LOOK_S = 0.3  # whether another attempt has begun, or the run has ended
_REST_S = 1.2  # in which `tail` prints what is left, also where it has to look every second
_COLOURS = {"finished": "green", "failed": "red", "killed": "yellow", "timed_out": "yellow", "lost": "magenta"}


def run(arguments: argparse.Namespace) -> int:
    """Carry out one command and return its exit status."""
    store = RunStore(StateHome.of(os.environ))
    verbs: dict[str, Callable[[argparse.Namespace, RunStore], int]] = {
        "ls": _ls,
        "wait": _wait,
        "attach": _attach,
        "logs": _logs,
        "kill": _kill,
        "diagnose": _diagnose,
    }
    return verbs[arguments.command](arguments, store)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _ls(arguments: argparse.Namespace, store: RunStore) -> int:
    wanted = arguments.state
    runs = [r for r in store.runs() if wanted in (None, r.state, "ended" if r.ended else "live")]
    statuses = [status_of(store, r, since=r.last_seq, listed=True) for r in runs[: arguments.limit]]
    if arguments.json:
        _print_json({"runs": [s.model_dump(mode="json") for s in statuses], "total": len(runs)})
        return 0
    if not statuses:
        print("No runs yet." if wanted is None else f"No runs: {wanted}.")
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("RUN", "STATE", "EXIT", "STEP", "ELAPSED", "LAST OUTPUT", "OWNER", "STARTED"):
        table.add_column(column, no_wrap=column in ("RUN", "STATE"))
    owners = {r.run_id: r.spec.owner for r in runs}
    for s in statuses:
        code = s.signal or ("" if s.exit_code is None else str(s.exit_code))
        table.add_row(
            s.run_id,
            Text(s.state, style=_COLOURS.get(s.state, "cyan")),
            s.failure.kind if s.failure else code,
            f"{s.step}/{s.total_steps}" if s.step is not None and s.total_steps else str(s.step or ""),
            _clock(s.elapsed_s),
            f"{_clock(s.last_output_s)} ago" if s.last_output_s is not None else "",
            Text(owners[s.run_id]),
            (s.started_at or "")[:16].replace("T", " "),
        )
    # In a pipe there is no width to keep to.
    console = Console(width=None if sys.stdout.isatty() else 240)
    console.print(table)
    if len(runs) > len(statuses):
        console.print(f"{len(runs) - len(statuses)} older ones: -n {len(runs)}", style="dim")
    return 0


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _wait(arguments: argparse.Namespace, store: RunStore) -> int:
    rundir = store.rundir(arguments.run_id)
    limit_s = float("inf") if arguments.timeout is None else arguments.timeout

    async def until_end() -> Run:
        with contextlib.closing(Changes()) as changes, changes.of([rundir.path]) as ticket:
            known = {arguments.run_id: Memory()}
            outcome = await watch([arguments.run_id], store.observe, ticket, known, until="end", timeout_s=limit_s)
            return outcome.runs[0]

    found = anyio.run(until_end)
    if arguments.json:
        _print_json(status_of(store, found).model_dump(mode="json"))
    elif found.ended:
        last = found.events[-1] if found.events else {}
        text = f"{found.state}: {found.reason}" if found.reason else last.get("text", found.state)
        print(f"{found.run_id} {text}")
    else:
        print(f"{found.run_id} is still {found.state} after {limit_s:g} s", file=sys.stderr)
    return _exit_status(found)


def _exit_status(found: Run) -> int:
    """Return the run's own exit code; 128 + n for a signal, as shells say it; 124 still live, 125 unknown."""
    if found.state not in ENDED:
        return _GAVE_UP
    return shell_status(found.exit_code, found.signal)


def _attach(arguments: argparse.Namespace, store: RunStore) -> int:
    found = store.observe(arguments.run_id)
    tmux_client.require()
    spec = found.spec
    if spec.session not in tmux_client.sessions(spec.tmux_socket):
        # tmux died or the session was closed: a new one follows the log.
        log = RunDir(store.home.runs / found.run_id).log(found.attempt)
        tmux_client.new_session(spec.session, ["tail", "-n", "10000", "-F", str(log)], socket=spec.tmux_socket)
    around = Path(os.environ.pop("TMUX", "").partition(",")[0]).name
    verb = "switch-client" if around == spec.tmux_socket else "attach-session"
    if verb == "attach-session" and around:
        print("Inside another tmux: its prefix key works there, twice pressed it works here.", file=sys.stderr)
    os.execvp("tmux", ["tmux", "-L", spec.tmux_socket, verb, "-t", f"={spec.session}"])


def _logs(arguments: argparse.Namespace, store: RunStore) -> int:
    found = store.observe(arguments.run_id)
    path = store.rundir(arguments.run_id).log(found.attempt)
    if arguments.path:
        print(path)
        return 0
    if not path.is_file():
        raise BadArgument("RUN", f"{found.run_id} ({found.state}) has no output.")
    if arguments.follow:
        return _follow(found, store, arguments.tail)
    label = f"run {found.run_id}"
    if arguments.grep:
        text = grep_lines(path, arguments.grep, 0, label=label)
    else:
        text = tail_lines(path, arguments.tail, label=label)
    if arguments.json:
        _print_json({"run_id": found.run_id, "path": str(path), "header": text.header, "text": text.body})
        return 0
    Console(stderr=True).print(Text(text.header, style="dim"))
    print(text.body)
    return 0


def _follow(found: Run, store: RunStore, lines: int) -> int:
    """Print a run's output as it comes, from one attempt to the next, until the run has ended."""
    while True:
        number, path = found.attempt, store.rundir(found.run_id).log(found.attempt)
        # No --pid: tmux 3.3a leaves a dead supervisor as a zombie now and then, which `tail` takes for alive.
        watched = [] if found.ended else ["-F"]
        with subprocess.Popen(["tail", "-n", str(lines), *watched, str(path)]) as tail:
            while tail.poll() is None and found.attempt == number and not (watched and found.ended):
                time.sleep(_LOOK_S)
                found = store.observe(found.run_id)
            if tail.poll() is None:
                time.sleep(_REST_S)
                tail.terminate()
        if found.attempt == number:
            return 0
        print(f"[attempt {found.attempt}]", file=sys.stderr, flush=True)
        lines = 1_000_000_000  # of the next attempt all


def _diagnose(arguments: argparse.Namespace, store: RunStore) -> int:
    from mcp_server.diagnosis.log_file import examine  # noqa: PLC0415 - its patterns take a while to compile

    path, name = Path(arguments.log), _signal_name(arguments.signal)
    exit_code: int | None = arguments.exit_code
    if exit_code is not None and exit_code < 0:  # as Python tells a signal
        name, exit_code = _signal_name(str(-exit_code)), None
    if "/" not in arguments.log and not os.path.lexists(path):
        found = store.observe(arguments.log)
        path = store.rundir(found.run_id).log(found.attempt)
        if exit_code is None and name is None:
            exit_code, name = found.exit_code, found.signal
    if not os.path.isfile(path):  # noqa: PTH113 - False for a name that is too long
        raise BadArgument("LOG", f"is no file: {str(path)[:200]!r}.")
    try:
        told = examine(path, exit_code, name)
    except OSError as error:
        raise BadArgument("LOG", f"cannot be read: {error.strerror}.") from error
    facts = told.facts()
    if arguments.json:
        _print_json(facts)
        return 0
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(facts["kind"], style="bold green" if told.failure is None else "bold red"))
    if told.failure is not None:
        where = f"line {facts['line_number']:,}: " if facts["line_number"] else ""
        console.print(Text(f"{where}{facts['line']}"))
        console.print(Text(f"{facts['action']}: {facts['advice']}", style="cyan"))
    seen = f"training had begun (step {facts['step']})" if facts["step"] is not None else "training had begun"
    console.print(Text(seen if facts["first_step_seen"] else "no training step seen", style="dim"))
    return 0


def _signal_name(text: str | None) -> str | None:
    """Return a signal's name, given so or as a number.

    Raises:
        BadArgument: there is no such signal.
    """
    if text is None:
        return None
    name = f"SIG{text.upper().removeprefix('SIG')}"
    if text.isdecimal() and int(text) in signal.valid_signals():
        name = signal.Signals(int(text)).name
    if name not in signal.Signals.__members__:
        raise BadArgument("--signal", f"is none: {text!r}.")
    return name


def _kill(arguments: argparse.Namespace, store: RunStore) -> int:
    found = store.observe(arguments.run_id)
    leftovers = store.leftovers(found)
    if found.ended and not leftovers:
        if arguments.json:
            _print_json({"status": "already_ended", "run_id": found.run_id, "state": found.state})
        else:
            print(f"{found.run_id} has ended already: {found.state}.")
        return 0
    if not sys.stdin.isatty():
        raise RunwardError(f"Kill not confirmed: {found.run_id} is still {found.state}. Type it on a terminal.")
    print(kill.facts(found, leftovers), file=sys.stderr)
    print(f"Type {found.run_id} to stop it: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != found.run_id:
        print(f"Left alone: {found.run_id} is still {found.state}.", file=sys.stderr)
        return 1
    by = f"{store.home.owner(os.environ)}, on a terminal"

    async def stop() -> kill.Stopped:
        with contextlib.closing(Changes()) as changes:
            return await kill.stop(found, store, changes, by=by, reason=arguments.reason)

    stopped = anyio.run(stop)
    if arguments.json:
        _print_json(
            {
                "status": "killed",
                "run_id": found.run_id,
                "state": stopped.run.state,
                "signals_sent": list(stopped.signals_sent),
                "survivors": [s.model_dump() for s in stopped.survivors],
            }
        )
    else:
        print(f"{stopped.message} Sent: {', '.join(stopped.signals_sent) or 'nothing'}.")
    for s in stopped.survivors:
        print(f"Could not be stopped: {s.pid} {s.command}", file=sys.stderr)
    return 1 if stopped.survivors else 0
