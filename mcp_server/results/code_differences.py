"""Which code several runs ran, by what was kept of it: the commit, uncommitted changes, and the files themselves."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.record.code.code_snapshot import CodeSnapshot
from mcp_server.record.code.code_state import SOURCES, load_code_state, name_below
from mcp_server.text.formatting import join_some

_COMMIT_CHARS, _MOST_FILES = 10, 8
_SECTION = re.compile(r"^diff --git a/(?P<path>.+?) b/.*$", re.MULTILINE)


@dataclass(frozen=True)
class CodeOfRun:
    """What is known of a run's code. ``files``: digests by path below its directory, or the whole path.

    ``changes``: digests of uncommitted changes by path below the work tree, None where they are unknown.
    """

    run_id: str
    commit: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] | None = None
    has_untracked: bool = False  # source files that git does not know, which the run may have executed
    named: frozenset[str] = frozenset()  # source files that its command names

    @property
    def described_commit(self) -> str:
        """The short commit, with a mark where changes were not committed, or source files never."""
        mark = "+changes" if self.changes else "+untracked" if self.has_untracked else ""
        return f"{self.commit[:_COMMIT_CHARS]}{mark if self.commit else ''}"


def read_ran_code(run_id: str, cwd: str, snapshot: CodeSnapshot | None) -> CodeOfRun:
    """Return what was kept of the code of an attempt in the directory ``cwd``. Reads files."""
    if snapshot is None:
        return CodeOfRun(run_id)
    files = {one.path: one.sha256 for one in snapshot.files if one.path.endswith(SOURCES) and one.sha256}
    if (state := load_code_state(snapshot.directory)) is not None:
        files = {path: one.sha256 for path, one in state.files.items() if path.endswith(SOURCES) and one.sha256} | files
    is_whole = bool(snapshot.git.commit) and not snapshot.git.problem and not snapshot.git.cut
    changes = split_diff(snapshot.read_diff()) if is_whole else None
    digests = {name_below(path, cwd): digest for path, digest in files.items()}
    has_untracked = any(name.endswith(SOURCES) for name in snapshot.git.untracked)
    named = frozenset(name_below(one.path, cwd) for one in snapshot.files if one.path.endswith(SOURCES))
    return CodeOfRun(run_id, snapshot.git.commit, digests, changes, has_untracked, named)


def split_diff(diff: str) -> dict[str, str]:
    """Return the digest of each file's part of a diff."""
    starts = list(_SECTION.finditer(diff))
    ends = [match.start() for match in starts[1:]] + [len(diff)]
    return {
        match["path"]: hashlib.sha256(diff[match.start() : end].encode()).hexdigest()
        for match, end in zip(starts, ends, strict=False)  # nothing was changed: no section, one end
    }


def find_code_differences(codes: Sequence[CodeOfRun]) -> list[str]:
    """Return sentences that name the files in which the code of runs differs, as far as it was kept."""
    differing = list_differing_files(codes)
    if not differing:
        return []
    names = _drop_ends(differing)
    who = f" Alike: {groups}." if len(codes) > 2 and (groups := _group(codes, differing)) else ""  # noqa: PLR2004
    named = [code.named for code in codes]
    is_beside = all(named) and not any(_is_same_file(one, name) for one in frozenset().union(*named) for name in names)
    where = " beside the files that the commands name" if is_beside else ""  # whether a run used it is not known
    return [f"Code differs{where}: {join_some(names, _MOST_FILES)}.{who}"]


def describe_other_code(codes: Sequence[CodeOfRun]) -> str:
    """Return in which files or commits the code of runs differs: ``sup.py``. Empty where no difference is known."""
    commits = list(dict.fromkeys(code.described_commit for code in codes if code.commit))
    known = commits if len({code.commit for code in codes} - {""}) > 1 else []
    names = _drop_ends(list_differing_files(codes)) or known
    return join_some(names, _MOST_FILES)


def list_differing_files(codes: Sequence[CodeOfRun]) -> list[str]:
    """Return the files in which the code of runs is known to differ."""
    differing: dict[str, None] = {}
    for name in dict.fromkeys(name for code in codes for name in code.files):
        if len({code.files[name] for code in codes if name in code.files}) > 1:
            differing[name] = None
    known = [code for code in codes if code.changes is not None]
    if len({code.commit for code in known}) == 1:  # changes to different commits are not comparable
        for name in dict.fromkeys(name for code in known for name in code.changes or {}):
            if len({(code.changes or {}).get(name) for code in known}) > 1:
                differing[name] = None
    return list(differing)


def _drop_ends(names: Sequence[str]) -> list[str]:
    """Return the names without those that are the end of another one: one file below two roots."""
    return [one for one in names if not any(other.endswith(f"/{one}") for other in names)]


def _is_same_file(one: str, other: str) -> bool:
    """Return whether paths below two roots may be of one file."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def _group(codes: Sequence[CodeOfRun], names: Sequence[str]) -> str:
    groups: dict[tuple[str, ...], list[str]] = {}
    for code in codes:
        # Where all changes to a commit are known, they say more than the files that happen to be kept.
        parts = code.files if code.changes is None else code.changes
        key = (code.commit if code.changes is not None else "", *(str(parts.get(name)) for name in names))
        groups.setdefault(key, []).append(code.run_id)
    return "; ".join(", ".join(ids) for ids in groups.values() if len(ids) > 1)
