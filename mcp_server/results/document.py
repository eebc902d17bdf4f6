"""Renders the results document of a run: purpose, ending, metrics, checkpoints, configuration, code."""

import hashlib
import json
import platform
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.record.code.code_snapshot import PACKAGES, SOURCES_ARCHIVE, CodeSnapshot
from mcp_server.record.code.code_state import load_code_state
from mcp_server.record.results.result_page import ADDITIONS_MARK, RunEnd, gpu_lines, read_origin, render_page
from mcp_server.record.state import Run, posix
from mcp_server.results.checkpoints import Checkpoint
from mcp_server.results.configuration import ConfigFile, is_search_path, read_blueprint, read_config_files, read_text
from mcp_server.results.evaluations.evaluation_series import (
    EvaluationPoint,
    EvaluationSeries,
    build_series,
    format_point,
    has_figures,
)
from mcp_server.results.evaluations.evaluation_text import render_rows, render_table
from mcp_server.results.evaluations.evaluations import Evaluation
from mcp_server.results.metrics import Metric, RunMetrics
from mcp_server.system.git_state import GitState
from mcp_server.text.formatting import clock, format_size, join_some, shorten_middle
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.views.gpu_report import describe_devices

Sections = list[tuple[str, Sequence[str]]]

_MOST_METRICS, _MOST_CHECKPOINTS, _MOST_UNTRACKED = 60, 30, 30
_SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".cpp", ".cu", ".ipynb")
_LONG_TITLE, _LONG_VALUE = 160, 300
_MOST_OF_FILE = 20_000  # characters of a configuration
_NONE_SEEN = "None seen: "
_FIGURES = ("Metrics", "Evaluations", "Checkpoints")
_SECTION = r"^## {name}\n\n(?P<text>.*?)\n\n(?=## )"
_SUMMARY = re.compile(r"^## Summary\n\n(?P<text>.*?)\n\n## (?:End of the run|Verdict)$", re.MULTILINE | re.DOTALL)
_ORIGINS = {"kept": "as it was at the start", "now": "as it is now", "written": "as the program wrote it"}
_MAIN_PACKAGES = (
    *("torch", "jax", "tensorflow", "numpy", "transformers", "accelerate", "deepspeed", "vllm", "ray", "lightning"),
    *("gymnasium", "stable-baselines3", "rsl-rl-lib", "isaacsim", "isaaclab", "mani-skill", "verl", "trl", "wandb"),
)
_LOCKS = ("uv.lock", "poetry.lock", "pixi.lock", "conda-lock.yml", "requirements.lock", "requirements.txt")


@dataclass(frozen=True, eq=False)
class ResultFacts:
    """The content of the results document of an ended run.

    ``leftovers``: number of its processes that still run. ``left_out``: files that may be another run's. ``recorded``:
    the figures in an earlier document of the run, by section. ``later_writer``: a later run that writes where it did.
    ``places``: where its files were looked for.
    """

    run: Run
    end: RunEnd
    summary: str | None
    numbers: RunMetrics
    evaluations: Sequence[Evaluation]
    checkpoints: Sequence[Checkpoint]
    account: str
    code: GitState
    snapshot: CodeSnapshot | None = None
    written_configs: Sequence[ConfigFile] = ()
    leftovers: int = 0
    left_out: str | None = None
    recorded: Mapping[str, str] = field(default_factory=dict)
    later_writer: str | None = None
    verdict: str | None = None
    repeats: tuple[str, Sequence[str]] | None = None  # the run that this one repeats, and in what they differ
    places: str = ""

    def keeps(self, heading: str) -> bool:
        """Return whether a section stays as an earlier document had it, because nothing is there to replace it."""
        found = {"Metrics": self.numbers.metrics, "Evaluations": self.evaluations, "Checkpoints": self.checkpoints}
        return heading in self.recorded and not found[heading]


