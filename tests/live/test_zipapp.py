"""The supervisor as one file: on an old Python it does to a real command what the installed one does here."""

import json
import os
import pty
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.local import supervisor_argv
from mcp_server.backends.supervisor_copy import pack_zipapp
from mcp_server.gpus.leases import LeaseHolder
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.codec import decode
from mcp_server.record.events import read_events
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import LAYOUT, RunDir, read_json, write_json
from mcp_server.record.spec import RunSpec
from tests.support.old_python import find_old_python
from tests.test_arrows import BELOW_THE_LINE, ROOT, SOURCES

PYTHON = find_old_python() or sys.executable
OUT_OF_MEMORY = """
import sys
for step in range(1, 6):
    print(f"step {step}/100 loss {1 / step:.4f}", flush=True)
raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
COMMANDS: dict[str, dict[str, Any]] = {
    "finishes": {"command": "for i in 1 2 3; do echo step $i/3 loss 0.$i; done; echo done"},
    "exits with a code": {"command": "echo step 1/3 loss 0.5; exit 3"},
    "runs out of memory": {"command": [sys.executable, "-c", OUT_OF_MEMORY]},
    "dies of a signal": {"command": "kill -SEGV $$"},
    "leaves a process behind": {"command": "setsid sleep 300 & echo started"},
    "reaches its time limit": {
        "command": "echo step 1/9 loss 0.5; sleep 300",
        "time_limit_s": 1.0,
        "stop_grace_s": 0.5,
    },
    "fails and is retried": {
        "command": "echo step 1/9 loss 0.5; echo RuntimeError: CUDA out of memory >&2; exit $((RUNWARD_ATTEMPT < 2))",
        "recovery": {
            "rules": [{"when": {"kind": "any"}, "steps": [{"do": "retry", "wait_s": 0}], "times": 1}],
            "stop_on": [],
        },
    },
}


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "runward-test.pyz"
    path.write_bytes(pack_zipapp())
    return path


def make_run(path: Path, **facts: Any) -> RunDir:
    """A run directory as a launcher leaves it."""
    path.mkdir()
    rundir = RunDir(path)
    spec = RunSpec(layout=LAYOUT, run_id=path.name, name="zip", cwd=str(path), **facts)
    os.mkfifo(rundir.handover, 0o600)
    write_json(rundir.spec, spec.facts())
    return rundir


def supervise(argv: list[str], rundir: RunDir) -> int:
    """Run a supervisor on a terminal of its own and hand over the environment; return its exit status."""
    handover = Handover({"PATH": os.environ["PATH"]}, {"HF_TOKEN": "hf_9x7QwErTyUiOp"}, 0o022)
    fifo = os.open(rundir.handover, os.O_RDWR | os.O_NONBLOCK)
    screen, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            argv, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        ) as process:
            os.close(terminal)
            os.write(fifo, handover.encode())
            try:
                while os.read(screen, 65536):
                    pass
            except OSError:  # EIO: the terminal's other end is closed
                pass
            return process.wait(30)
    finally:
        os.close(screen)
        os.close(fifo)


def outcome(rundir: RunDir) -> dict[str, Any]:
    """What a run's files say, without times and process numbers."""
    events = read_events(rundir.events)
    attempts = sorted(int(path.name) for path in (rundir.path / "attempts").iterdir())
    exits = [read_json(rundir.exit(number)) or {} for number in attempts]
    progress = read_json(rundir.progress(1)) or {}
    end = events[-1]
    return {
        "kinds": [event["kind"] for event in events],
        "state": end.get("state"),
        "exits": [(record.get("state"), record.get("exit_code"), record.get("signal")) for record in exits],
        "failures": [
            {name: event["failure"].get(name) for name in ("kind", "line", "line_number", "retryable", "action")}
            for event in events
            if "failure" in event
        ],
        "progress": {name: progress.get(name) for name in ("step", "total_steps", "metrics")},
        "signals": end.get("signals_sent"),
        "leftovers": [left.get("command") for left in end.get("leftovers", [])],
        "log": rundir.log(attempts[-1]).read_text(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_supervised_from_the_zipapp_ends_as_one_supervised_here(
    name: str, zipapp: Path, tmp_path: Path
) -> None:
    here, there = (make_run(tmp_path / run_id, **COMMANDS[name]) for run_id in ("here-aaaa", "there-bbbb"))
    status_here = supervise(supervisor_argv(sys.executable, here.path), here)
    status_there = supervise([PYTHON, "-I", "-S", str(zipapp), str(there.path)], there)
    assert (status_there, outcome(there)) == (status_here, outcome(here))
    assert outcome(there)["state"] in ("finished", "failed", "timed_out")


def test_the_zipapp_names_failures_and_time_limits(zipapp: Path, tmp_path: Path) -> None:
    rundir = make_run(tmp_path / "oom-aaaa", **COMMANDS["runs out of memory"])
    assert supervise([PYTHON, "-I", "-S", str(zipapp), str(rundir.path)], rundir) == 1
    end = outcome(rundir)
    assert (end["state"], end["failures"][-1]["kind"], end["progress"]["step"]) == ("failed", "oom_gpu", 5)
    assert end["kinds"] == ["started", "first_step", "ended"]


def test_the_same_sources_give_the_same_bytes(zipapp: Path, tmp_path: Path) -> None:
    (tmp_path / "again.pyz").write_bytes(pack_zipapp())
    assert (tmp_path / "again.pyz").read_bytes() == zipapp.read_bytes()


def test_the_zipapp_holds_what_is_below_the_line_the_nvidia_library_and_nothing_else(zipapp: Path) -> None:
    names = {name.removesuffix(".py").removesuffix("/__init__") for name in zipfile.ZipFile(zipapp).namelist()}
    below = {f"mcp_server/{name.replace('.', '/')}" for name in SOURCES if name.partition(".")[0] in BELOW_THE_LINE}
    rows = {f"mcp_server/{path.relative_to(ROOT)}" for room in BELOW_THE_LINE for path in (ROOT / room).rglob("*.rows")}
    assert names == {"__main__", "mcp_server", "pynvml"} | below | rows


def test_gpus_are_queried_from_the_zipapp_or_the_missing_library_is_named(zipapp: Path) -> None:
    done = subprocess.run([PYTHON, "-I", str(zipapp), "--nvml", "--within", "2"], capture_output=True, check=False)
    snapshot = decode(Snapshot, json.loads(done.stdout.splitlines()[0]))
    assert snapshot.gpus or snapshot.text, done


def test_a_supervisor_in_the_zipapp_queries_gpus_through_it(zipapp: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from mcp_server.gpus.query import query_gpus\n"
        "print(query_gpus(sys.executable, {}, within_s=5).trouble)"
    )
    words = [PYTHON, "-I", "-S", "-c", code, str(zipapp)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() in ("", "None", "failed", "no_driver", "no_gpus"), done


def test_a_supervisor_that_runs_from_the_zipapp_is_recognised_by_its_arguments(tmp_path: Path) -> None:
    program = tmp_path / "runward-1.pyz"
    program.write_text("import time; print(flush=True); time.sleep(60)")
    words = [sys.executable, "-I", "-S", str(program), "/state/runs/cfm-7kqz"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert LeaseHolder.of_process(process.pid).run_id == "cfm-7kqz"
        process.kill()
