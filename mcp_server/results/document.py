"""Renders the results document of a run: purpose, ending, metrics, checkpoints, configuration, code."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.result_directory import read_origin
from mcp_server.record.result_page import ADDITIONS_MARK, RunEnd, gpu_lines, render_page
from mcp_server.record.state import Run, posix
from mcp_server.results.checkpoints import Checkpoint, format_size
from mcp_server.results.configuration import configuration_files, read_blueprint, read_text
from mcp_server.results.evaluations import Evaluation, render_rows, render_table
from mcp_server.results.git_state import GitState
from mcp_server.results.metrics import Metric, RunMetrics
from mcp_server.text.formatting import clock

Sections = list[tuple[str, Sequence[str]]]

_MOST_METRICS, _MOST_CHECKPOINTS, _MOST_UNTRACKED = 60, 30, 30
_MOST_OF_FILE = 20_000  # characters of a configuration
_SUMMARY = re.compile(r"^## Summary\n\n(?P<text>.*?)\n\n## Verdict$", re.MULTILINE | re.DOTALL)
_LOCKS = ("uv.lock", "poetry.lock", "pixi.lock", "conda-lock.yml", "requirements.lock", "requirements.txt")


@dataclass(frozen=True, eq=False)
class ResultFacts:
    """The content of the results document of an ended run. ``leftovers``: number of its processes that still run."""

    run: Run
    end: RunEnd
    summary: str | None
    numbers: RunMetrics
    evaluations: Sequence[Evaluation]
    checkpoints: Sequence[Checkpoint]
    account: str
    code: GitState
    leftovers: int = 0


def render_document(facts: ResultFacts, *, diff: str | None, kept: str) -> str:
    """Return the document. ``diff``: name of the file with uncommitted changes. ``kept``: a person's part."""
    run = facts.run
    purpose = read_blueprint(run).purpose
    sections: Sections = [("Purpose", [purpose])] if purpose else []
    if facts.summary:
        sections.append(("Summary", [_lower_headings(facts.summary.strip())]))
    sections += [
        ("Verdict", [f"**{run.state}**", "", *facts.end.lines]),
        ("Metrics", list(_metrics(facts.numbers, run))),
        ("Evaluations", list(_evaluations(facts.evaluations)) or ["No result files were found."]),
        ("Checkpoints", list(_checkpoints(facts.checkpoints)) or ["None were found."]),
    ]
    if facts.account:
        sections.append(("Attempts", [facts.account]))
    sections += [
        ("Configuration", list(_configuration(run))),
        ("Environment", list(_environment(run, facts.code))),
        ("Code", list(_code(facts.code, diff))),
    ]
    if doubts := list_doubts(facts):
        sections.append(("What to doubt", [f"- {one}" for one in doubts]))
    title = (purpose or run.spec.name).split("\n")[0][:120]
    return render_page(run.run_id, "finish_blueprint", f"Results: {title}", sections, kept)


def list_doubts(facts: ResultFacts) -> list[str]:
    """Return one sentence for each part of the document that may be wrong."""
    run, doubts = facts.run, [*facts.numbers.notes[:5]]
    if facts.leftovers:
        doubts.append(f"{facts.leftovers} processes of the run still run: its results may change. See wait_run.")
    begun_s = posix(run.started_at) if run.started_at else None
    if begun_s and facts.code.committed_at and posix(facts.code.committed_at) > begun_s:
        doubts.append("The newest commit is later than the run's start: it may have run other code.")
    changed = [path for path in configuration_files(run) if begun_s and path.stat().st_mtime > begun_s]
    doubts += [f"{path} was changed after the run's start: it may have read another version." for path in changed]
    if begun_s and (blueprint_path := getattr(run.spec, "blueprint", None)):
        doubts += _doubt_blueprint(Path(blueprint_path), begun_s)
    broken = [f"{one.source.name}: {one.problem}" for one in facts.evaluations if one.problem]
    return [*doubts, *broken[:5]]


def _doubt_blueprint(path: Path, begun_s: float) -> Iterator[str]:
    try:
        if path.stat().st_mtime > begun_s:
            yield f"{path} was changed after the run's start: its purpose may have been another."
    except OSError:
        yield f"{path} no longer exists."


def read_summary(path: Path, run_id: str) -> str | None:
    """Return the summary in an earlier document of this run, or None without one."""
    if read_origin(path) != (run_id, "finish_blueprint"):
        return None
    match = _SUMMARY.search((read_text(path) or "").partition(ADDITIONS_MARK)[0])
    return match["text"] if match else None


def _lower_headings(text: str) -> str:
    """Return the text with an agent's headings below those of the document."""
    text = text.replace(ADDITIONS_MARK, "")
    if re.search(r"^##?\s", text, re.MULTILINE) is None:
        return text  # already lowered
    return re.sub(r"^(#{1,4})(?=\s)", r"\1##", text, flags=re.MULTILINE)


