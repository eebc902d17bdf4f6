"""A run directory's files about a job of Ray whose command runs where nobody sees that directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import Facts, RunDir, read_json
from mcp_server.record.spec import RunSpec

MARK = "runward_launch"  # key of the metadata that says whose job it is
FAR_SIDE = "Ray at "  # begins the far side of a run whose job may go on


def is_mirrored(spec: RunSpec) -> bool:
    """Return whether a run is supervised here while its command runs in a job of Ray, which shares no disk."""
    return spec.backend == "ray" and not spec.backend_options.get("shared_disk")


def request_file(rundir: RunDir) -> Path:
    """Return where the launcher writes what Ray is asked for, but for the entrypoint of a mirrored run."""
    return rundir.path / "ray_request.json"


def mark_request(request: Facts) -> Facts:
    """Return a request whose job is told from another's with the same submission id, which a new head may have."""
    return {**request, "metadata": {**request["metadata"], MARK: os.urandom(16).hex()}}


def read_mark(rundir: RunDir) -> str:
    """Return what marks the jobs of a run, empty for one of a former version."""
    metadata = read_request(rundir).get("metadata")
    return str(metadata.get(MARK) or "") if isinstance(metadata, dict) else ""


def proof_file(rundir: RunDir, attempt: int) -> Path:
    """Return where what Ray said of the end of an attempt's job appears, atomically."""
    return rundir.attempt(attempt) / "ray_end.json"


def read_proof(rundir: RunDir, attempt: int) -> Facts | None:
    """Return what Ray said of the end of an attempt's job, None where nobody has heard of it."""
    return read_json(proof_file(rundir, attempt))


def submission_id(run_id: str, attempt: int) -> str:
    """Return the name of an attempt's job: the run's id, with the attempt's number from the second on."""
    return run_id if attempt == 1 else f"{run_id}-{attempt}"


def read_request(rundir: RunDir) -> dict[str, Any]:
    """Return what Ray is asked for, empty where the file is missing."""
    return read_json(request_file(rundir)) or {}
