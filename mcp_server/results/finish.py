"""Writes the results of an ended run into its result directory: document, diff of the code, `finish.flag`."""

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from mcp_server.backends.base import backend_of
from mcp_server.command.outputs import find_in_command
from mcp_server.errors import BadArgument, LaunchFailed, NotOfSweeps, RunNotFound, RunUnreadable, RunwardError
from mcp_server.hosts.environment import read_secrets_file
from mcp_server.record.code.code_snapshot import CodeSnapshot, read_code_snapshot
from mcp_server.record.events import ENDING
from mcp_server.record.results import result_page
from mcp_server.record.results.experiment_log import append_end
from mcp_server.record.results.notes import NOTES, mark_noted, read_notes, tell_note
from mcp_server.record.results.result_page import ADDITIONS_MARK, RunEnd, read_tracker_link
from mcp_server.record.run_directory import RunDir, now, read_json, write_json
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.results import checkpoints, configuration, document, metrics
from mcp_server.results.document import ResultFacts
from mcp_server.results.evaluations import evaluations
from mcp_server.results.evaluations.printed_evaluations import read_printed_evaluations
from mcp_server.results.far_results import documents_of, exists_there, name_there, show_far_files
from mcp_server.results.outcome_answers import Finished
from mcp_server.results.run_differences import describe_run_differences
from mcp_server.scalars.run_scalars import Scalars, list_located_events
from mcp_server.store.attribution.attribution import describe_uncertain
from mcp_server.store.attribution.claim_records import files_root
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system import git_state
from mcp_server.system.files import read_regular_file
from mcp_server.system.git_state import GitState
from mcp_server.text.formatting import printable, shorten_facts
from mcp_server.text.secret_patterns import mask_secrets, mask_source, names_a_secret

_LONGEST_KEPT, _LONGEST_SHOWN = 4_000, 240


def keep_finding(rundir: RunDir, summary: str | None, results: Path) -> None:
    """Keep the summary of a results document, already masked, and where the document is."""
    write_json(rundir.finding, {"summary": (summary or "")[:_LONGEST_KEPT], "results": str(results), "at": now()})


def describe_finding(run: Run, rundir: RunDir, *, with_page: bool) -> str | None:
    """Return a run's conclusion, document and page in a tracker, as one line; ``with_page``: also a page alone."""
    facts = read_json(rundir.finding) or {}
    summary, results = (str(facts.get(name) or "") for name in ("summary", "results"))
    if results and not run.spec.mirror:
        results = find_own_document(Path(results), run.run_id)
    whole = " ".join(printable(summary).split())
    link = read_tracker_link(rundir.log(run.attempt)) if results or with_page else None
    page = (link.url or link.directory) if link else ""
    noted = [tell_note(note) for note in read_notes(rundir.path / NOTES)[-1:]]
    why = shorten_facts(" ".join(printable(run.spec.why or "").split()), _LONGEST_SHOWN)
    words = "" if any(whole in note for note in noted) else shorten_facts(whole, _LONGEST_SHOWN)
    parts = [part for part in (why and f"why: {why}", *noted, words, results, page) if part]
    return f"{run.run_id}: {' | '.join(parts)}" if parts else None


def find_own_document(path: Path, run_id: str) -> str:
    """Return where the document of a run is now: a later run in its directory moves it aside. Empty: it is gone."""
    aside = path.with_name(f"results-{run_id}.md")
    owner, _ = result_page.read_origin(path)
    if owner != run_id and result_page.read_origin(aside)[0] == run_id:
        return str(aside)
    return str(path) if owner in (None, run_id) and path.is_file() else ""


_DIFF_MARK = "# runward run "
_LONGEST_SUMMARY = 20_000
_LOCK_TIMEOUT_S = 30.0
_OWN_RESULTS = "results"  # in the record of a run without a result directory


# Each directory has a lock of its own, since another one may be on a file system that does not answer.
_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
_guard = threading.Lock()


def _lock_of(directory: Path) -> threading.Lock:
    """Return the lock of a directory, whatever path names it, against two writers, who would both append to its log."""
    with _guard:
        return _locks.setdefault(os.path.realpath(directory), threading.Lock())


class NotFinished(RunwardError):
    """The results of a run cannot be written now."""


