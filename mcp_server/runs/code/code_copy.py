"""A private copy of the code of a run on this machine, made at its launch: `code="kept"`. Blocks. Use a thread.

The copy, `code/RUN_ID` in the state directory, is the run's working directory, also of its retries: edits after the
launch do not reach it. What is not code (see ``code_directory``) is linked, so that data is found and outputs stay
where they belong.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.command.outputs import find_in_command
from mcp_server.errors import BadArgument, LaunchFailed
from mcp_server.hosts.path_checks import Roots
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.code.code_directory import CodeDirectory, CodeFile, open_below, read_code_directory
from mcp_server.text.formatting import printable

_LIMIT_BYTES = 64 * 2**20
_MOST_NAMED = 6
_NOTHING = "Nothing was started."


@dataclass(frozen=True)
class CodeCopy:
    """Code that is copied before its run starts. ``linked``: paths below it that stay where they are."""

    code: CodeDirectory
    there: str
    linked: Sequence[str]

    @property
    def facts(self) -> Mapping[str, str]:
        """Its facts in the run's record."""
        names = [printable(name) for name in self.linked]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        stays = ", ".join(names[:_MOST_NAMED]) + more
        return {"sync": "kept", "from": str(self.code.root), "hash": self.code.digest, "stays": stays}

    def move(self, request: LaunchRequest) -> LaunchRequest:
        """Return ``request`` with the paths of code that it names as they are in the copy."""
        root = str(self.code.root)
        roots = Roots({root: self.there}, tuple(f"{root}/{path.rstrip('/')}" for path in self.linked), "")
        return roots.move(request, self.there)

    def send(self) -> None:
        """Make the copy.

        Raises:
            LaunchFailed: it cannot be written, or the code has changed meanwhile; nothing is left of it.
        """
        there = Path(self.there)
        try:
            there.parent.mkdir(mode=0o700, exist_ok=True)
            there.mkdir(mode=0o700)
            for file in self.code.files:
                self._copy(file)
            for path in self.linked:
                self._link(path)
        except OSError as error:
            shutil.rmtree(there, ignore_errors=True)
            cause = f"The code could not be copied to {there}: {error.strerror}."
            raise LaunchFailed(cause, _NOTHING, 'Launch again, or without code="kept".') from error

    def _copy(self, file: CodeFile) -> None:
        target = Path(self.there, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.mode < 0:
            target.symlink_to(file.digest)
            return
        with open_below(self.code.root, file.path) as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy)
        target.chmod(file.mode)
        if target.stat().st_size != file.size:
            raise OSError(0, f"{file.path} changed meanwhile")

    def _link(self, path: str) -> None:
        name = path.rstrip("/")
        original, target = self.code.root / name, Path(self.there, name)
        if path.endswith("/"):
            original.mkdir(parents=True, exist_ok=True)  # where the command will write
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink():
            target.symlink_to(original)


def plan_copy(request: LaunchRequest, run_id: str, home: Path) -> CodeCopy:
    """Return what a launch with ``code="kept"`` copies: the code of ``request.cwd``. Writes nothing.

    Raises:
        BadArgument: the code is too large, or the directory holds none; says what to do.
    """
    root = Path(request.cwd or "/")
    try:
        code = read_code_directory(root, _LIMIT_BYTES)
    except BadArgument as error:
        raise BadArgument("code", str(error).partition(": ")[2], 'Or launch without code="kept".') from error
    if not code.files:
        raise BadArgument("code", f'"kept" copies the code of cwd, and {root} has none.', "Pass the code's directory.")
    outputs = [os.path.relpath(path, root) for path in find_in_command(request.command, str(root), request.params)]
    tops = {file.path.partition("/")[0] for file in code.files}
    new = [f"{top}/" for path in outputs if (top := path.partition("/")[0]) not in ("..", ".") and top not in tops]
    linked = dict.fromkeys([*code.left_out, *new])
    if any("{" in path for path in linked):  # a placeholder: its directory has no name yet
        linked = {path: None for path in linked if "{" not in path}
    return CodeCopy(code, str(home / "code" / run_id), [path for path in linked if not path.endswith("__pycache__/")])
