"""The trials of an open sweep, as answers have them."""

import statistics
import time
from collections import Counter

from mcp_server.record.state import posix
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.sweeps.trials.open_plan import BASELINE
from mcp_server.sweeps.trials.trials import OpenSweep, OpenTrial, read_trials
from mcp_server.text.formatting import round_known, shorten_facts, significant
from mcp_server.views.sweep_status import KeptTrial, TrialsStatus

_TEXT_CHARS, _WHY_CHARS = 80, 120


def describe_trials(sweep: Sweep) -> TrialsStatus:
    """Return the counts by verdict, the best trial, the noise, and for how long no run lived."""
    seen = read_trials(sweep)
    counts = Counter(trial.state for name, trial in seen.trials.items() if name != BASELINE)
    return TrialsStatus(
        counts=dict(sorted(counts.items())),
        kept=describe_kept_trial(seen),
        noise_sd=significant(seen.noise.sd, 2) if seen.noise.df else None,
        note=" ".join(filter(None, (_doubt_noise(seen), _explain_runs(seen)))) or None,
        no_run_lived_s=round_known(_count_idle_s(sweep, time.time())),
    )


def describe_kept_trial(seen: OpenSweep) -> KeptTrial:
    """Return the trial that others have to beat, by all of its runs that count."""
    values, trial = seen.list_counted(seen.tip), seen.trials[seen.tip]
    return KeptTrial(
        trial=trial.name,
        commit=trial.commit[:10] or None,
        mean=significant(sum(values) / len(values)) if values else None,
        sd=significant(statistics.stdev(values), 2) if len(values) > 1 else None,
        n=len(values),
        params=dict(trial.params) or None,
    )


def line_of_trial(trial: OpenTrial, *, with_why: bool = False) -> str:
    """Return a trial in one line: ``t3 discarded: momentum .9 | 0.14 (n 1) against t0 …``."""
    why = f" | {shorten_facts(trial.why, _WHY_CHARS)}" if with_why and trial.why else ""
    state = f" {trial.state}" if with_why else f" ({trial.by})"
    return f"{trial.name}{state}: {shorten_facts(trial.text, _TEXT_CHARS)}{why}"


def _doubt_noise(seen: OpenSweep) -> str | None:
    if seen.noise.df and not seen.noise.sd:
        return "Repeated runs are identical: is it measured at all, or is the seed fixed?"
    return f"Differences of pairs count alone: {seen.alone}." if seen.alone else None


def _explain_runs(seen: OpenSweep) -> str | None:
    """Return why the best trial, or the base, ran more often than it was planned to."""
    roles = Counter(run.role for run in seen.trials[seen.tip].runs)
    more = {
        "beside trials": roles["incumbent"],
        "while no proposal waited, which makes its mean sharper": roles["idle"],
    }
    told = [f"{count} {why}" for why, count in more.items() if count]
    return f"{seen.tip} has {roles.total()} runs: {', '.join(told)}." if told else None


def _count_idle_s(sweep: Sweep, now_s: float) -> float | None:
    """Return the seconds of this round in which none of its runs lived, from the first on."""
    live, idle_s, since_s = set[str](), 0.0, None
    for event in sweep.round_events:
        kind, run_id = event["kind"], event.get("run_id", "")
        if kind == "cell_started":
            idle_s += posix(event["at"]) - since_s if since_s is not None and not live else 0.0
            live.add(run_id)
        elif kind in ("cell_ended", "cell_failed") and run_id in live:
            live.discard(run_id)
            since_s = posix(event["at"])
    if since_s is not None and not live and not sweep.ended:
        idle_s += max(0.0, now_s - since_s)
    return idle_s