def write_results(
    run: Run,
    store: RunStore,
    scalars: Scalars,
    *,
    summary: str | None = None,
    verdict: str | None = None,
    result_dir: str | None = None,
    tensorboard: str | None = None,
    results: Sequence[str] = (),
    caller: str | None = None,
    environ: Mapping[str, str],
) -> Finished:
    """Write the results document of a run that has ended, then `finish.flag`. A second call updates both. Blocks.

    ``caller`` must own the run; None allows every run. ``tensorboard`` and ``results``: whose files these are is kept
    for every later answer; see ``record/claims``. NotFinished: it has not ended, is another owner's, or a
    file is unwritable. BadArgument: the summary is too long, or a path cannot be used.
    """
    if not run.ended:
        raise NotFinished(f"{run.run_id} {run.still};", "nothing was written.", "Call wait_run, then again.")
    if caller is not None and run.spec.owner not in ("", caller):
        cause = f"{run.run_id} belongs to {run.spec.owner!r}, you are {caller!r};"
        raise NotFinished(cause, "nothing was written.", "Ask its owner.")
    if summary is not None and len(summary) > _LONGEST_SUMMARY:
        raise BadArgument("summary", f"has more than {_LONGEST_SUMMARY:,} characters.")
    directory, local = _make_directory(run, result_dir, store), store.run_directory(run.run_id)
    if tensorboard or results:
        _correct_attribution(run, local, tensorboard, results, caller)
    secrets = _find_secrets(run, store, environ)
    later = store.list_specs(RunQuery(after=run, mirror=run.spec.mirror))
    facts = _gather_facts(run, store, scalars, directory, later, secrets, environ, summary)
    noted = next((note["verdict"] for note in reversed(read_notes(local.path / NOTES)) if "verdict" in note), None)
    facts = replace(facts, verdict=verdict or noted)
    later_run, lock = _find_later_run(directory, later), _lock_of(_see(directory, run))
    if not lock.acquire(timeout=_LOCK_TIMEOUT_S):
        raise NotFinished(
            f"{run.run_id}: another call has been writing results for {_LOCK_TIMEOUT_S:g} s;",
            "nothing was written.",
            "Call again.",
        )
    try:
        write = _write_there if run.spec.mirror else _write
        finished = write(directory, facts, secrets, later_run=later_run)
    except LaunchFailed as error:  # as a relay says that a document has changed
        raise NotFinished(f"Results of {run.run_id} not written: {error.cause}", error.state, error.remedy) from error
    except OSError as error:
        where = error.filename or directory
        raise NotFinished(
            f"Results of {run.run_id} not written: {where}: {error.strerror or error}.",
            "The run is unchanged.",
            "Pass another result_dir, or have a person make this one writable.",
        ) from error
    finally:
        lock.release()
    if summary is not None or not local.finding.is_file():
        with contextlib.suppress(OSError):  # the documents are written
            keep_finding(local, mask_secrets(summary or "", secrets), Path(finished.results_path))
            mark_noted(store.home.path, run.run_id)
    return finished


def _see(directory: Path, run: Run) -> Path:
    """Return where the files of a directory of the run's host stand here."""
    return Path(f"{files_root(run.spec.mirror)}{directory}") if run.spec.mirror else directory


def _gather_facts(
    run: Run,
    store: RunStore,
    scalars: Scalars,
    directory: Path,
    later: Sequence[RunSpec],
    secrets: Mapping[str, str],
    environ: Mapping[str, str],
    summary: str | None,
) -> ResultFacts:
    rundir = store.fetch_record(run)
    snapshot = read_code_snapshot(rundir, run.attempt)
    code = _read_code(run, snapshot, environ, secrets)
    own = scalars.attribution.of(run).with_result_directory(_see(directory, run))
    seen, remark = run, ""
    if run.spec.mirror:
        seen, remark = show_far_files(run, own)
    else:
        own.learn(list_located_events(scalars.locate(run).locations))
    written = configuration.find_written_configs(own)
    run_evaluations = evaluations.find_run_evaluations(seen, own)
    evaluated = {str(name_there(one.source, run)) for one in run_evaluations}
    numbers = metrics.read_metrics(run, scalars, rundir=rundir, read_otherwise=evaluated)
    numbers = replace(numbers, source=numbers.source.replace(str(rundir.path / "files"), ""))  # of a far run's copies
    run_checkpoints = checkpoints.find_run_checkpoints(seen, own)
    uncertain = describe_uncertain([str(name_there(path, run)) for path in own.uncertain])
    places = _list_places(run.spec, directory)
    return ResultFacts(
        run=run,
        end=read_end(run, rundir),
        summary=summary,
        numbers=numbers,
        evaluations=[
            *read_printed_evaluations(run, rundir),
            *(replace(one, source=name_there(one.source, run)) for one in run_evaluations),
        ],
        checkpoints=[replace(one, path=name_there(one.path, run)) for one in run_checkpoints],
        account=result_page.read_attempts_report(rundir),
        code=code,
        snapshot=snapshot,
        written_configs=[replace(one, path=name_there(one.path, run)) for one in written],
        leftovers=len(backend_of(run.spec).find_leftovers(run)),
        left_out=" ".join(filter(None, (uncertain, remark))) or None,
        places=own.describe_places(),
        repeats=_compare_repeated(run, store, scalars, environ),
        later_writer=next((other.run_id for other in later if places & _list_places(other)), None),
    )


