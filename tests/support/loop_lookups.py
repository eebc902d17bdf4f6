"""Finds file names that the server looks up on its event loop, where a disk that does not answer holds up everybody."""

from __future__ import annotations

import builtins
import io
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inotify_simple
import pytest

import mcp_server

_CALLS = (
    "access", "listdir", "lstat", "mkdir", "mkfifo", "open", "readlink", "rename", "replace", "rmdir", "scandir",
    "stat", "statvfs", "unlink",
)  # fmt: skip
_SERVER = str(Path(mcp_server.__file__).parent)
_FRAMES = 7


def record_lookups(monkeypatch: pytest.MonkeyPatch, below: Path) -> set[str]:
    """Return a set that gets the call and the place of each look below a directory from the main thread.

    The main thread is that of the event loop of a server in this process.
    """
    found: set[str] = set()
    root = str(below)

    def watch(owner: Any, name: str, argument: int = 0) -> None:
        act: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) > argument and threading.current_thread() is threading.main_thread():
                path = arguments[argument]
                if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(root):
                    _note(found, name)
            return act(*arguments, **keywords)

        monkeypatch.setattr(owner, name, call)

    for name in _CALLS:
        watch(os, name)
    watch(io, "open")
    watch(builtins, "open")
    watch(inotify_simple.INotify, "add_watch", argument=1)
    return found


def _note(found: set[str], name: str) -> None:
    own = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_SERVER)]
    if own:
        places = (f"{Path(frame.filename).relative_to(_SERVER)}:{frame.lineno}" for frame in reversed(own[-_FRAMES:]))
        found.add(f"{name}: {' < '.join(places)}")