def render_document(facts: ResultFacts, *, diff: str | None, additions: str) -> str:
    """Return the document. ``diff``: name of the file with uncommitted changes. ``additions``: a person's part."""
    run = facts.run
    purpose = read_blueprint(run, facts.snapshot).purpose
    sections: Sections = [("Purpose", [purpose])] if purpose else []
    if facts.summary:
        sections.append(("Summary", [_lower_headings(facts.summary.strip())]))
    if facts.verdict:
        sections.append(("Verdict", [f"**{facts.verdict}**"]))
    none_seen = f"{_NONE_SEEN}{facts.places}."
    none_printed = f"{_NONE_SEEN}{facts.places.replace('looked ', 'looked at its output, ', 1)}."
    figures: Sections = [
        ("Metrics", list(_metrics(facts.numbers, run)) or [none_printed]),
        ("Evaluations", list(render_evaluations(facts.evaluations)) or [none_printed]),
        ("Checkpoints", list(_checkpoints(facts.checkpoints)) or [none_seen]),
    ]
    sections += [
        ("End of the run", [f"**{run.state}**", "", *facts.end.lines]),
        *((name, [facts.recorded[name]] if facts.keeps(name) else lines) for name, lines in figures),
    ]
    if facts.account:
        sections.append(("Attempts", [facts.account]))
    sections += [
        ("Configuration", list(_configuration(run, [*read_config_files(run, facts.snapshot), *facts.written_configs]))),
        ("Environment", list(_environment(run, facts.code, facts.snapshot))),
        ("Code", list(_code(facts.code, diff, facts.snapshot))),
    ]
    if facts.repeats:
        name, lines = facts.repeats
        sections.append((f"Differences from {name}", [f"- {line}" for line in lines]))
    if doubts := list_doubts(facts):
        sections.append(("What to doubt", [f"- {one}" for one in doubts]))
    title = _make_title(purpose or "") or run.spec.name
    return render_page(run.run_id, "finish_blueprint", f"Results: {title}", sections, additions)


def _make_title(purpose: str) -> str:
    """Return the first paragraph of a purpose on one line, or the first sentence of a long one: never a part of one."""
    text = " ".join(purpose.strip().partition("\n\n")[0].split()).lstrip("#-* ")
    is_short = len(text) <= _LONG_TITLE
    return text if is_short else re.split(r"(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])", text, maxsplit=1)[0]


def list_doubts(facts: ResultFacts) -> list[str]:
    """Return one sentence for each part of the document that may be wrong."""
    run, doubts = facts.run, [*facts.numbers.notes[:5], *([facts.left_out] if facts.left_out else [])]
    if kept := [name for name in _FIGURES if facts.keeps(name)]:
        now = (
            f"the files are now those of {facts.later_writer}"
            if facts.later_writer
            else "their files are not found now"
        )
        doubts.append(f"{' and '.join(kept)} as an earlier call recorded them: {now}.")
    if facts.leftovers:
        what = "process of the run still runs" if facts.leftovers == 1 else "processes of the run still run"
        doubts.append(f"{facts.leftovers} {what}: its results may change. See wait_run.")
    if run.code_change:
        doubts.append(f"{run.code_change} The files as they were at the start are what ran.")
    begun_s = posix(run.started_at) if run.started_at else None
    if facts.snapshot is not None:
        doubts += facts.snapshot.notes
    elif begun_s:
        doubts += _doubt_unkept(facts, begun_s)
    broken = [f"{one.source.name}: {one.problem}" for one in facts.evaluations if one.problem]
    return [*doubts, *broken[:5]]


def _doubt_unkept(facts: ResultFacts, begun_s: float) -> Iterator[str]:
    """Yield what may be other than it was at the start, of a run whose supervisor kept nothing."""
    if facts.code.committed_at and posix(facts.code.committed_at) > begun_s:
        yield "The newest commit is later than the run's start: it may have run other code."
    for file in read_config_files(facts.run, None):
        if file.path.stat().st_mtime > begun_s:
            yield f"{file.path} was changed after the run's start: it may have read another version."
    if path := facts.run.spec.blueprint:
        try:
            if Path(path).stat().st_mtime > begun_s:
                yield f"{path} was changed after the run's start: its purpose may have been another."
        except OSError:
            yield f"{path} no longer exists."