def _compare_repeated(
    run: Run, store: RunStore, scalars: Scalars, environ: Mapping[str, str]
) -> tuple[str, Sequence[str]] | None:
    """Return the run that this one repeats, and in what they differ; None where it repeats none that is still known."""
    name = (run.spec.like or "").partition("@")[0]
    with contextlib.suppress(RunNotFound, RunUnreadable, NotOfSweeps):
        if name:
            return name, describe_run_differences(store, scalars, store.observe(name), run, environ=environ)
    return None


def _read_code(
    run: Run, snapshot: CodeSnapshot | None, environ: Mapping[str, str], secrets: Mapping[str, str]
) -> GitState:
    code = replace(snapshot.git, diff=snapshot.read_diff()) if snapshot else _read_code_now(run, environ)
    if run.spec.code and not code.commit:
        code = replace(code, commit=run.spec.code.get("commit", ""))
    return replace(code, diff=mask_source(code.diff, secrets), subject=mask_secrets(code.subject, secrets))


def _read_code_now(run: Run, environ: Mapping[str, str]) -> GitState:
    """Return the state of the code as it is now: of a run whose supervisor kept nothing."""
    if run.spec.mirror:  # what is here at that path is another host's
        return GitState()
    return git_state.read_git_state(Path(run.spec.cwd or "/"), environ)


def read_end(run: Run, rundir: RunDir) -> RunEnd:
    """Return how a run ended. A lost run has no end time."""
    last: Mapping[str, Any] = next((event for event in reversed(run.events) if event["kind"] in ENDING), {})
    elapsed_s = last.get("elapsed_s")
    return RunEnd(
        run_id=run.run_id,
        state=run.state,
        text=str(last.get("text") or run.reason or run.state),
        attempts=run.attempt,
        elapsed_s=elapsed_s if isinstance(elapsed_s, int | float) else run.elapsed_s(0.0),
        started_at=run.started_at,
        ended_at=run.ended_at,
        log=rundir.log(run.attempt),
        exit_code=run.exit_code,
        signal=run.signal,
        earlier=run.earlier,
        failure=run.failure,
        changed=tuple(run.attempt_params.changed.values()),
        tracker=read_tracker_link(rundir.log(run.attempt)),
    )


def _correct_attribution(
    run: Run, rundir: RunDir, tensorboard: str | None, results: Sequence[str], caller: str | None
) -> None:
    """Keep what a person or agent says about whose files these are, beside the record that the supervisor writes."""
    if run.spec.mirror and tensorboard:
        raise BadArgument("tensorboard", "cannot be corrected for a run on another host.", "Pass logdir to read_tb.")
    stated = {"tensorboard": [tensorboard] if tensorboard else [], "results": list(results)}
    paths = {name: [_existing_path(name, path, run) for path in values] for name, values in stated.items() if values}
    earlier = read_json(rundir.attribution) or {}
    write_json(rundir.attribution, {**earlier, **paths, "by": caller or run.spec.owner, "at": now()})


def _existing_path(argument: str, text: str, run: Run) -> str:
    try:
        path = Path(os.path.normpath(Path(run.spec.cwd or "/") / Path(text).expanduser()))
        if mirror := run.spec.mirror:
            if exists_there(path, mirror):
                return f"{files_root(mirror)}{path}"
        elif path.exists() and path != Path("/"):
            return str(path)
    except (OSError, ValueError, RuntimeError):  # a NUL, an unknown user
        pass
    raise BadArgument(argument, f"does not exist: {text[:200]!r}.")


def _make_directory(run: Run, result_dir: str | None, store: RunStore) -> Path:
    """Return the result directory, by default below the run's record; here it is created."""
    name, record = result_dir or run.spec.result_dir, store.run_directory(run.run_id).path
    if not name and run.spec.mirror:
        state = (read_json(Path(run.spec.mirror) / "host.json") or {}).get("state")
        record = Path(str(state)) / "runs" / run.run_id if state else record
    name = name or str(record / _OWN_RESULTS)
    try:
        path = Path(name).expanduser()
        if not path.is_absolute() or path == Path("/"):
            raise BadArgument("result_dir", f"is not an absolute path of a directory: {name[:200]!r}.")
        if not run.spec.mirror:
            result_page.make_directory(path)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, an unknown user
        raise BadArgument("result_dir", f"cannot be created: {getattr(error, 'strerror', None) or error}.") from error
    return path


