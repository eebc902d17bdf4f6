"""Fixtures for all tests."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox import House


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A state directory and a tmux server of its own; nothing is left of them."""
    house = House(tmp_path, f"runward-test-{secrets.token_hex(4)}")
    yield house
    house.close()