def read_summary(path: Path, run_id: str) -> str | None:
    """Return the summary in an earlier document of this run, or None without one."""
    if read_origin(path) != (run_id, "finish_blueprint"):
        return None
    match = _SUMMARY.search((read_text(path) or "").partition(ADDITIONS_MARK)[0])
    return match["text"] if match else None


def read_recorded(paths: Sequence[Path], run_id: str) -> dict[str, str]:
    """Return the sections of figures in the first document of this run among ``paths``, those that have any."""
    for path in paths:
        if read_origin(path) != (run_id, "finish_blueprint"):
            continue
        text = (read_text(path) or "").partition(ADDITIONS_MARK)[0]
        found = {name: re.search(_SECTION.format(name=name), text, re.MULTILINE | re.DOTALL) for name in _FIGURES}
        texts = {name: match["text"] for name, match in found.items() if match}
        nothing = (_NONE_SEEN, "No scalars were found.", "No result files were found.", "None were found.")
        return {name: text for name, text in texts.items() if not text.startswith(nothing)}
    return {}


def _lower_headings(text: str) -> str:
    text = text.replace(ADDITIONS_MARK, "")
    if re.search(r"^##?\s", text, re.MULTILINE) is None:
        return text  # already lowered
    return re.sub(r"^(#{1,4})(?=\s)", r"\1##", text, flags=re.MULTILINE)


def _metrics(numbers: RunMetrics, run: Run) -> Iterator[str]:
    if not numbers.metrics:
        return
    step = run.last_known_step or numbers.step
    if isinstance(total := run.progress.get("total_steps"), int) and step == run.progress.get("step"):
        step = f"{step} of {total}"  # else curves count other steps than the output does
    place = f"round {run.progress['round']}, step" if "round" in run.progress else "step"
    yield f"Read from {numbers.source}{'' if step is None else f', at {place} {step}'}."
    if run.state == "lost":
        yield "The run is lost: these are the last values that are known."
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


