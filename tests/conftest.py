"""Fixtures for all tests."""

import ctypes
import gc
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.backends.ssh.ssh_channel import close_channels
from mcp_server.system.processes import PR_SET_CHILD_SUBREAPER, read_umask
from tests.support import warm_start
from tests.support.checked_schemas import check_each_schema_once
from tests.support.sandbox import Sandbox
from tests.support.shared_copy import own_copies, place_relay, share_copies
from tests.support.sshd import FarHost

gc.disable()  # until all tests are collected, which stay: to look through them took a fifth of the time
check_each_schema_once()
share_copies()
warm_start.fork_parts()
# Many machines have no other program that is called `python`.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
sys.dont_write_bytecode = False  # else each worker rewrites all asserts, and each supervisor compiles its modules


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Do once what each worker would do: rewrite the asserts of all tests, which takes 8 s, and import the server."""
    tests = Path(__file__).parent
    if config.args_source is config.ArgsSource.TESTPATHS and not (tests / "live" / "__pycache__").exists():
        files = sorted(str(path) for path in tests.rglob("test_*.py"))
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
        halves = [subprocess.Popen([*collect, *part], stdout=subprocess.DEVNULL) for part in (files[::2], files[1::2])]
        for half in halves:
            half.wait()
    warm_start.command()


def pytest_runtest_teardown() -> None:
    """Be no parent of orphans that later tests leave, as a test of code that makes its process a subreaper would."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def pytest_collection_finish() -> None:
    """Leave what was collected out of all garbage collections."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that wait among those that compute: a worker that waits leaves its core to the others."""
    waiting = [item for item in items if "/live/" in item.nodeid]
    computing = [item for item in items if "/live/" not in item.nodeid]
    places = {item: number / len(group) for group in (waiting, computing) for number, item in enumerate(group)}
    modules: dict[object, float] = {}  # the tests of a module stay together: they may share a server
    items.sort(key=lambda item: modules.setdefault(item.getparent(pytest.Module), places[item]))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def umask_is_kept() -> Iterator[None]:
    """The umask belongs to the whole process: a test that leaves another one would change the files of later tests."""
    umask = read_umask()
    yield
    assert read_umask() == umask


@pytest.fixture
def own_supervisor_copies() -> Iterator[None]:
    """Each state directory has its own copy of the supervisor's program."""
    own_copies()
    yield
    share_copies()


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A state directory and a tmux server of its own; nothing is left of them."""
    sandbox = Sandbox(tmp_path, f"runward-test-{secrets.token_hex(4)}")
    yield sandbox
    sandbox.close()


@pytest.fixture
def far_host(sandbox: Sandbox) -> Iterator[FarHost]:
    """A real sshd that plays another machine, reached as ``lab``."""
    host = FarHost(sandbox, sandbox.path / "far")
    host.start()
    host.write_hosts()
    place_relay(host.state)
    yield host
    close_channels(lambda mirror: mirror.is_relative_to(sandbox.path))
    host.close()
