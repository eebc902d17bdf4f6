"""Starts `python -m mcp_server …` for tests by a fork of a process that has imported it: 0.7 s of processor time less.

`warm_start_client.py` stands in for the interpreter. It hands its arguments, environment, directory, umask and standard
streams over, passes signals on, and exits as the forked process does. That process dies with its client.

The product's own starters and conductors are such forks as well (`warm_starters.py`), in this process and in those that
it forks, where the state directory shares its copy of the program. A cold server starts cold ones.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_server.system import tmux
from tests.support.shared_copy import make_copy, share_copies

_PR_SET_PDEATHSIG = 1
_SHARED = "RUNWARD_TEST_WARM_START"  # the address, for the workers of a test run
_CONDUCTOR = "mcp_server.sweeps.conductor"
_MODULES = ("mcp_server.cli.ls", "mcp_server.cli.logs", f"{_CONDUCTOR}.conductor", "libtmux", "inotify_simple")
_TITLE = "-" * 600  # memory for the titles of forks, see mcp_server/system/process_title.py
_run_in_background, _new_session = tmux.run_in_background, tmux.new_session
_shared_address = os.environ.get(_SHARED)
_KEPT = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}  # not what a test sets


def command() -> tuple[str, ...]:
    """Return what to type in place of `python -m mcp_server`; the process that forks lives as long as this one."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_start_client.py")), _address())


def fork_parts() -> None:
    """Fork the starters and conductors that this process starts."""
    tmux.run_in_background, tmux.new_session = _start_starter, _start_session


def _start_starter(command: str, **where: Any) -> None:
    words = shlex.split(command)
    if "--starter" not in words or not Path(words[words.index("--starter") - 1]).parents[1].is_symlink():
        return _run_in_background(command, **where)
    path = words[words.index("--starter") + 1]
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path.rpartition(".runward-")[0])
        peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(f"\0{_address()}-starters")
        channel.send(json.dumps([path, struct.unpack("3i", peer)[0]]).encode())
    return None


def _start_session(name: str, argv: Sequence[str], *, socket: str, starts_server: bool = True) -> str:
    if _CONDUCTOR in argv:
        argv = [*command(), *argv[argv.index(_CONDUCTOR) :]]
    return _new_session(name, argv, socket=socket, starts_server=starts_server)


@functools.cache
def _address() -> str:
    """Return the socket's name. The processes that this one starts to run tests use its process too."""
    if _shared_address:
        return _shared_address
    address = f"runward-{os.getpid()}-{secrets.token_hex(4)}"
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", __name__, address, _TITLE]
    forks = subprocess.Popen(argv, cwd=root, env=_KEPT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert forks.stdin is not None
    assert forks.stdout is not None
    assert forks.stdout.readline() == b"ready\n"
    atexit.register(forks.communicate)
    os.environ[_SHARED] = address
    return address


def serve(address: str) -> None:
    """Fork for each client, until standard input ends."""
    global _shared_address  # noqa: PLW0603 - what it forks is a client of it
    _shared_address = address
    mains = [importlib.import_module(f"{name}.__main__").main for name in ("mcp_server", _CONDUCTOR)]
    for module in _MODULES:
        importlib.import_module(module)
    importlib.import_module("mcp_server.serve.app").load_package()
    share_copies()
    program = str(make_copy())
    argv = [sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("warm_starters.py"))]
    argv += [f"{address}-starters", program, _TITLE]
    starters = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert starters.stdout is not None
    assert starters.stdout.readline() == b"ready\n"
    fork_parts()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                return
            if key.data is None:
                _fork(listener.accept()[0], mains, selector)
                continue
            pid, connection, pidfd = key.data
            if key.fd == pidfd:
                status = os.waitpid(pid, 0)[1]
                with contextlib.suppress(OSError):
                    connection.send(b"%d" % os.waitstatus_to_exitcode(status))
                selector.unregister(pidfd)
                os.close(pidfd)
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                connection.close()
            elif connection.fileno() >= 0:
                number = connection.recv(16)
                signal.pidfd_send_signal(pidfd, int(number or signal.SIGKILL))
                if not number:
                    selector.unregister(connection)


def _fork(connection: socket.socket, mains: list[Any], selector: selectors.BaseSelector) -> None:
    text, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        data = (pid, connection, os.pidfd_open(pid))
        selector.register(data[2], selectors.EVENT_READ, data)
        selector.register(connection, selectors.EVENT_READ, data)
        return
    words, environ, directory, umask = json.loads(text)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 256)
    # Those that it began with may be files, which can be sought in, as pytest's are; the client's are what they are.
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1, encoding="utf-8", errors=former.errors, closefd=False)  # noqa: SIM115
        for number, former in ((1, sys.stdout), (2, sys.stderr))
    )
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    os.umask(umask)
    is_conductor = words[:1] == [_CONDUCTOR]
    sys.argv = words if is_conductor else ["mcp_server", *words]
    try:
        status = mains[is_conductor]()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
