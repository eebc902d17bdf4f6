"""Changes of run directories: which file systems announce them."""

import errno
import os
from pathlib import Path

import pytest

from mcp_server.system.files import is_shared_filesystem


def test_mounts_that_could_not_be_read_once_are_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise every wait is polled for good after one shortage of descriptors."""

    def read_text(*_: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as shortage:
        shortage.setattr(Path, "read_text", read_text)
        assert is_shared_filesystem(tmp_path)
    assert not is_shared_filesystem(tmp_path)
