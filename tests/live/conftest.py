import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, f"runward-test-{secrets.token_hex(4)}")
    yield house
    house.close()
