"""Processes: identified by number and start, signalled exactly, whatever the kernel offers."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from mcp_server.system import processes
from mcp_server.system.processes import Process
from tests.support.sandbox import until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["ENOSYS", "EPERM", "EMFILE", "absent"])
def no_pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 5.3, a sandbox that refuses unknown calls, too many open files, a Python built without it."""

    def refuse(_: int) -> NoReturn:
        number = getattr(errno, request.param)
        raise OSError(number, os.strerror(number))

    if request.param == "absent":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse)


def test_a_signal_is_really_sent_where_there_are_no_pid_descriptors(
    child: subprocess.Popen[bytes], no_pidfd: None
) -> None:
    process = processes.find_process(child.pid)
    assert process is not None
    assert processes.send_signal(process, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert processes.find_process(child.pid) is None
    assert not processes.send_signal(process, signal.SIGKILL)


def test_without_pid_descriptors_a_reused_number_is_not_signalled(
    child: subprocess.Popen[bytes], no_pidfd: None
) -> None:
    process = processes.find_process(child.pid)
    assert process is not None
    assert not processes.send_signal(replace(process, started=process.started - 1), signal.SIGKILL)
    assert child.poll() is None


def test_a_process_that_this_user_may_not_signal_is_reported_as_not_signalled(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    process = processes.find_process(child.pid)
    assert process is not None
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    assert not processes.send_signal(process, signal.SIGKILL)
    assert child.poll() is None


def test_a_signal_does_not_reach_a_process_that_reused_a_number() -> None:
    mine = processes.find_process(os.getpid())
    assert mine is not None
    assert not processes.send_signal(replace(mine, started=mine.started - 1), signal.SIGCONT)
    assert processes.send_signal(mine, signal.SIGCONT)


def test_a_process_that_has_exited_is_reported_as_not_signalled() -> None:
    assert not processes.send_signal(Process(2**22, started=1, parent=1, session=1), signal.SIGCONT)
    assert processes.find_process(2**22) is None


def test_a_process_is_identified_by_its_number_and_its_start() -> None:
    assert Process(7, started=1, parent=2, session=3) == Process(7, started=1, parent=1, session=1)
    assert Process(7, started=1, parent=2, session=3) != Process(7, started=2, parent=2, session=3)


def test_the_umask_is_read_without_setting_it() -> None:
    before = os.umask(0o027)
    try:
        assert processes.read_umask() == 0o027
    finally:
        os.umask(before)


def test_the_descendants_of_threads_are_the_same_without_a_subtree() -> None:
    code = "import subprocess, sys, threading\nt = threading.Thread(target=lambda: subprocess.run(['sleep', '60']))\n"
    code += "t.start(); print(flush=True); t.join()"
    argv = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        try:
            until(lambda: len(processes.descendants(child.pid)) == 1)
            (sleeper,) = processes.descendants(child.pid)
            assert processes.descendants_of_threads(child.pid) == [sleeper]
            assert {child.pid, sleeper.pid} <= {p.pid for p in processes.descendants_of_threads(os.getpid())}
            others = {p.pid for p in processes.descendants_of_threads(os.getpid(), {child.pid, None})}
            assert others.isdisjoint({child.pid, sleeper.pid})
        finally:
            processes.send_signal(sleeper, signal.SIGKILL)


TAKES_A_NAME = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'tmux: server'); print(flush=True); time.sleep(60)"


@pytest.mark.parametrize("find", [processes.descendants, processes.descendants_of_threads])
def test_a_process_that_calls_itself_a_tmux_server_still_belongs_to_the_run(
    find: Callable[[int], list[Process]],
) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", TAKES_A_NAME], stdout=subprocess.PIPE) as liar:
        assert liar.stdout is not None
        liar.stdout.readline()
        (seen,) = [p for p in find(os.getpid()) if p.pid == liar.pid]
        liar.kill()
    assert seen.name == "tmux: server"


def test_the_exit_code_of_a_process_that_nobody_has_waited_for_is_known() -> None:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as ended, subprocess.Popen(["sleep", "60"]) as killed:
        assert processes.zombie_exit_code(killed.pid, os.getpid()) is None, "it lives"
        killed.kill()
        for each in (ended, killed):
            os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)
        assert processes.zombie_exit_code(ended.pid, os.getpid()) == 3
        assert processes.zombie_exit_code(ended.pid, 1) is None, "another's child"
        assert processes.zombie_exit_code(killed.pid, os.getpid()) is None, "a signal ended it"
