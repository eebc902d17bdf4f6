"""How a run's results read: the parts of the documents that the supervisor and finish_blueprint write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

KEPT = "<!-- Below this line is yours: it is kept when the document is written again. -->"

Maker = Literal["finish_blueprint", "the supervisor"]


@dataclass(frozen=True)
class End:
    """How a run ended, as its directory tells it. Times in ISO 8601 UTC, durations in seconds."""

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
    failure: Mapping[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What `finish.flag` says."""
        facts = {name: getattr(self, name) for name in ("started_at", "elapsed_s", "attempts", "exit_code", "signal")}
        facts["failure"] = self.failure.get("kind") if self.failure else None
        told = {name: value for name, value in facts.items() if value is not None}
        return {"run_id": self.run_id, "state": self.state, "ended_at": self.ended_at, **told}

    @property
    def lines(self) -> list[str]:
        """The same for people, as a list in markdown."""
        lines = [
            f"- End: {' '.join(self.text.split()) or self.state}",
            f"- Started: {self.started_at or 'never'}",
            f"- Ended: {self.ended_at or 'unknown when'}",
            f"- Attempts: {self.attempts}",
            f"- Log: `{self.log}`",
        ]
        if self.elapsed_s is not None:
            lines.insert(3, f"- Took: {clock(self.elapsed_s)}")
        return [*lines, *failure_lines(self.failure)]


def mark(run_id: str, maker: Maker) -> str:
    """Return the first line of a generated document."""
    return f"<!-- runward run {run_id}, written by {maker}: what you change above the last mark is overwritten. -->"


def page(run_id: str, maker: Maker, title: str, sections: Sequence[tuple[str, Sequence[str]]], kept: str = "") -> str:
    """Return a document of headed sections; ``kept`` is what a person added below its last mark."""
    body = "\n\n".join(f"## {head}\n\n" + "\n".join(lines) for head, lines in sections)
    return f"{mark(run_id, maker)}\n# {title}\n\n{body}\n\n{KEPT}\n{kept}"


def failure_lines(failure: Mapping[str, Any] | None) -> list[str]:
    """Return why a run failed, as a list in markdown; empty where it did not."""
    if not failure:
        return []
    at = f" (line {failure['line_number']} of the log)" if failure.get("line_number") else ""
    line = " ".join(str(failure.get("line", "")).split()).replace("`", "'")
    told = [f"- Failure: {failure.get('kind')}{at}" + (f": `{line}`" if line else "")]
    return [*told, f"- Advice: {failure['advice']}"] if failure.get("advice") else told


def clock(seconds: float) -> str:
    """Write a duration, e.g. `26:03:09`: hours, minutes, seconds."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


def gpu_lines(gpus: object) -> list[str]:
    """Return how each GPU was used, as a list in markdown."""
    lines = []
    for uuid, used in gpus.items() if isinstance(gpus, Mapping) else ():
        told = [
            f"{what} {used[name]:g} {unit}"
            for name, what, unit in (
                ("peak_mib", "peak memory", "MiB"),
                ("mean_util", "mean utilisation", "%"),
                ("mean_w", "mean power", "W"),
                ("max_c", "hottest", "°C"),
            )
            if isinstance(used, Mapping) and isinstance(used.get(name), int | float)
        ]
        lines.append(f"- `{uuid}`: {', '.join(told) or 'no samples'}")
    return lines