def _checkpoints(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    if checkpoints:
        rows = [[f"`{one.path}`", one.step, one.epoch, one.size] for one in checkpoints[:_MOST_CHECKPOINTS]]
        yield from render_table(["path", "step", "epoch", "size"], rows)
    if len(checkpoints) > _MOST_CHECKPOINTS:
        yield f"\n… and {len(checkpoints) - _MOST_CHECKPOINTS} older ones."


def _configuration(run: Run, files: Sequence[ConfigFile]) -> Iterator[str]:
    spec, attempt = run.spec, run.attempt_params
    yield from ("```bash", run.command.replace("```", "'''"), "```", "")
    if run.attempt > 1:
        yield f"- The command of attempt {run.attempt}, the last one."
    yield f"- Working directory: `{spec.cwd}`"
    if spec.blueprint:
        yield f"- Blueprint: `{spec.blueprint}`"
    if attempt.params:
        yield f"- Parameters: `{json.dumps(attempt.params, ensure_ascii=False)}`"
    for name, value in {**spec.env, **attempt.environment}.items():
        yield f"- Environment: {_variable(name, value)}"
    if spec.secrets:
        yield f"- Secrets, by name: {', '.join(spec.secrets)}"
    if spec.time_limit_s:
        yield f"- Time limit: {clock(spec.time_limit_s)}"
    if spec.why:
        yield f"- Why: {' '.join(spec.why.split())}"
    yield f"- Owner: {spec.owner or 'unknown'}{f'; tags: {chr(44).join(spec.tags)}' if spec.tags else ''}"
    for file in files:
        when = _ORIGINS[file.origin]
        if file.text is None or len(file.text) > _MOST_OF_FILE:
            yield f"\n`{file.path}` ({format_size(file.size_bytes)}, too long to include)"
        else:
            fence = file.text.strip().replace("```", "'''")
            yield f"\n`{file.path}`, {when}:\n\n```{file.path.suffix[1:]}\n{fence}\n```"


def _variable(name: str, value: str) -> str:
    """Return a variable with its value; of a list of directories the first, and how many follow."""
    if not is_search_path(name, value):
        masked = mask_secrets(f"{name}={value}")  # before a part of it alone hides what it is
        return f"`{shorten_middle(masked, _LONG_VALUE)}`"
    first, *more = [one for one in value.split(":") if one] or [""]
    return f"`{name}={first}`{f', then {len(more)} more' if more else ''}"


def _environment(run: Run, code: GitState, snapshot: CodeSnapshot | None) -> Iterator[str]:
    yield f"- Host: {run.spec.host or 'unknown'}"
    if run.spec.host == socket.gethostname():
        yield f"- System: {platform.platform()}"
    if snapshot is None:
        yield from _guess_python(run, code)
    elif snapshot.python:
        yield f"- Python: `{snapshot.python}`{f', {snapshot.python_version}' if snapshot.python_version else ''}"
        if snapshot.packages:
            packages = snapshot.read_packages()
            named = [f"{name} {packages[name]}" for name in _MAIN_PACKAGES if name in packages]
            yield f"- Packages at the start: {', '.join(named) or len(packages)}."
            yield f"  All {snapshot.packages}: `{snapshot.directory / PACKAGES}`"
    else:
        yield "- Python: unknown; its command does not show one."
    if gpus := gpu_lines(run.progress.get("gpus"), dict(zip(run.gpus, run.gpu_names, strict=True))):
        yield from ("- GPUs of the last attempt:", *(f"  {line}" for line in gpus))
    elif devices := describe_devices(run.gpu_names):
        yield f"- Leased: {devices}"


def _guess_python(run: Run, code: GitState) -> Iterator[str]:
    """Yield Python and lock files as they are now, of a run whose supervisor kept nothing."""
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


def _kept_files(code: GitState, snapshot: CodeSnapshot | None) -> Iterator[str]:
    """Yield what is known of code that has no commit: the files that its supervisor kept."""
    why = (code.problem or "it was not kept").rstrip(".")
    if snapshot is None or not snapshot.files:
        yield f"The state of the code is unknown: {why}."
        return
    yield f"- No commit: {why}."
    attempt = snapshot.directory.parent.name
    yield f"- Files that the command names, as they were at the start of attempt {attempt} ({snapshot.taken_at}):"
    for one in snapshot.files[:_MOST_UNTRACKED]:
        copy = f", copy: `{snapshot.directory / one.kept}`" if one.kept else ", not copied"
        yield f"  - `{one.path}`, sha256 {one.sha256[:16]}{copy}"
    if len(snapshot.files) > _MOST_UNTRACKED:
        yield f"  - and {len(snapshot.files) - _MOST_UNTRACKED} more in `{snapshot.directory}`"
    if (state := load_code_state(snapshot.directory)) is not None:
        digests = sorted(f"{path} {one.sha256}" for path, one in state.files.items() if one.sha256)
        digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
        yield f"- Source files below the working directory: {len(digests)}, together sha256 {digest}"
    if kept := snapshot.archive.files:
        yield f"- Copies of {kept} files of code below the working directory: `{snapshot.directory / SOURCES_ARCHIVE}`"
    yield f"- {'Files outside that it imported, and data' if kept else 'Other files'} that it read, are not known."


def _code(code: GitState, diff: str | None, snapshot: CodeSnapshot | None) -> Iterator[str]:
    if not code.commit:
        yield from _kept_files(code, snapshot)
        return
    branch = f" on {code.branch}" if code.branch not in ("", "HEAD") else ""
    yield f"- Commit: `{code.commit}`{branch} of `{code.root}`: {code.subject} ({code.committed_at})"
    if snapshot is None:
        yield "- The state when this document was written, not when the run started."
    else:
        yield f"- The state at the start of attempt {snapshot.directory.parent.name} ({snapshot.taken_at})."
    if diff:
        yield f"- Not committed: see `{diff}`{' (cut off at 1 MB)' if code.cut else ''}; secrets in it are masked."
    elif not code.problem:
        yield "- No uncommitted changes."
    if code.untracked:
        names = sorted(code.untracked, key=lambda name: not name.endswith(_SOURCES))  # what may have run first
        yield f"- Untracked files, which the diff lacks: {join_some(names, _MOST_UNTRACKED)}"
    if code.problem:
        yield f"- Incomplete: {code.problem}."


_MOST_ROWS = 50
_NOISE = re.compile(r"\d\.\d*(?:0{7,}[1-9]{1,2}|9{7,}\d{0,2})(?!\d)")

_RowKey = tuple[int | None, str, str]  # step, model, benchmark


def render_evaluations(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yield the evaluations of one run as markdown: a row per step, model and benchmark, newest last."""
    series = build_series(evaluations)
    if series:
        files = list(dict.fromkeys(path for one in series for path in one.sources))
        has_error = any(point.error is not None for one in series for point in one.points)
        error = " ± is one standard error." if has_error else ""
        yield from (f"From {', '.join(f'`{path}`' for path in files)}.{error}", "")
        yield from _render_series(series)
        yield ""
        for one in series:
            best, last = one.best, one.last
            if best is not None and best.share != last.share:
                yield f"- Best {one.name}: {format_point(best)}, last {format_point(last)}"
    for evaluation in evaluations:
        if evaluation.rows and not has_figures(evaluation):
            yield from (f"`{evaluation.source}`", "", *render_rows(evaluation.rows), "")


def _render_series(series: Sequence[EvaluationSeries]) -> Iterator[str]:
    rows: dict[_RowKey, list[dict[str, str]]] = {}
    for one in series:
        best = one.best if len(one.points) > 1 else None
        for point in one.points:
            row = rows.setdefault((point.step, one.model, one.benchmark), [])
            number = point.repeat  # of an evaluation that was repeated, or of another file
            while number < len(row) and one.metric in row[number]:
                number += 1
            row.extend({} for _ in range(number + 1 - len(row)))
            cell = _exact(point)
            row[number][one.metric] = f"**{cell}**" if point is best else cell
    metrics = list(dict.fromkeys(one.metric for one in series))
    ordered = sorted(rows, key=lambda key: (key[0] is None, key[0] or 0, key[1], key[2]))
    lines = [(key, cells) for key in ordered for cells in rows[key]]
    if len(lines) == 1 and not any(lines[0][0][1:]):
        (step, *_), cells = lines[0]
        yield from render_table(["figure", "value"], [*([["step", step]] if step is not None else []), *cells.items()])
        return
    columns = {"step": 0, "model": 1, "benchmark": 2}
    headers = [name for name, n in columns.items() if any(key[n] not in ("", None) for key in rows)]
    newest = lines[-_MOST_ROWS:]
    cells_of = [[*(key[columns[name]] for name in headers), *(cells.get(m) for m in metrics)] for key, cells in newest]
    yield from render_table([*headers, *metrics], cells_of)
    if len(lines) > len(newest):
        yield f"\nThe last {len(newest)} of {len(lines)} rows."


def _exact(point: EvaluationPoint) -> str:
    """Return a value with all its digits, but for those that come from binary fractions: 0.6000000000000001."""
    text = f"{point.value:.12g}{point.unit}" if _NOISE.search(point.text) else point.text
    return text if point.error is None else f"{text} ± {point.error:.2g}{point.unit}"
