"""Changes to files that people own: each is shown and confirmed first, and a replaced file is kept as ``.bak``."""

import difflib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.text.formatting import printable


class LeftAlone(Exception):
    """A file was not changed. The message is the reason."""


@dataclass(frozen=True)
class Edit:
    """One file, whose links stay inside ``root``, to ``change`` (None removes it). ``is_offer``: a no is no failure."""

    path: Path
    root: Path | None
    change: Callable[[str], str | None]
    question: str = ""
    is_offer: bool = False


def apply_edit(edit: Edit, *, sure: bool) -> bool:
    """Show the change, ask, and write it, and return whether the file has the right content."""
    try:
        path = _find_target(edit)
        before = _read(path)
        after = edit.change(before or "")
        if after == (before or "") or (after is None and before is None):
            print(f"{path}: nothing to change.")
            return True
        print(_diff(path, before, after), end="")
        verb = "Remove" if after is None else "Create" if before is None else "Change"
        if not confirm(edit.question or f"{verb} {path}?", sure=sure):
            print(f"{path}: left as it is.")
            return edit.is_offer
        backup = _write(path, before, after)
    except (OSError, ValueError, RecursionError, LeftAlone) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"{edit.path} was left as it is: {why}", file=sys.stderr)
        return False
    print(f"{path}: {'removed' if after is None else 'written'}." + (f" Before: {backup}" if backup else ""))
    return True


def confirm(question: str, *, sure: bool) -> bool:
    """Return whether a person at the terminal says yes, or True without a question where ``sure``."""
    if sure:
        return True
    if not sys.stdin.isatty():
        print(f"{question} There is no terminal to ask on: --yes confirms.")
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def without_controls(text: str) -> str:
    """Return ``text`` with each control character as a question mark."""
    return printable(text, "?", keep="\t\n")


def _find_target(edit: Edit) -> Path:
    """Return the real path of the file. LeftAlone: it is outside of the project, or not an ordinary file."""
    try:
        real = edit.path.resolve()
    except RuntimeError as error:
        raise LeftAlone("its links form a circle.") from error
    # A project may come from others: a link in it must not choose which file is overwritten.
    if edit.root is not None and not real.is_relative_to(edit.root.resolve()):
        raise LeftAlone(f"it leads to {real}, outside of this project.")
    if real.exists() and not real.is_file():
        raise LeftAlone("it is not an ordinary file.")
    return real


def _read(path: Path) -> str | None:
    try:
        return read_regular_file(path).decode()
    except FileNotFoundError:
        return None


def _diff(path: Path, before: str | None, after: str | None) -> str:
    names = ("/dev/null" if before is None else str(path), "/dev/null" if after is None else str(path))
    former, new = (before or "").splitlines(), (after or "").splitlines()
    lines = difflib.unified_diff(former, new, *names, n=1, lineterm="")
    return "".join(without_controls(line) + "\n" for line in lines)


def _write(path: Path, before: str | None, text: str | None) -> Path | None:
    """Write, or remove the file; return the backup of a replaced one. LeftAlone: it is not as it was shown."""
    if _read(path) != before:
        raise LeftAlone("it has changed in the meantime.")
    if text is None:
        path.unlink()
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    if before is None:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        return None
    backup = next(p for n in range(1000) if not os.path.lexists(p := path.with_name(f"{path.name}.bak{n or ''}")))
    shutil.copy2(path, backup)
    write_atomic(path, text.encode(), mode=stat.S_IMODE(path.stat().st_mode))
    return backup