def _find_later_run(directory: Path, later: Sequence[RunSpec]) -> str | None:
    path = os.path.realpath(directory)
    same = (other for other in later if other.result_dir and os.path.realpath(other.result_dir) == path)
    return next((other.run_id for other in same), None)


def _list_places(spec: RunSpec, directory: Path | None = None) -> set[str]:
    named = find_in_command(spec.command, spec.cwd, spec.params)
    return {path for path in (*named, directory and str(directory), spec.result_dir) if path and path != spec.cwd}


def _find_secrets(run: Run, store: RunStore, environ: Mapping[str, str]) -> dict[str, str]:
    secrets = {name: value for name, value in environ.items() if names_a_secret(name) or name in run.spec.secrets}
    with contextlib.suppress(RunwardError):  # a secrets file that others can read is not used for launches either
        secrets |= read_secrets_file(store.home.secrets)
    return secrets


def _write(directory: Path, facts: ResultFacts, secrets: Mapping[str, str], *, later_run: str | None) -> Finished:
    """Write log, diff, document and flag, in this order."""
    run, files, notes = facts.run, [], []
    try:
        append_end(directory, facts.end, run.spec, secrets)
        files.append(directory / result_page.EXPERIMENT_LOG)
    except OSError as error:
        notes.append(f"{result_page.EXPERIMENT_LOG} was not changed: {error.strerror or error}.")
    if facts.code.diff:
        files.append(_write_diff(directory, run, facts.code))
    own = directory / f"results-{run.run_id}.md"
    path = own if later_run else result_page.choose_document_path(directory, run.run_id)
    earlier = [each for each in (path, own, directory / result_page.RESULTS_DOCUMENT) if each.is_file()]
    if facts.summary is None:
        facts = replace(facts, summary=document.read_summary(path, run.run_id))
    facts = replace(facts, recorded=document.read_recorded(earlier, run.run_id))
    diff, additions = files[-1].name if facts.code.diff else None, result_page.read_additions(path)
    text = document.render_document(facts, diff=diff, additions=additions)
    generated, additions_mark, additions = text.partition(ADDITIONS_MARK)
    result_page.write_text(path, mask_secrets(generated, secrets) + additions_mark + additions)
    if path.name != result_page.RESULTS_DOCUMENT and not later_run:
        notes.append(f"{result_page.RESULTS_DOCUMENT} was written by a person and was not changed.")
    files.append(path)
    flag = None
    if later_run:
        flag_file = result_page.FINISH_FLAG
        notes.append(f"{later_run}, a later run, uses this directory: its {flag_file} was not changed.")
    else:
        flag = result_page.write_flag(directory, {**facts.end.facts, "results": path.name, "finished_at": now()})
        files.append(flag)
    return Finished(
        run_id=run.run_id,
        status="written",
        state=run.state,
        results_path=str(path),
        flag_path=str(flag) if flag else None,
        files=[str(one) for one in files],
        notes=[*notes, *document.list_doubts(facts)] or None,
    )


def _write_there(directory: Path, facts: ResultFacts, secrets: Mapping[str, str], *, later_run: str | None) -> Finished:
    """Write the same files into a directory of the run's host, or raise as ``documents_of``."""
    mirror = Path(facts.run.spec.mirror)
    state = (read_json(mirror / "host.json") or {}).get("state") or mirror
    with documents_of(facts.run, str(directory)) as copy:
        finished = _write(copy, facts, secrets, later_run=later_run)
        for path in map(Path, finished.files or ()):
            path.write_bytes(path.read_bytes().replace(f"{mirror}/runs/".encode(), f"{state}/runs/".encode()))
    there = finished.model_dump_json().replace(str(copy), str(directory))
    return Finished.model_validate_json(there)


def _write_diff(directory: Path, run: Run, code: GitState) -> Path:
    """Write the uncommitted changes as a file for `git apply`. A file of another origin is not overwritten."""
    path, first = directory / "code.diff", f"{_DIFF_MARK}{run.run_id}: not in commit {code.commit}\n"
    if os.path.lexists(path):
        old = b""
        with contextlib.suppress(OSError):
            old = read_regular_file(path, max_bytes=200, follow_links=False)
        if not old.startswith(f"{_DIFF_MARK}{run.run_id}:".encode()):
            path = directory / f"code-{run.run_id}.diff"
    result_page.write_text(path, first + code.diff + ("\n# cut off here: it is longer\n" if code.cut else ""))
    return path
