"""The trials of an open sweep as one table, the newest last: short for agents, whole for people."""

from collections import Counter
from collections.abc import Sequence

from mcp_server.errors import BadArgument
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.evaluations.evaluation_text import render_table
from mcp_server.sweeps.trials.ledger import TrialRow, list_rows, write_params
from mcp_server.sweeps.trials.trials import OpenSweep, read_trials
from mcp_server.system.files import read_regular_file
from mcp_server.text.formatting import join_some, printable, shorten_facts, significant
from mcp_server.text.near_names import find_near_names

COLUMNS = ("trial", "by", "verdict", "mean ± sd", "n", "gain in sd", "files", "text")
_NEWEST = 10
_TEXT_CHARS, _MOST_DIFF_BYTES = 48, 2 << 20


def render_trials(seen: OpenSweep) -> list[str]:
    """Return all trials as a table in markdown, and the state of the research below it."""
    trials = list_rows(seen)
    rows = [(*describe_row(row, row.files, row.text), row.why) for row in trials]
    return [*render_table((*COLUMNS, "why"), rows), "", *describe_state(seen)]


def choose_rows(trials: Sequence[TrialRow]) -> tuple[list[str], list[str]]:
    """Return the names and lines of the newest trials, then of those that were kept, the newest first."""
    newest = trials[-_NEWEST:]
    wanted = [*reversed(newest), *(row for row in reversed(trials) if row.state == "kept" and row not in newest)]
    lines = []
    for row in wanted:
        files = [*row.files[:1], *([f"+{len(row.files) - 1}"] if len(row.files) > 1 else [])]
        lines.append("|".join(describe_row(row, files, shorten_facts(row.text, _TEXT_CHARS))))
    return [row.trial for row in wanted], lines


def describe_row(row: TrialRow, files: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the cells of a trial below ``COLUMNS``. Parameters stand behind the files: both are what it changes."""
    deviation = "" if row.sd is None else f" ± {significant(row.sd, 2):g}"
    return (
        *(row.trial, row.by, row.state, "" if row.mean is None else f"{significant(row.mean):g}{deviation}"),
        *(str(row.n or ""), "" if row.gain_sd is None else f"{row.gain_sd:+.1f}"),
        *(" ".join(filter(None, (*files, row.params))).replace("|", "/"), text.replace("|", "/")),
    )


def describe_state(seen: OpenSweep) -> list[str]:
    """Return the noise, what the branch of kept trials has, and which trials wait for a reader."""
    name, tip = seen.sweep.sweep_id, seen.trials[seen.tip]
    verdicts = Counter(trial.verdict or "without a verdict" for trial in seen.trials.values() if trial.base)
    lines = [f"{sum(verdicts.values())} trials: {', '.join(f'{n} {each}' for each, n in verdicts.most_common())}."]
    if seen.noise.df:
        sd, df = significant(seen.noise.sd, 2), seen.noise.df
        lines.append(f"Noise: sd {sd:g} of single runs like those of {tip.name}, {df:.0f} degrees of freedom.")
    if len(seen.kept) > 1:
        what = "its code" if tip.params else "it"
        taken = f": git merge runward/{seen.plan.branch} takes {what}" if seen.plan.base else ""
        besides = f". It ran with {write_params(tip.params)}, which no merge brings" if tip.params else ""
        lines.append(f"{tip.name} was kept last{taken}{besides}.")
    waiting = [trial.name for trial in seen.trials.values() if trial.verdict == "suspect"]
    if waiting:
        keep = f'launch_sweep(name="{name}", notes={{"{waiting[0]}": "keep: …"}})'
        reader = "Who did not propose it reads its diff"
        lines.append(f"{join_some(waiting, 3)}: too good. {reader}, then {keep}, or discard.")
    return lines


def find_trial(sweep: Sweep, name: str) -> TrialRow:
    """Return a trial of an open sweep. BadArgument: it has none of this name."""
    rows = {row.trial: row for row in list_rows(read_trials(sweep))} if sweep.spec.open is not None else {}
    if name in rows:
        return rows[name]
    near = find_near_names(name, rows)
    cause = f"has no trial {name[:80]!r}." if rows else "is no open sweep: no trials."
    raise BadArgument("trial", f"{sweep.sweep_id} {cause}", f"Did you mean {join_some(list(near), 3)}?" if near else "")


def read_diff(directory: SweepDir, row: TrialRow) -> str:
    """Return the change that a trial makes, behind a line with its parameters; empty for the base."""
    params = f"Parameters: {row.params}\n" if row.params else ""
    try:
        diff = read_regular_file(directory.trials / f"{row.trial}.diff", max_bytes=_MOST_DIFF_BYTES)
    except FileNotFoundError:
        return params
    return params + diff.decode(errors="replace")


def describe_trial(sweep: Sweep, directory: SweepDir, name: str) -> str:
    """Return a trial as markdown: what it is, what became of it and why, and its diff."""
    row = find_trial(sweep, name)
    cells = dict(zip(COLUMNS, describe_row(row, row.files, row.text), strict=True))
    facts = {**cells, "base": row.base, "commit": row.commit, "runs": str(row.runs), "why": row.why}
    lines = [f"# {name} of {sweep.sweep_id}", "", *(f"- {key}: {value}" for key, value in facts.items() if value), ""]
    fence = "````"
    return printable(
        "\n".join([*lines, f"{fence}diff", f"{read_diff(directory, row).rstrip()}", fence, ""]), keep="\n\t"
    )
