"""Finds the page of a run in a tracker, or its offline directory, in what wandb, SwanLab or MLflow print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mcp_server.system.files import open_regular
from mcp_server.text.regex import compile_lazily

_HEAD_BYTES, _TAIL_BYTES = 2**20, 2**18
_CODES = compile_lazily(r"\x1b\[[0-9;:?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# wandb: 🚀 View run NAME at: https://…/runs/ID; swanlab: 🚀 View run at https://…; MLflow: 🏃 View run NAME at: …
_PAGE = compile_lazily(r"View run\b[^\n]{0,200}?\s(https?://[^\s'\"<>)\]]+)")
_RUN = compile_lazily(r"/runs/([\w.-]+)")
_DIRECTORY = compile_lazily(
    r"(?:wandb|swanlab)[^\n]{0,40}?(?:saved locally in|wandb sync|swanlab sync|swanlab watch):?\s+[`'\"]?"
    r"((?:[~.]?/|[\w-]+/)[^\s`'\"]+)"
)
_RUN_DIRECTORY = compile_lazily(r"(?:offline-)?run-\d{8}_\d{6}-([\w]+)$")


class TrackerLink(NamedTuple):
    """``url``: the page of the run, or "". ``directory``: where an offline run is stored, or ""."""

    url: str = ""
    run_id: str = ""
    directory: str = ""

    @property
    def line(self) -> str:
        """The link as an item of a markdown list."""
        run = f" (run {self.run_id})" if self.run_id else ""
        return f"- Tracker: {self.url}{run}" if self.url else f"- Tracker, offline: `{self.directory}`{run}"


def find_tracker_link(text: str) -> TrackerLink | None:
    """Return the newest page that is named in printed text, without a query that may hold a key, else a directory."""
    plain = _CODES.sub("", text) if "\x1b" in text else text
    pages = _PAGE.findall(plain)
    if pages:
        url = str(pages[-1]).partition("?")[0].rstrip(".,;")
        run = _RUN.search(url)
        return TrackerLink(re.sub(r"//[^/@]*@", "//", url), run[1] if run else "")
    directories = [str(path).rstrip("/.,;") for path in _DIRECTORY.findall(plain)]
    named = [path for path in directories if _RUN_DIRECTORY.search(path)] or directories
    if not named:
        return None
    run = _RUN_DIRECTORY.search(named[-1])
    return TrackerLink(directory=named[-1], run_id=run[1] if run else "")


def read_tracker_link(log: Path) -> TrackerLink | None:
    """Return the link in the beginning or the end of a log. Trackers print it at the start and at the end of a run."""
    try:
        with open_regular(log) as file:
            head = file.read(_HEAD_BYTES)
            if b"View run" not in head and b"swan" not in head and b"wandb" not in head:
                return None  # both announce themselves at the start
            size = file.seek(0, 2)
            file.seek(max(len(head), size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return None
    return find_tracker_link((head + b"\n" + tail).decode(errors="replace"))
