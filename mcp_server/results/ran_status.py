"""One run in one read: its state, what it ran with which settings and code, and where its results are."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_server.answer import Answer
from mcp_server.record.attempt_params import find_attempt_params, list_earlier_ends
from mcp_server.record.code.code_snapshot import CodeSnapshot, KeptFile, read_code_snapshot
from mcp_server.record.code.code_state import SOURCES, load_code_state
from mcp_server.record.run_directory import read_json
from mcp_server.record.state import Run
from mcp_server.results.checkpoints import find_run_checkpoints
from mcp_server.results.configuration import find_written_configs, read_configuration
from mcp_server.results.finish import find_own_document
from mcp_server.scalars.run_scalars import Scalars, location_path
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import name_below
from mcp_server.text.formatting import shorten_middle
from mcp_server.text.secret_patterns import mask_secrets, mask_value
from mcp_server.views.run_status import RunStatus, add_command, status_of

_DIGEST_CHARS = 12
_MOST_FILES, _MOST_SETTINGS, _MOST_ATTEMPTS, _VALUE_CHARS = 12, 60, 20, 120
_TOLD_ANYHOW = frozenset({"command", "cwd", "host", "gpus"})


class CodeDigests(Answer):
    """The code of the newest attempt, as it was at its start. Digests: the first 12 digits of SHA-256.

    ``changes``: of the uncommitted changes, "none" without any. ``untracked``: how many source files git does not know.
    ``scripts``: of the files that the command names. ``sources``: of all ``files`` source files, by path and
    content; absent where one could not be read, and where git tells. ``copy``: of the copy that was sent or kept.
    ``kept_in``: the directory with the diff, the files and the list of packages.
    """

    commit: str | None = None
    changes: str | None = None
    untracked: int | None = None
    scripts: dict[str, str] | None = None
    sources: str | None = None
    files: int | None = None
    copy_hash: str | None = None
    python: str | None = None
    packages: int | None = None
    kept_in: str | None = None


class AttemptRan(Answer):
    """One attempt: its parameters, the variables that a retry changed, and how it ended where another one followed."""

    attempt: int
    params: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    ended: str | None = None


class ResultPlaces(Answer):
    """Where the results of a run are: paths. ``curves``: files and directories with its metrics."""

    record: str
    log: str | None = None
    document: str | None = None
    curves: list[str] | None = None
    checkpoint: str | None = None
    configs: list[str] | None = None


class RanStatus(RunStatus):
    """The state of one run, its command as it ran, and what it ran. ``configs``: digests of its configuration files.

    ``settings``: options, keys of configuration files and variables by name. ``secrets``: names.
    """

    why: str | None = None
    settings: dict[str, str] | None = None
    secrets: list[str] | None = None
    attempts: list[AttemptRan] | None = None
    configs: dict[str, str] | None = None
    code: CodeDigests | None = None
    results: ResultPlaces | None = None


def describe_ran(store: RunStore, scalars: Scalars, run: Run) -> RanStatus:
    """Return the status of ``run`` with what it ran. Reads files: call it in a thread."""
    status = add_command(status_of(store, run), run)
    snapshot = read_code_snapshot(store.fetch_record(run), run.attempt)
    copy_hash = str((run.spec.code or {}).get("hash", ""))[:_DIGEST_CHARS] or None
    configs, code = None, CodeDigests(copy_hash=copy_hash) if copy_hash else None
    if snapshot is not None:
        configs = _list_digests(run, [one for one in snapshot.files if not one.path.endswith(SOURCES)])
        code = _describe_code(run, snapshot, copy_hash)
    facts = {name: getattr(status, name) for name in type(status).model_fields}
    return RanStatus(
        **facts,
        why=mask_secrets(run.spec.why) if run.spec.why else None,
        settings=_list_settings(run, snapshot) or None,
        secrets=run.spec.secrets or None,
        attempts=_list_attempts(run) or None,
        configs=configs or None,
        code=code,
        results=_find_results(store, scalars, run),
    )


def _list_settings(run: Run, snapshot: CodeSnapshot | None) -> dict[str, str]:
    settings = read_configuration(run, snapshot)
    named = {name: value for name, value in settings.items() if name not in _TOLD_ANYHOW and value}
    shown = dict(list(named.items())[:_MOST_SETTINGS])
    more = {"…": f"{len(named) - len(shown)} more in the configs"} if len(named) > len(shown) else {}
    return {name: shorten_middle(value, _VALUE_CHARS) for name, value in shown.items()} | more


def _list_attempts(run: Run) -> list[AttemptRan]:
    """Return the newest attempts, and none where there was one without parameters, of which nothing is to tell."""
    ends = dict(list_earlier_ends(run.events))
    attempts = []
    for number in range(max(1, run.attempt - _MOST_ATTEMPTS + 1), run.attempt + 1):
        own = find_attempt_params(run.spec, run.events, number)
        params, env = (
            {name: mask_value(name, one) if isinstance(one, str) else one for name, one in values.items()}
            for values in (own.params, own.environment)
        )
        attempts.append(AttemptRan(attempt=number, params=params or None, env=env or None, ended=ends.get(number)))
    return attempts if run.attempt > 1 or run.spec.params else []


def _find_results(store: RunStore, scalars: Scalars, run: Run) -> ResultPlaces:
    record = store.record_of(run)
    log, own, document = record.log(run.attempt), scalars.attribution.of(run), read_json(record.finding) or {}
    curves = dict.fromkeys(str(location_path(one)) for one in scalars.locate(run).locations)
    checkpoints = [] if run.spec.mirror else find_run_checkpoints(run, own)
    written = [] if run.spec.mirror else find_written_configs(own)
    return ResultPlaces(
        record=str(record.path),
        log=str(log) if log.exists() else None,
        document=_find_document(run, str(document.get("results") or "")),
        curves=list(curves)[:_MOST_FILES] or None,
        checkpoint=str(checkpoints[0].path) if checkpoints else None,
        configs=[str(one.path) for one in written] or None,
    )


def _find_document(run: Run, path: str) -> str | None:
    return (path if not path or run.spec.mirror else find_own_document(Path(path), run.run_id)) or None


def _list_digests(run: Run, files: Sequence[KeptFile]) -> dict[str, str]:
    known = [one for one in files if one.sha256][:_MOST_FILES]
    return {name_below(one.path, run.spec.cwd): one.sha256[:_DIGEST_CHARS] for one in known}


def _describe_code(run: Run, snapshot: CodeSnapshot, copy_hash: str | None) -> CodeDigests | None:
    state, diff = load_code_state(snapshot.directory), snapshot.read_diff()
    sources = {path: one.sha256 for path, one in state.files.items() if path.endswith(SOURCES)} if state else {}
    lines = [f"{name_below(path, run.spec.cwd)}\0{digest}" for path, digest in sorted(sources.items())]
    git = snapshot.git
    is_known = bool(git.commit) and not git.problem and not git.cut
    untracked = sum(name.endswith(SOURCES) for name in git.untracked)
    unchanged = "none in files that git knows" if untracked else "none"
    code = CodeDigests(
        commit=git.commit or None,
        changes=(_digest(diff) if diff else unchanged) if is_known else None,
        untracked=untracked or None,
        scripts=_list_digests(run, [one for one in snapshot.files if one.path.endswith(SOURCES)]) or None,
        sources=_digest("\n".join(sorted(lines))) if lines and all(sources.values()) else None,
        files=len(lines) or None,
        copy_hash=copy_hash,
        python=" ".join(filter(None, (snapshot.python_version, snapshot.python))) or None,
        packages=snapshot.packages or None,
    )
    return code.model_copy(update={"kept_in": str(snapshot.directory)}) if code != CodeDigests() else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