def _metrics(numbers: RunMetrics, run: Run) -> Iterator[str]:
    if not numbers.metrics:
        yield "No scalars were found."
        return
    step = f", at step {run.progress['step']}" if "step" in run.progress else ""
    yield f"Read from {numbers.source}{step}."
    yield ""
    rows = [_row(one) for one in numbers.metrics[:_MOST_METRICS]]
    yield from render_table(["metric", "first (step)", "last (step)", "best (step)", "best is", "odd points"], rows)
    if len(numbers.metrics) > _MOST_METRICS:
        yield f"\n… and {len(numbers.metrics) - _MOST_METRICS} more; read_tb shows them."


def _row(one: Metric) -> list[object]:
    best = _at(one.best, one.best_step)
    if one.best_is is None and one.low is not None and one.high is not None:
        best = f"{one.low:.6g} to {one.high:.6g}"
    which = one.best_is or ("range" if best else None)
    return [one.tag, _at(one.first, one.first_step), _at(one.last, one.last_step), best, which, one.odd or None]


def _at(value: float | str | None, step: int | None) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else f"{value:.6g}"
    return text if step is None else f"{text} ({step})"


def _evaluations(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    for one in evaluations:
        if one.rows:
            yield f"`{one.source}`{f': {one.title}' if one.title else ''}"
            yield ""
            if len(one.rows) == 1:
                yield from render_table(["figure", "value"], list(one.rows[0].items()))
            else:
                yield from render_rows(one.rows)
            yield ""


def _checkpoints(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    if checkpoints:
        rows = [[f"`{one.path}`", one.step, one.epoch, one.size] for one in checkpoints[:_MOST_CHECKPOINTS]]
        yield from render_table(["path", "step", "epoch", "size"], rows)
    if len(checkpoints) > _MOST_CHECKPOINTS:
        yield f"\n… and {len(checkpoints) - _MOST_CHECKPOINTS} older ones."


def _configuration(run: Run) -> Iterator[str]:
    spec = run.spec
    command = spec.command if isinstance(spec.command, str) else shlex.join(spec.command)
    yield from ("```bash", command.replace("```", "'''"), "```", "", f"- Working directory: `{spec.cwd}`")
    if blueprint_path := getattr(spec, "blueprint", None):
        yield f"- Blueprint: `{blueprint_path}`"
    if spec.params:
        yield f"- Parameters: `{json.dumps(spec.params, ensure_ascii=False)}` (attempts may have changed them)"
    if spec.env:
        yield f"- Environment: `{json.dumps(spec.env, ensure_ascii=False)}`"
    if spec.secrets:
        yield f"- Secrets, by name: {', '.join(spec.secrets)}"
    if spec.time_limit_s:
        yield f"- Time limit: {clock(spec.time_limit_s)}"
    yield f"- Owner: {spec.owner or 'unknown'}{f'; tags: {chr(44).join(spec.tags)}' if spec.tags else ''}"
    for path in configuration_files(run):
        text = read_text(path)
        if text is None or len(text) > _MOST_OF_FILE:
            yield f"\n`{path}` ({format_size(path.stat().st_size)}, too long to include)"
        else:
            yield f"\n`{path}`, as it is now:\n\n```yaml\n{text.strip().replace('```', chr(39) * 3)}\n```"


def _environment(run: Run, code: GitState) -> Iterator[str]:
    yield f"- Host: {run.spec.host or 'unknown'}"
    if run.spec.host == socket.gethostname():
        yield f"- System: {platform.platform()}"
    command = run.spec.command if isinstance(run.spec.command, str) else " ".join(run.spec.command)
    match = re.search(r"(/\S+)/bin/python[\d.]*\b", command)
    venv = match[1] if match else run.spec.env.get("VIRTUAL_ENV", "")
    if venv:
        version = re.search(r"^version(?:_info)?\s*=\s*(\S+)", read_text(Path(venv, "pyvenv.cfg")) or "", re.MULTILINE)
        yield f"- Python: `{match[0] if match else f'{venv}/bin/python'}`{f', {version[1]}' if version else ''}"
    root = Path(code.root or run.spec.cwd or "/")
    for name in _LOCKS:
        if (text := read_text(root / name)) is not None:
            yield f"- Packages: `{root / name}`, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if gpus := gpu_lines(run.progress.get("gpus")):
        yield from ("- GPUs of the last attempt:", *(f"  {line}" for line in gpus))
    elif run.gpus:
        yield f"- GPUs: {', '.join(map(str, run.gpu_names))}"


def _code(code: GitState, diff: str | None) -> Iterator[str]:
    if not code.commit:
        yield f"The state of the code is unknown: {code.problem}."
        return
    branch = f" on {code.branch}" if code.branch not in ("", "HEAD") else ""
    yield f"- Commit: `{code.commit}`{branch} of `{code.root}`: {code.subject} ({code.committed_at})"
    yield "- The state when this document was written, not when the run started."
    if diff:
        yield f"- Not committed: see `{diff}`{' (cut off at 1 MB)' if code.cut else ''}; secrets in it are masked."
    elif not code.problem:
        yield "- No uncommitted changes."
    if code.untracked:
        more = f" and {len(code.untracked) - _MOST_UNTRACKED} more" if len(code.untracked) > _MOST_UNTRACKED else ""
        yield f"- Untracked files: {', '.join(code.untracked[:_MOST_UNTRACKED])}{more}"
    if code.problem:
        yield f"- Incomplete: {code.problem}."
