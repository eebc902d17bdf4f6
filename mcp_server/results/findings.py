"""An agent's conclusion about a run, kept in its directory, so that later comparisons show it beside the figures."""

from __future__ import annotations

from pathlib import Path

from mcp_server.record.results.tracker_link import read_tracker_link
from mcp_server.record.run_directory import RunDir, now, read_json, write_json
from mcp_server.record.state import Run
from mcp_server.text.formatting import printable

_LONGEST_KEPT, _LONGEST_SHOWN = 4_000, 240


def keep_finding(rundir: RunDir, summary: str | None, results: Path) -> None:
    """Keep the summary of a results document, already masked, and where the document is."""
    write_json(rundir.finding, {"summary": (summary or "")[:_LONGEST_KEPT], "results": str(results), "at": now()})


def describe_finding(run: Run, rundir: RunDir, *, with_page: bool) -> str | None:
    """Return what was concluded of a run, with its document and its page in a tracker, as one line; None for neither.

    ``with_page``: also of a run with a page and no document.
    """
    facts = read_json(rundir.finding) or {}
    summary, results = (str(facts.get(name) or "") for name in ("summary", "results"))
    words = " ".join(printable(summary).split())
    if len(words) > _LONGEST_SHOWN:
        words = f"{words[:_LONGEST_SHOWN].rpartition(' ')[0]} …"
    link = read_tracker_link(rundir.log(run.attempt)) if results or with_page else None
    page = (link.url or link.directory) if link else ""
    parts = [part for part in (words, results, page) if part]
    return f"{run.run_id}: {' | '.join(parts)}" if parts else None
