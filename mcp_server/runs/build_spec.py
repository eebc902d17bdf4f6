"""The specification of a run, built from a resolved launch. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_server.record.run_directory import LAYOUT
from mcp_server.record.spec import RunSpec

if TYPE_CHECKING:
    from mcp_server.runs.resolve import ResolvedLaunch


def build_spec(launch: ResolvedLaunch) -> RunSpec:
    """Return the specification of a run, without the fields that only its backend knows."""
    arguments = {**vars(launch.request), "host": launch.hostname, "mirror": launch.mirror}
    code = {**launch.code.facts, "to": launch.code.there} if launch.code else None
    return RunSpec(
        **arguments,
        code=code,
        layout=LAYOUT,
        run_id=launch.run_id,
        run_dir=launch.run_dir,
        leases=launch.lease_directory,
        cpu_slots=launch.cpu_slots,
        gpu_sample_s=launch.config.gpu_sample_s,
        gpu_window_s=launch.config.gpu_window_s,
        result_dir=launch.result_dir,
        stop_grace_s=launch.config.stop_grace_s,
        repair_grace_s=launch.config.repair_grace_s,
        created_at=launch.created_at,
        boot_id=launch.boot_id,
    )
