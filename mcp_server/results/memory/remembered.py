"""What is remembered of a run: its settings, its texts, and what equal launches have in common."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.command.outputs import is_incidental, says_only_where
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.results.notes import NOTES, read_notes, tell_note
from mcp_server.record.run_directory import read_json
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import is_seed
from mcp_server.results.configuration import is_search_path, read_blueprint, read_configuration, read_options
from mcp_server.results.memory.index import Remembered, normal_name, read_number
from mcp_server.store.run_store import RunStore
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.views.progress_text import first_metrics

_MOST_TEXT = 20_000
_PYTHON = re.compile(r"\S*\bpython[\d.]*(?=\s|$)")
_UNBUFFERED = re.compile(r"(?<=\s)-u\s+(?=\S+\.py\b)")
_TO_A_FILE = re.compile(r"\s*(?:[12&]?>{1,2}&?\s*\S+|\|&?\s*tee(?:\s+-\S+)*\s+\S+)")
_SET_FOR_EACH = re.compile(r"CUDA_VISIBLE_DEVICES|(?:MASTER_)?PORT|RAY_\w+|WANDB_(?:RUN_ID|NAME)")


def remember(run: Run, store: RunStore) -> Remembered:
    """Return what is searched of a run."""
    spec, record = run.spec, store.record_of(run)
    snapshot = read_code_snapshot(record, run.attempt)
    configuration = read_configuration(run, snapshot)
    notes = read_notes(record.path / NOTES)
    verdict = next((note["verdict"] for note in reversed(notes) if "verdict" in note), None)
    said = [tell_note(note) for note in notes]
    if summary := str((read_json(record.finding) or {}).get("summary") or ""):
        said.insert(0, mask_secrets(" ".join(summary.split())))  # a verdict says more
    failure = run.failure or {}
    earlier = [event.get("failure") or {} for event in run.events if event["kind"] == "retrying"]
    causes = [kind for each in (failure, *earlier) if (kind := each.get("kind"))]
    elapsed_s = run.elapsed_s(0.0) if run.ended else None
    metrics = run.progress.get("metrics") or {}
    signs = sign(run.command, spec.cwd, spec.env)
    first = [f"{name} {value:.4g}" for name, value in first_metrics(metrics) if isinstance(value, int | float)]
    ended_nan = _describe_nan_end(run)
    why = mask_secrets(" ".join((spec.why or "").split()))
    own: Mapping[str, Sequence[Any]] = {
        "tag": spec.tags,
        "name": (spec.name, run.run_id),
        "note": said,
        "why": (why,),
        "verdict": (verdict,),
        "owner": (spec.owner,),
        "host": (spec.host,),
        "cwd": (spec.cwd, spec.project),
        "backend": (spec.backend,),
        "sweep": (spec.sweep,),
        "cell": (spec.cell,),
        "command": (run.command,),
        "commit": (snapshot.git.commit if snapshot is not None else None,),
        "cause": causes,
        "step": (run.progress.get("step"),),
        "exit_code": (run.exit_code,),
        "elapsed_s": (elapsed_s,),
        "attempt": (run.attempt,),
        "attempts": (run.attempt,),
        "same": signs[:1],
        "alike": signs[1:],
    }
    told = [(f":{name}", str(value)) for name, values in own.items() for value in values if value not in (None, "")]
    settings = [(name, value) for name, value in configuration.items() if value and name != "cwd"]
    plan = read_blueprint(run, snapshot)
    masked = mask_secrets("\n".join(filter(None, (run.command, str(failure.get("line") or ""), run.reason))))
    texts = [
        *(run.run_id, spec.name, masked, why, spec.cwd, spec.owner, spec.host, *spec.tags, spec.sweep, spec.cell),
        *(run.state, ended_nan),
        *(*causes, spec.blueprint, plan.purpose, *metrics, *said),
        *(f"{name} {value}" for name, value in settings if not name.startswith("$")),
    ]
    body = "\n".join(str(text) for text in texts if text)[:_MOST_TEXT]
    facts = {
        "cause": failure.get("kind"),
        "earlier": run.earlier,
        "nan": ended_nan,
        "why": why or None,
        "note": said[-1] if said else None,
        "figure": first[0] if first else None,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float)},
    }
    return Remembered(run.run_id, [*settings, *told], body, facts)


def _describe_nan_end(run: Run) -> str | None:
    """Return which metrics were NaN when the run ended, as its progress says."""
    since, metrics = run.progress.get("nan_since"), run.progress.get("metrics")
    ended = [name for name, value in dict(metrics or {}).items() if str(value) == "nan"]
    names = dict.fromkeys([*(since if isinstance(since, Mapping) else ()), *ended])
    return f"ended nan: {', '.join(list(names)[:2])}" if run.ended and names else None


def sign(command: str | list[str], cwd: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return what equal launches have in common, and what those have that differ in no setting by which they learn.

    Names of runs and the places where they write are not compared, nor are numbers by how they are written.
    """
    words, kept = _read_launch(command, env)
    learned = {name: value for name, value in kept.items() if not _is_beside(name)}
    same, alike = (
        hashlib.sha256(json.dumps([words, cwd, sorted(each.items())]).encode()).hexdigest()[:16]
        for each in (kept, learned)
    )
    return same, alike


def list_beside(one: tuple[str | list[str], Mapping[str, str]], other: tuple[str, Mapping[str, str]]) -> list[str]:
    """Return in which settings beside those that are learned by two launches differ: commands with environments."""
    former, now = _read_launch(*one)[1], _read_launch(*other)[1]
    names = [name for name in dict.fromkeys([*former, *now]) if former.get(name) != now.get(name) and _is_beside(name)]
    return [name.lstrip("$") for name in names]


def _read_launch(command: str | list[str], env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the words of a launch, and its settings by normal names."""
    plain = _UNBUFFERED.sub("", command) if isinstance(command, str) else [one for one in command if one != "-u"]
    options = read_options(plain)
    words = _TO_A_FILE.sub("", _PYTHON.sub("python", options.pop("command")))
    return words, {
        normal_name(name): value if (number := read_number(value)) is None else repr(number)
        for name, value in {**options, **{f"${name}": value for name, value in env.items()}}.items()
        if not (says_only_where(name) or is_search_path(name[1:], value))
        and not _SET_FOR_EACH.fullmatch(name.lstrip("$"))
    }


def _is_beside(name: str) -> bool:
    return is_seed(name) or is_incidental(name)
