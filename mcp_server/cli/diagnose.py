"""`runward diagnose`: say why a training run failed, by its log."""

import argparse
import os
import signal
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mcp_server.cli.output import print_json
from mcp_server.diagnosis.log_file import examine_log
from mcp_server.errors import BadArgument
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome


def run(arguments: argparse.Namespace) -> int:
    """Print the kind of failure, the line that proves it, and what to do."""
    path, exit_code, signal_name, cwd = _log_and_end(arguments)
    if not os.path.isfile(path):  # noqa: PTH113 - False for a name that is too long
        raise BadArgument("LOG", f"is not a file: {str(path)[:200]!r}.")
    try:
        examined = examine_log(path, exit_code, signal_name, cwd)
    except OSError as error:
        raise BadArgument("LOG", f"cannot be read: {error.strerror}.") from error
    facts = examined.facts()
    if arguments.json:
        print_json(facts)
        return 0
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(facts["kind"], style="bold green" if examined.failure is None else "bold red"))
    if examined.failure is not None:
        where = f"line {facts['line_number']:,}: " if facts["line_number"] else ""
        console.print(Text(f"{where}{facts['line']}"))
        console.print(Text(": ".join(filter(None, (facts["action"], facts["advice"]))), style="cyan"))
    began = f"training had begun (step {facts['step']})" if facts["step"] is not None else "training had begun"
    console.print(Text(began if facts["first_step_seen"] else "no training step seen", style="dim"))
    return 0


def _log_and_end(arguments: argparse.Namespace) -> tuple[Path, int | None, str | None, str | None]:
    """Return a log, how its command ended, and where it ran on this host: empty elsewhere, None where it is unknown."""
    path, signal_name = Path(arguments.log), _signal_name(arguments.signal)
    exit_code: int | None = arguments.exit_code
    if exit_code is not None and exit_code < 0:  # as Python reports a signal
        signal_name, exit_code = _signal_name(str(-exit_code)), None
    if "/" in arguments.log or os.path.lexists(path):
        return path, exit_code, signal_name, None
    store = RunStore(StateHome.of(os.environ))
    run = store.find(arguments.log)
    path = store.fetch_log(run)
    if old := store.explain_old_log(run):
        Console(stderr=True).print(Text(old, style="yellow"))
    cwd = "" if run.spec.mirror else run.spec.cwd
    if exit_code is None and signal_name is None:
        return path, run.exit_code, run.signal, cwd
    return path, exit_code, signal_name, cwd


def _signal_name(text: str | None) -> str | None:
    if text is None:
        return None
    name = f"SIG{text.upper().removeprefix('SIG')}"
    if text.isdecimal() and int(text) in signal.valid_signals():
        name = signal.Signals(int(text)).name
    if name not in signal.Signals.__members__:
        raise BadArgument("--signal", f"unknown signal {text!r}.")
    return name
