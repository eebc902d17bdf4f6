"""A run's status with what it ran, for one read: the digests of its configuration files and of its code."""

from __future__ import annotations

import hashlib

from mcp_server.answer import Answer
from mcp_server.record.code.code_snapshot import CodeSnapshot, read_code_snapshot
from mcp_server.record.code.code_state import SOURCES, load_code_state, name_below
from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.views.run_status import RunStatus, add_command, status_of

_DIGEST_CHARS = 12
_MOST_CONFIGS = 12


class CodeDigests(Answer):
    """The code of the newest attempt, as it was at its start. Digests: the first 12 digits of SHA-256.

    ``changes``: of the uncommitted changes. ``sources``: of all ``files`` source files, by path and content; absent
    where one could not be read. ``copy``: of the copy that was sent or kept.
    """

    commit: str | None = None
    changes: str | None = None
    sources: str | None = None
    files: int | None = None
    copy_hash: str | None = None


class RanStatus(RunStatus):
    """The state of one run, its command as it ran, and what it ran. ``configs``: digests of its configuration files."""

    configs: dict[str, str] | None = None
    code: CodeDigests | None = None


def describe_ran(store: RunStore, run: Run) -> RanStatus:
    """Return the status of ``run`` with what it ran. Reads files: call it in a thread."""
    status = add_command(status_of(store, run), run)
    snapshot = read_code_snapshot(store.fetch_record(run), run.attempt)
    copy_hash = str((run.spec.code or {}).get("hash", ""))[:_DIGEST_CHARS] or None
    configs, code = None, CodeDigests(copy_hash=copy_hash) if copy_hash else None
    if snapshot is not None:
        kept = [one for one in snapshot.files if one.sha256 and not one.path.endswith(SOURCES)]
        configs = {name_below(one.path, run.spec.cwd): one.sha256[:_DIGEST_CHARS] for one in kept[:_MOST_CONFIGS]}
        code = _describe_code(run, snapshot, copy_hash)
    facts = {name: getattr(status, name) for name in type(status).model_fields}
    return RanStatus(**facts, configs=configs or None, code=code)


def _describe_code(run: Run, snapshot: CodeSnapshot, copy_hash: str | None) -> CodeDigests | None:
    state, diff = load_code_state(snapshot.directory), snapshot.read_diff()
    sources = {path: one.sha256 for path, one in state.files.items() if path.endswith(SOURCES)} if state else {}
    lines = [f"{name_below(path, run.spec.cwd)}\0{digest}" for path, digest in sorted(sources.items())]
    code = CodeDigests(
        commit=snapshot.git.commit or None,
        changes=_digest(diff) if diff and not snapshot.git.cut else None,
        sources=_digest("\n".join(sorted(lines))) if lines and all(sources.values()) else None,
        files=len(lines) or None,
        copy_hash=copy_hash,
    )
    return code if code != CodeDigests() else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
