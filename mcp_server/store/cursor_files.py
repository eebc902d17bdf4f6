"""Cursors over many runs, as one word: a file of the state directory that any server can read.

A word is a digest of what it stands for, so an equal cursor has an equal word, and an old word stands for the same
news as before: whoever lost an answer asks again with the word that he has. A file's time of change is when the word
was last given or used.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import read_regular_file, write_atomic

MOST_FILES, _REMOVED_AT_ONCE = 1000, 100
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_WORD = re.compile(rf"c[{_LETTERS}]{{10}}")
_FILE = re.compile(rf"{_WORD.pattern}\.json")


@dataclass(frozen=True)
class SeenRuns:
    """A caller's cursor: by run id the number of the last event and the state.

    ``left_out``: the ended runs that were of no interest when the cursor was begun as one over all live runs; None
    for other cursors.
    """

    runs: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    left_out: frozenset[str] | None = None


class CursorFiles:
    """The directory of cursors. Any number of servers may use it at the same time."""

    def __init__(self, home: StateHome) -> None:
        self._directory = home.path / "cursors"

    def keep(self, seen: SeenRuns) -> str:
        """Return the word for what was seen."""
        facts = {
            "runs": {run_id: list(position) for run_id, position in sorted(seen.runs.items())},
            "left_out": None if seen.left_out is None else sorted(seen.left_out),
        }
        data = json.dumps(facts, separators=(",", ":")).encode()
        number = int.from_bytes(hashlib.sha256(data).digest(), "big")
        letters = []
        for _ in range(10):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        word = f"c{''.join(letters)}"
        if not self._touch(self._path(word)):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            write_atomic(self._path(word), data)
        return word

    def read(self, word: str) -> SeenRuns:
        """Return the cursors of ``word``; one that is too old, or not of this state directory, is a BadArgument."""
        try:
            key = word if _WORD.fullmatch(word) else ""
            facts = json.loads(read_regular_file(self._path(key), follow_links=False))
            left_out = facts["left_out"]
            seen = SeenRuns(
                {str(run_id): (int(seq), str(state)) for run_id, (seq, state) in facts["runs"].items()},
                None if left_out is None else frozenset(map(str, left_out)),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise BadArgument(
                "since",
                f"{word[:40]!r} is not a cursor of this machine, or too old.",
                "Leave since out: every end that you may not have seen is answered again.",
            ) from error
        self._touch(self._path(word))
        return seen

    def _path(self, word: str) -> Path:
        return self._directory / f"{word}.json"

    def _touch(self, path: Path) -> bool:
        """Note that a cursor is in use; return whether it is there."""
        try:
            os.utime(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is full or read-only
            return path.exists()
        return True

    def _make_room(self) -> None:
        """Remove the cursors that were not used for longest, where there are too many."""
        paths = [path for path in self._directory.iterdir() if _FILE.fullmatch(path.name)]
        if len(paths) < MOST_FILES:
            return
        used_at_s: dict[Path, float] = {}
        for path in paths:
            with contextlib.suppress(OSError):  # removed meanwhile
                used_at_s[path] = path.lstat().st_mtime
        for path in sorted(used_at_s, key=lambda path: used_at_s[path])[:_REMOVED_AT_ONCE]:
            with contextlib.suppress(OSError):
                path.unlink()
