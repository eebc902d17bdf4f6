"""Fixtures for all tests."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox import Sandbox


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A state directory and a tmux server of its own; nothing is left of them."""
    sandbox = Sandbox(tmp_path, f"runward-test-{secrets.token_hex(4)}")
    yield sandbox
    sandbox.close()
