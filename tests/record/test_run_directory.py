"""The files of a run directory: whole or not there, in order, and locked while somebody lives."""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record import handover, run_directory
from mcp_server.record.handover import Handover, HandoverError, receive
from mcp_server.record.run_directory import ExitRecord, RunDir, is_held, now, read_json, take_lock, write_json

FULL = OSError(errno.ENOSPC, "No space left on device")
PACKAGE = Path(run_directory.__file__).parents[2]


def failing(*_: Any) -> Any:
    raise FULL


def elsewhere(expression: str, *words: str) -> str:
    """What ``expression`` says in another process, where ``rundir`` is imported and ``path`` is the first word."""
    code = (
        f"import sys, os; sys.path.insert(0, {str(PACKAGE)!r}); from pathlib import Path\n"
        f"from mcp_server.record import run_directory as rundir; path = Path(sys.argv[1]); print({expression})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# --- names


def test_a_run_directory_names_the_files_of_the_contract() -> None:
    run = RunDir(Path("/state/runs/cfm-7kqz"))
    files = (run.spec, run.script, run.handover, run.events, run.lock, run.stop, run.log(2), run.exit(1))
    assert run.run_id == "cfm-7kqz"
    assert [str(file.relative_to(run.path)) for file in files] == [
        "spec.json",
        "run.sh",
        "handover",
        "events.jsonl",
        "supervisor.lock",
        "stop.json",
        "attempts/2/output.log",
        "attempts/1/exit.json",
    ]


def test_now_is_utc_with_milliseconds() -> None:
    assert len(now()) == len("2026-11-21T15:30:45.123Z")
    assert now().endswith("Z")


# --- JSON files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"name": "größe 训练", "n": 1, "none": None, "list": [1.5, True], "text": "a\nb"}
    write_json(tmp_path / "spec.json", value)
    assert read_json(tmp_path / "spec.json") == value
    assert "größe" in (tmp_path / "spec.json").read_text(encoding="utf-8")  # readable with cat
    assert [p.name for p in tmp_path.iterdir()] == ["spec.json"]
    assert (tmp_path / "spec.json").stat().st_mode & 0o777 == 0o600


def test_a_second_write_replaces_the_first_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "stop.json", {"reason": "x" * 9999})
    write_json(tmp_path / "stop.json", {"reason": "y"})
    assert read_json(tmp_path / "stop.json") == {"reason": "y"}


def test_a_reader_never_sees_a_file_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stop.json"
    write_json(file, {"n": 1})
    seen: list[Any] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append(read_json(file))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(file, {"n": 2})
    assert seen == [{"n": 1}, {"n": 2}]  # the file's own, then the directory's after the rename


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "rename")])
def test_a_write_that_fails_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    write_json(tmp_path / "stop.json", {"n": 1})
    monkeypatch.setattr(owner, call, failing)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "stop.json", {"n": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["stop.json"]
    assert read_json(tmp_path / "stop.json") == {"n": 1}


@pytest.mark.parametrize("value", ["/data/caf\udce9", Path("/data")])
def test_a_value_that_is_no_json_leaves_no_part(tmp_path: Path, value: Any) -> None:
    with contextlib.suppress(TypeError, ValueError):
        write_json(tmp_path / "spec.json", {"cwd": value})
    assert [p.name for p in tmp_path.iterdir()] in ([], ["spec.json"])


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"text"', "7", '{"a": 1', "\xff", " " * 512])
def test_what_is_no_object_is_read_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    assert read_json(tmp_path / "x.json") is None


def test_what_cannot_be_read_is_read_as_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    assert read_json(tmp_path) is None


# --- the exit record


def test_an_exit_record_appears_whole_and_takes_no_new_space(tmp_path: Path) -> None:
    record = ExitRecord(tmp_path / "exit.json")
    (reserved,) = tmp_path.iterdir()
    before = reserved.stat()
    assert not (tmp_path / "exit.json").exists()

    value = {"exit_code": 3, "signal": None, "started_at": now(), "ended_at": now()}
    record.write(value)
    after = (tmp_path / "exit.json").stat()
    assert [p.name for p in tmp_path.iterdir()] == ["exit.json"]
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert before.st_size > 0
    assert json.loads((tmp_path / "exit.json").read_text()) == value
    assert (tmp_path / "exit.json").read_bytes().endswith(b" \n")


def test_an_exit_record_needs_no_more_disk_than_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ExitRecord(tmp_path / "exit.json")
    size = 512
    real = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if at + len(data) > size:
            raise FULL
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "write", failing)
    record.write(
        {"exit_code": None, "signal": "SIGRTMIN+29", "state": "timed_out", "started_at": now(), "ended_at": now()}
    )
    assert (read_json(tmp_path / "exit.json") or {})["state"] == "timed_out"


def test_without_space_for_its_end_a_run_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="No space"):
        ExitRecord(tmp_path / "exit.json")


# --- the lock


