"""Which code several runs ran, by what was kept of it: the commit, uncommitted changes, and the files themselves."""

import contextlib
import difflib
import hashlib
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.record.code.code_snapshot import SOURCES_ARCHIVE, CodeSnapshot, read_code_snapshot
from mcp_server.record.code.code_state import SOURCES, load_code_state
from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import name_below
from mcp_server.system.git_state import list_filter_options, read_git
from mcp_server.text.formatting import join_some
from mcp_server.text.secret_patterns import mask_source

_COMMIT_CHARS, _MOST_FILES, _MOST_FUNCTIONS = 10, 8, 4
_DIFF_BYTES, _CONTEXT = 1 << 20, 3  # lines of a hunk before its first change
_HUNK = re.compile(r"@@ -\S+ \+(\d+)\S* @@$")
_DEFINITION = re.compile(r"(?P<indent>\s*)(?:async\s+)?(?:def|class)\s+(?P<name>\w+)")
_ABOVE = re.compile(r"@@ .*? @@ ?(?P<text>.*)")  # the definition that git names above a hunk
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
    else:  # git's diff does not have what git does not know
        files = {path: digest for path, digest in _digest_untracked(snapshot) if path not in files} | files
    is_whole = bool(snapshot.git.commit) and not snapshot.git.problem and not snapshot.git.cut
    changes = split_diff(snapshot.read_diff()) if is_whole else None
    digests = {name_below(path, cwd): digest for path, digest in files.items()}
    has_untracked = any(name.endswith(SOURCES) for name in snapshot.git.untracked)
    named = frozenset(name_below(one.path, cwd) for one in snapshot.files if one.path.endswith(SOURCES))
    return CodeOfRun(run_id, snapshot.git.commit, digests, changes, has_untracked, named)


def _digest_untracked(snapshot: CodeSnapshot) -> Iterator[tuple[str, str]]:
    """Yield the source files that were kept whole, but for those that git knows."""
    if snapshot.git.commit and not any(name.endswith(SOURCES) for name in snapshot.git.untracked):
        return
    for path, text in _read_archive(snapshot):
        if path.endswith(SOURCES) and path.removeprefix(f"{snapshot.archive.root}/") not in snapshot.git.changed:
            yield path, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


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
    commits = _list_commits(codes)
    more = f" What else the commits {join_some(commits, _MOST_FILES)} changed is not compared." if commits else ""
    who = f" Alike: {groups}." if len(codes) > 2 and (groups := _group(codes, differing)) else ""  # noqa: PLR2004
    named = [code.named for code in codes]
    is_beside = all(named) and not any(_is_same_file(one, name) for one in frozenset().union(*named) for name in names)
    where = " beside the files that the commands name" if is_beside else ""  # whether a run used it is not known
    return [f"Code differs{where}: {join_some(names, _MOST_FILES)}.{who}{more}"]


def describe_other_code(codes: Sequence[CodeOfRun]) -> str:
    """Return in which files or commits the code of runs differs: ``sup.py``. Empty where no difference is known."""
    return join_some([*_drop_ends(list_differing_files(codes)), *_list_commits(codes)], _MOST_FILES)


def _list_commits(codes: Sequence[CodeOfRun]) -> list[str]:
    """Return the commits of runs where they are not one: in more files than were kept their code may differ."""
    commits = list(dict.fromkeys(code.described_commit for code in codes if code.commit))
    return commits if len({code.commit for code in codes} - {""}) > 1 else []


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


def read_code_diff(
    store: RunStore, environ: Mapping[str, str], run: Run, other: Run | None = None
) -> tuple[str, str | None]:
    """Return the code of a run against its commit, or against that of ``other``, as a diff, masked; and what limits it.

    Also where only the files were kept: those that both kept are compared. Blocks.
    """
    code = read_code_snapshot(store.fetch_record(run), run.attempt)
    if code is None:
        return "", f"The code of {run.run_id} was not kept."
    if other is None:
        note = (
            "Longer changes were cut." if code.git.cut else None if code.git.commit else "It is in no git repository."
        )
        return mask_source(code.read_diff()), note
    before = read_code_snapshot(store.fetch_record(other), other.attempt)
    if before is None:
        return "", f"The code of {other.run_id} was not kept."
    parts, note = list(_diff_kept(before, code)), None
    if code.git.commit and before.git.commit:
        parts, note = _join_diffs(environ, (other, before), (run, code))
    return mask_source("\n".join(filter(None, parts))), note


