"""Runs as jobs of the Slurm of another host, a login node that hosts.toml reaches by ssh: its relay hands them in."""

import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from mcp_server.backends.base import ListEnded, ScheduledGpus
from mcp_server.backends.slurm import batch_script
from mcp_server.backends.slurm.batch_script import Element
from mcp_server.backends.ssh.ssh_backend import SshBackend
from mcp_server.backends.ssh.ssh_bootstrap import read_ssh_settings
from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.slurm.job import follow_command, newest_log
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run

_PREPARED_WITHIN_S = 0.5  # the directory of a run, on a slow shared disk


class FarSlurmBackend(ScheduledGpus, SshBackend):
    """Hands runs in on a login node that is reached by ssh. Slurm chooses nodes and GPUs.

    The relay there submits each run id at most once, and asks Slurm once for all runs. The mirror is that of any host.
    """

    most_in_array = 400  # each holds a file open until it is handed in: processes may usually open 1024
    # sbatch gets a minute there, a supervisor the grace of two signals, and a job two minutes to leave its nodes.
    launched_within_s, interrupted_within_s, reaped_within_s = 90.0, 120.0, 240.0

    @override
    def check_request(self, request: LaunchRequest) -> None:
        batch_script.check_request(request)

    @override
    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        del environ
        return replace(spec, host=Path(spec.mirror).name)

    @override
    def preview(self, spec: RunSpec) -> str:
        words = self.list_launch_words(spec)
        answer, _ = channel_of(Path(spec.mirror)).ask("preview_job", run=spec.run_id, **words)
        return "\n".join([*answer["lines"], ""])

    @override
    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        del first_event
        await super().start(directory, spec, handover, _await_nothing)

    def preview_array(self, spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs like ``spec``, as the login node writes it."""
        words = {"name": name, "count": count, "most_at_once": most_at_once, **self.list_launch_words(spec)}
        answer, _ = channel_of(Path(spec.mirror)).ask("preview_array", **words)
        return "\n".join([*answer["lines"], ""])

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Let the login node hand prepared runs in as one array of jobs, once whatever becomes of the connection."""
        spec = elements[0].spec
        runs = [{"spec": each.spec.facts(), "handover": json.loads(each.handover.encode())} for each in elements]
        words = {"runs": runs, "name": name, "most_at_once": most_at_once, **self.list_launch_words(spec)}
        directories = [each.directory for each in elements]
        within_s = self.launched_within_s + len(elements) * _PREPARED_WITHIN_S
        await self.launch_there(channel_of(Path(spec.mirror)), "launch_array", directories, words, within_s)

    @override
    def list_launch_words(self, spec: RunSpec) -> dict[str, Any]:
        return {"options": batch_script.list_shared_options(spec)}

    @override
    def attach_command(self, spec: RunSpec) -> str:
        mirror = Path(spec.mirror)
        attempt = newest_log(RunDir(mirror / "runs" / spec.run_id)).parent.name
        state = Path(str(channel_of(mirror).hello.get("state", "")))
        follow = follow_command(RunDir(state / "runs" / spec.run_id).log(int(attempt)))
        return f"ssh {shlex.quote(read_ssh_settings(mirror).alias)} {shlex.quote(follow)}"

    @override
    def show_command(self, run: Run) -> str:
        return self.attach_command(run.spec)

    @override
    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        """Do nothing: a job has no screen."""


async def _await_nothing() -> None:
    """Return at once."""