def test_a_lock_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    assert not is_held(path)
    fd = take_lock(path)
    assert fd is not None
    assert is_held(path)
    assert take_lock(path) is None
    os.close(fd)
    assert not is_held(path)


def test_other_processes_see_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    fd = take_lock(path)
    assert fd is not None
    assert elsewhere("rundir.is_held(path), rundir.take_lock(path)", str(path)) == "True None"
    os.close(fd)
    assert elsewhere("rundir.is_held(path)", str(path)) == "False"


def test_a_lock_falls_with_the_process_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    assert elsewhere("rundir.take_lock(path) is not None, rundir.is_held(path)", str(path)) == "True True"
    assert not is_held(path)
    fd = take_lock(path)
    assert fd is not None
    os.close(fd)


def test_a_held_lock_is_seen_while_its_holder_lives(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    code = (
        "import sys, fcntl; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert is_held(path)
        assert take_lock(path) is None
        holder.kill()
        holder.wait()
        assert not is_held(path)


def test_two_readers_do_not_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.lock"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not is_held(path)


class Sleeper:
    """A clock that only sleeping moves; ``wake`` is called with each moment slept to."""

    def __init__(self, wake: Callable[[float], None]) -> None:
        self.now_s = 1000.0
        self._wake = wake

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._wake(self.now_s - 1000)


def test_a_reader_that_looks_costs_no_supervisor_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # launch_run looks when it hears of the lock file, which the supervisor makes a moment before it locks it.
    path = tmp_path / "supervisor.lock"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(run_directory, "time", Sleeper(lambda slept_s: reader.close() if slept_s > 0.002 else None))
        fd = take_lock(path, patience_s=2)
    assert fd is not None
    os.close(fd)


def test_a_supervisor_that_lives_outlasts_all_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "supervisor.lock"
    fd = take_lock(path)
    assert fd is not None
    clock = Sleeper(lambda _: None)
    monkeypatch.setattr(run_directory, "time", clock)
    assert take_lock(path, patience_s=2) is None
    assert clock.now_s - 1000 == pytest.approx(2, abs=0.01)
    os.close(fd)


def test_a_directory_that_is_gone_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        take_lock(tmp_path / "none" / "supervisor.lock")
    assert not is_held(tmp_path / "none" / "supervisor.lock")


# --- the handover

GIVEN = Handover({"PATH": "/bin", "TEXT": "größe\nzwei Zeilen", "RAW": "\udcff"}, {"HF_TOKEN": "hf_9x7QwErTy"})


def received(path: Path, then: Callable[[int], None]) -> Handover:
    """What a supervisor gets that opens the FIFO before the launcher writes."""
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR)
    real = os.open

    def opened(*args: Any, **kwargs: Any) -> int:
        reader = real(*args, **kwargs)
        then(fd)
        return reader

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", opened)
        return receive(path)


def test_an_environment_is_handed_over_once_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "handover"
    os.mkfifo(path, 0o600)
    launcher = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(launcher, GIVEN.encode())
    assert receive(path) == GIVEN
    os.close(launcher)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HandoverError, match="the launching server left no environment"):
        receive(path)


def test_an_environment_larger_than_a_pipe_is_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "handover"
    os.mkfifo(path, 0o600)
    launcher = os.open(path, os.O_RDWR)
    large = Handover({f"V{n}": "x" * 1000 for n in range(300)}, {})

    def write_all() -> None:
        with os.fdopen(launcher, "wb") as fifo:
            fifo.write(large.encode())

    writer = threading.Thread(target=write_all)
    writer.start()
    assert receive(path) == large
    writer.join()


@pytest.mark.parametrize(
    "part", [b"", GIVEN.encode()[:1], GIVEN.encode()[:-1]], ids=["nothing", "a byte", "all but the end"]
)
def test_a_launcher_that_died_has_handed_over_nothing(tmp_path: Path, part: bytes) -> None:
    def die(launcher: int) -> None:
        os.write(launcher, part)
        os.close(launcher)

    with pytest.raises(HandoverError, match="the launching server died before it handed over the environment"):
        received(tmp_path / "handover", die)
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_hangs_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "handover"
    os.mkfifo(path, 0o600)
    launcher = os.open(path, os.O_RDWR)
    os.write(launcher, GIVEN.encode()[:-1])
    monkeypatch.setattr(handover, "_LONGEST_S", 0.0)
    with pytest.raises(HandoverError, match="did not hand over the environment in 10 s"):
        receive(path)
    os.close(launcher)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"garbage\n", b"[]\n", b'{"env": {}}\n', b"\xff\n"])
def test_garbage_is_no_environment(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "handover"
    os.mkfifo(path, 0o600)
    launcher = os.open(path, os.O_RDWR)
    os.write(launcher, data)
    try:
        with pytest.raises(HandoverError):
            receive(path)
    finally:
        os.close(launcher)
    assert list(tmp_path.iterdir()) == []