def _diff_kept(before: CodeSnapshot, code: CodeSnapshot) -> Iterator[str]:
    """Yield the differences of the files that both kept."""
    former = _read_kept(before)
    for path, text in _read_kept(code).items():
        if path in former and former[path] != text:
            name = path.lstrip("/")
            now = text.splitlines()
            lines = difflib.unified_diff(former[path].splitlines(), now, f"a/{name}", f"b/{name}", lineterm="")
            yield "\n".join([f"diff --git a/{name} b/{name}", *(_name_hunk(line, now) for line in lines)])


def _name_hunk(line: str, text: Sequence[str]) -> str:
    """Return the first line of a hunk with the definition above its changes, as git writes it; other lines as is."""
    if (found := _HUNK.match(line)) is None:
        return line
    above = text[: int(found[1]) + _CONTEXT]
    return f"{line} {next((one for one in reversed(above) if _DEFINITION.match(one)), '')}".rstrip()


def _read_kept(snapshot: CodeSnapshot) -> dict[str, str]:
    """Return the texts of the files that a snapshot kept, by path."""
    texts = {one.path: text for one in snapshot.files if (text := snapshot.read_file(one)) is not None}
    for path, text in _read_archive(snapshot):
        texts.setdefault(path, text)
    return texts


def _read_archive(snapshot: CodeSnapshot) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each file in the archive."""
    with contextlib.suppress(OSError, tarfile.TarError), tarfile.open(snapshot.directory / SOURCES_ARCHIVE) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                yield f"{snapshot.archive.root}/{member.name}", file.read().decode("utf-8", "replace")


def _join_diffs(
    environ: Mapping[str, str], former: tuple[Run, CodeSnapshot], newer: tuple[Run, CodeSnapshot]
) -> tuple[list[str], str | None]:
    """Return the difference of two commits, and the uncommitted changes of both where they differ."""
    (other, before), (run, code) = former, newer
    parts, note, root = list[str](), None, Path(code.git.root or "/")
    if code.git.commit != before.git.commit:
        note = "The commits cannot be compared here."
        if not (run.spec.mirror or other.spec.mirror):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                words = (*list_filter_options(root, environ), "diff", "--no-ext-diff", "--no-textconv")
                span = (before.git.commit, code.git.commit, "--")
                data, _ = read_git(root, environ, *words, "--no-color", *span, most=_DIFF_BYTES)
                parts, note = [data.decode(errors="replace")], None
    if code.read_diff() != before.read_diff():
        for name, one in ((other.run_id, before), (run.run_id, code)):
            diff = one.read_diff()
            parts.append(f"# uncommitted when {name} started: {'' if diff else 'nothing'}\n{diff}")
    return parts, note


def name_functions(diff: str) -> list[str]:
    """Return the files of a diff with the functions and classes in which they differ: ``train.py (step, Agent)``."""
    functions: dict[str, dict[str, None]] = {}
    starts = list(_SECTION.finditer(diff))
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(diff)
        names = functions.setdefault(start["path"], {})
        names.update(dict.fromkeys(_list_changed(diff[start.end() : end].splitlines())))
    return [
        f"{path.rpartition('/')[2]} ({join_some(list(names), _MOST_FUNCTIONS)})"
        for path, names in functions.items()
        if names
    ]


def _list_changed(lines: Iterable[str]) -> Iterator[str]:
    """Yield the functions and classes around the changed lines of hunks. Code that is not indented is in none."""
    name, indent = "", 0
    for line in lines:
        above = _ABOVE.match(line)
        text = above["text"] if above else line[1:]
        if found := _DEFINITION.match(text):
            name, indent = found["name"], len(found["indent"])
        elif above or (text.strip() and len(text) - len(text.lstrip()) <= indent):
            name = ""
        if name and line[:1] in ("-", "+") and text.strip():
            yield name
