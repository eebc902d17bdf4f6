"""The handover of an environment through a FIFO: complete, once, and never on a disk."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record import handover
from mcp_server.record.handover import Handover, HandoverError, receive_handover

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
        return receive_handover(path)


def test_an_environment_is_handed_over_once_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "handover"
    os.mkfifo(path, 0o600)
    launcher = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(launcher, GIVEN.encode())
    assert receive_handover(path) == GIVEN
    os.close(launcher)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HandoverError, match="the launching server left no environment"):
        receive_handover(path)


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
    assert receive_handover(path) == large
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
        receive_handover(path)
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
            receive_handover(path)
    finally:
        os.close(launcher)
    assert list(tmp_path.iterdir()) == []
