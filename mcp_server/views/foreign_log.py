"""A log that runward did not write, as text: its diagnosis above the excerpt, without what looks like a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mcp_server.diagnosis.log_file import Examination, examine_log
from mcp_server.text.formatting import printable, shorten_middle
from mcp_server.views.log_excerpt import LogExcerpt
from mcp_server.views.program_output import frame_output

_LINE_CHARS = 240


def describe_log(
    path: Path,
    read: Callable[[Path], LogExcerpt],
    environ: Mapping[str, str],
    secrets_file: Path,
    *,
    diagnose: bool,
) -> str:
    """Return the part of a log that ``read`` takes, with its diagnosis above. See ``frame_output`` for what is masked.

    Raises:
        OSError: the log cannot be read.
    """
    excerpt = read(path)
    diagnosis = describe_examination(examine_log(path)) if diagnose else ""  # it quotes the program, too
    return frame_output(excerpt.header, "\n".join(filter(None, (diagnosis, excerpt.body))), environ, secrets_file)


def describe_examination(examined: Examination) -> str:
    """Return a diagnosis in one line: the kind of failure, the line that proves it, and what to do."""
    facts = examined.facts()
    step = f"step {facts['step']:,}" if facts["step"] is not None else "a first step was seen"
    progress = step if facts["first_step_seen"] else "no training step seen"
    if examined.failure is None:
        return f"[diagnosis: ok, no failure found; {progress}. How its program ended is not known.]"
    where = f" at line {facts['line_number']:,}" if facts["line_number"] else ""
    line = shorten_middle(printable(str(facts["line"])), _LINE_CHARS)
    retryable = "" if facts["retryable"] is None else " (retryable)" if facts["retryable"] else " (not retryable)"
    return (
        f"[diagnosis: {facts['kind']}{where}: {line} | {facts['action']}{retryable}: {facts['advice']} | {progress}.]"
    )
