"""`runward logs`: print a run's output, or follow it."""

import argparse
import os
import subprocess
import sys
import time

from rich.console import Console
from rich.text import Text

from mcp_server.cli.output import print_json
from mcp_server.errors import BadArgument
from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.log_excerpt import grep_lines, tail_lines

_POLL_S = 0.3  # between two checks for a new attempt or the end of the run
_DRAIN_S = 1.2  # `tail` prints the rest within this time, also where it polls every second
_EVERY_LINE = 1_000_000_000


def run(arguments: argparse.Namespace) -> int:
    """Print the newest lines, the matching lines, the path, or everything as it is written."""
    store = RunStore(StateHome.of(os.environ))
    run = store.find(arguments.run_id)
    path = store.fetch_log(run)
    if arguments.path:
        print(path)
        return 0
    if old := store.explain_old_log(run):
        Console(stderr=True).print(Text(old, style="yellow"))
    if not path.is_file():
        raise BadArgument("RUN", f"{run.run_id} ({run.state}) has no output.")
    if arguments.follow:
        return _follow(run, store, arguments.tail)
    label = f"run {run.run_id}"
    if arguments.grep:
        excerpt = grep_lines(path, arguments.grep, 0, label=label)
    else:
        excerpt = tail_lines(path, arguments.tail, label=label)
    if arguments.json:
        print_json({"run_id": run.run_id, "path": str(path), "header": excerpt.header, "text": excerpt.body})
        return 0
    Console(stderr=True).print(Text(excerpt.header, style="dim"))
    print(excerpt.body)
    return 0


def _follow(run: Run, store: RunStore, lines: int) -> int:
    while True:
        number, path = run.attempt, store.run_directory(run.run_id).log(run.attempt)
        # No --pid: tmux 3.3a leaves a dead supervisor as a zombie at times, which `tail` takes for alive.
        follow = [] if run.ended else ["-F"]
        with subprocess.Popen(["tail", "-n", str(lines), *follow, str(path)]) as tail:
            while tail.poll() is None and run.attempt == number and not (follow and run.ended):
                time.sleep(_POLL_S)
                run = store.observe(run.run_id)
                store.fetch_log(run, number)
            if tail.poll() is None:
                time.sleep(_DRAIN_S)
                tail.terminate()
        if run.attempt == number:
            return 0
        print(f"[attempt {run.attempt}]", file=sys.stderr, flush=True)
        lines = _EVERY_LINE
