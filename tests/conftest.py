"""Fixtures for all tests."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.backends.ssh_channel import close_channels
from mcp_server.system.processes import read_umask
from tests.support.sandbox import Sandbox
from tests.support.sshd import FarHost


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def umask_is_kept() -> Iterator[None]:
    """The umask belongs to the whole process: a test that leaves another one would change the files of later tests."""
    umask = read_umask()
    yield
    assert read_umask() == umask


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
    yield host
    close_channels(lambda mirror: mirror.is_relative_to(sandbox.path))
    host.close()
