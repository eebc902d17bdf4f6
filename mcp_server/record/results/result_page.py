"""Text of a run's results documents, as the supervisor and finish_blueprint write them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcp_server.record.results.tracker_link import TrackerLink
from mcp_server.text.formatting import clock

ADDITIONS_MARK = "<!-- Below this line is yours: it is kept when the document is written again. -->"

_NO_NAMES: Mapping[str, object] = {}
Maker = Literal["finish_blueprint", "the supervisor"]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run, from its directory. Times in ISO 8601 UTC, durations in seconds."""

    run_id: str
    state: str
    text: str
    attempts: int
    elapsed_s: float | None
    started_at: str | None
    ended_at: str | None
    log: Path
    exit_code: int | None = None
    signal: str | None = None
    earlier: str | None = None  # how the attempts before ended
    failure: Mapping[str, Any] | None = None
    changed: Sequence[str] = ()  # what retries changed, e.g. `num_envs 8192 → 4096 after attempt 1`
    tracker: TrackerLink | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Content of `finish.flag`. Absent values are omitted."""
        facts = {name: getattr(self, name) for name in ("started_at", "elapsed_s", "attempts", "exit_code", "signal")}
        facts["failure"] = self.failure.get("kind") if self.failure else None
        present = {name: value for name, value in facts.items() if value is not None}
        return {"run_id": self.run_id, "state": self.state, "ended_at": self.ended_at, **present}

    @property
    def lines(self) -> list[str]:
        """The end as items of a markdown list."""
        lines = [
            f"- End: {' '.join(self.text.split()) or self.state}",
            f"- Started: {self.started_at or 'never'}",
            f"- Ended: {self.ended_at or 'unknown when'}",
            f"- Attempts: {self.attempts}{f' ({self.earlier})' if self.earlier else ''}",
            f"- Log: `{self.log}`",
        ]
        if self.elapsed_s is not None:
            lines.insert(3, f"- Took: {clock(self.elapsed_s)}")
        lines += [self.tracker.line] if self.tracker else []
        lines += [f"- Changed by a retry: {one}" for one in self.changed]
        return [*lines, *failure_lines(self.failure)]


def origin_line(run_id: str, maker: Maker) -> str:
    """Return the first line of a generated document. It names the run and the generator."""
    return f"<!-- runward run {run_id}, written by {maker}: what you change above the last mark is overwritten. -->"


def render_page(
    run_id: str, maker: Maker, title: str, sections: Sequence[tuple[str, Sequence[str]]], additions: str = ""
) -> str:
    """Return a document of headed sections. ``additions`` is a person's text below the last mark."""
    body = "\n\n".join(f"## {heading}\n\n" + "\n".join(lines) for heading, lines in sections)
    return f"{origin_line(run_id, maker)}\n# {title}\n\n{body}\n\n{ADDITIONS_MARK}\n{additions}"


def failure_lines(failure: Mapping[str, Any] | None) -> list[str]:
    """Return the cause of a failure as items of a markdown list. Empty without a failure."""
    if not failure:
        return []
    at = f" (line {failure['line_number']} of the log)" if failure.get("line_number") else ""
    line = " ".join(str(failure.get("line", "")).split()).replace("`", "'")
    lines = [f"- Failure: {failure.get('kind')}{at}" + (f": `{line}`" if line else "")]
    return [*lines, f"- Advice: {failure['advice']}"] if failure.get("advice") else lines


def gpu_lines(gpus: object, names: Mapping[str, object] = _NO_NAMES) -> list[str]:
    """Return the usage of each GPU as items of a markdown list, under its index in ``names`` where it has one."""
    lines = []
    for uuid, usage in gpus.items() if isinstance(gpus, Mapping) else ():
        values = [
            f"{label} {usage[name]:g} {unit}"
            for name, label, unit in (
                ("peak_mib", "peak memory", "MiB"),
                ("mean_util", "mean utilisation", "%"),
                ("mean_w", "mean power", "W"),
                ("max_c", "hottest", "°C"),
            )
            if isinstance(usage, Mapping) and isinstance(usage.get(name), (int, float))
        ]
        name = f"GPU {names[uuid]}" if isinstance(names.get(uuid), int) else f"`{uuid}`"
        lines.append(f"- {name}: {', '.join(values) or 'no samples'}")
    return lines
