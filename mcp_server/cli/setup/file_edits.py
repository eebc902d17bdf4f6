"""Changes to files that people own: summed up, shown on request and confirmed once, before the first is made."""

import difflib
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.text.formatting import printable

_MOST_PARENTS = 3
_EMPTY = ("", "{}")


class LeftAlone(Exception):
    """A file was not changed. The message is the reason."""


@dataclass(frozen=True)
class Edit:
    """One file, whose links stay inside ``root``, to ``change`` (None removes it). ``note``: what the change does.

    ``takes_out``: a file that holds nothing afterwards is removed, and directories that are empty then.
    """

    path: Path
    root: Path | None
    change: Callable[[str], str | None]
    note: str = ""
    takes_out: bool = False


@dataclass(frozen=True)
class _Planned:
    edit: Edit
    path: Path
    before: str | None
    after: str | None

    @property
    def line(self) -> str:
        verb = "remove" if self.after is None else "create" if self.before is None else "change"
        return f"{verb}  {self.path}" + (f": {self.edit.note}" if self.edit.note else "")

    @property
    def diff(self) -> Iterator[str]:
        names = ["/dev/null" if text is None else str(self.path) for text in (self.before, self.after)]
        former, new = (self.before or "").splitlines(), (self.after or "").splitlines()
        return difflib.unified_diff(former, new, names[0], names[1], n=1, lineterm="")


def apply_edits(
    edits: Sequence[Edit],
    *,
    sure: bool,
    lines: Sequence[Sequence[str]] = (),
    run: Callable[[Sequence[str]], bool] = bool,
) -> bool:
    """Sum up the changes, ask once, and make them; return whether all files have the right content.

    ``lines``: command lines that ``run`` runs before, until one fails: what follows is useless without them.
    """
    planned: list[_Planned] = []
    tried = [_attempt(edit.path, partial(_plan, edit, planned)) for edit in edits]
    fine = all(tried)
    if not (planned or lines):
        print("Nothing to change." if fine else "Nothing else to change.")
        return fine
    for summary in (*(f"run     {shlex.join(line)}" for line in lines), *(each.line for each in planned)):
        print(f"  {without_controls(summary)}")
    if not _confirm_all(planned, sure=sure):
        print("All is left as it is.")
        return False
    if not all(run(line) for line in lines):
        return False
    tried += [_attempt(each.edit.path, partial(_write, each)) for each in planned]
    fine = all(tried)
    print("Done." if fine else "Done, but for what is named above.")
    return fine


def _attempt(path: Path, step: Callable[[], object]) -> bool:
    """Take a step; return False, and print why the file is left as it is, where it fails."""
    try:
        step()
    except (OSError, ValueError, RecursionError, LeftAlone) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"{path} was left as it is: {why}", file=sys.stderr)
        return False
    return True


def _confirm_all(planned: Sequence[_Planned], *, sure: bool) -> bool:
    if sure:
        return True
    if not sys.stdin.isatty():
        _show(planned)
        return confirm("Do this?", sure=False)
    while (answer := _ask("Do this? [y/N, d shows the differences] ")) in ("d", "diff"):
        _show(planned)
    return answer in ("y", "yes")


def _show(planned: Sequence[_Planned]) -> None:
    for each in planned:
        print("\n".join(without_controls(line) for line in each.diff))


def confirm(question: str, *, sure: bool) -> bool:
    """Return whether a person at the terminal says yes, or True without a question where ``sure``."""
    if sure:
        return True
    if not sys.stdin.isatty():
        print(f"{question} There is no terminal to ask on: --yes confirms.")
        return False
    return _ask(f"{question} [y/N] ") in ("y", "yes")


def _ask(question: str) -> str:
    try:
        return input(question).strip().lower()
    except EOFError:
        return ""


def without_controls(text: str) -> str:
    """Return ``text`` with each control character as a question mark."""
    return printable(text, "?", keep="\t\n")


def _plan(edit: Edit, planned: list[_Planned]) -> None:
    """Add the change of an edit to ``planned``, if it is one."""
    path = _find_target(edit)
    before = _read(path)
    after = edit.change(before or "")
    if edit.takes_out and before is not None and after is not None and after.strip() in _EMPTY:
        after = None
    if after != (before or "") and (after is not None or before is not None):
        planned.append(_Planned(edit, path, before, after))


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


def _write(planned: _Planned) -> None:
    """Write, or remove the file. LeftAlone: it is not as it was shown."""
    path, text = planned.path, planned.after
    if _read(path) != planned.before:
        raise LeftAlone("it has changed in the meantime.")
    if text is None:
        path.unlink()
        with suppress(OSError):  # a directory that is not empty
            for parent in path.parents[:_MOST_PARENTS]:
                if parent in (planned.edit.root, Path.home()):
                    break
                parent.rmdir()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if planned.before is None:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    else:
        write_atomic(path, text.encode(), mode=stat.S_IMODE(path.stat().st_mode))
