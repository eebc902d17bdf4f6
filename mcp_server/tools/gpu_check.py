"""gpu_check: whether the GPUs of this machine are free and healthy."""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, WithJsonSchema

from mcp_server.backends.base import GpuState
from mcp_server.backends.local import check_interpreter
from mcp_server.backends.ssh.ssh_backend import query_host_gpus
from mcp_server.errors import BadArgument
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import parse_requirements
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.hosts.config import find_host, read_gpu_limits, read_hosts_file
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool
from mcp_server.views.gpu_report import GpuReport, read_usage, report_machine, report_run, uses_gpus_now

_WITHIN_S = 1.9  # an agent waits for the answer


async def gpu_check(
    ctx: Call,
    require: Annotated[
        dict[str, int | float | bool] | None,
        WithJsonSchema({"type": "object"}),
        Field(description="count, and as launch_run's require"),
    ] = None,
    run_id: Annotated[
        str | None, Field(description="Only this run's GPUs, with how it used them and their imbalance")
    ] = None,
    since_s: Annotated[float | None, Field(gt=0, description="Use and Xid errors of the last so many seconds")] = None,
    host: Annotated[str | None, Field(description="As launch_run's")] = None,
) -> GpuReport:
    """Check whether a machine's GPUs are healthy and free: who uses or leases them, and what is wrong.

    Call it before a launch that needs GPUs, or when a run is slow. free holds UUIDs, or beginnings of them,
    which launch_run's gpus takes. Changes and leases nothing.
    """
    # Here and below: a server starts without the report of GPUs and without hosts.
    server = server_of(ctx)
    try:
        requirements = parse_requirements(require) if require is not None else None
    except ValueError as error:
        raise BadArgument("require", str(error)) from error

    def query() -> Snapshot:
        check_interpreter()
        return query_gpus(sys.executable, server.environ, since_s=since_s, within_s=_WITHIN_S)

    def query_far(mirror: Path) -> GpuState:
        return query_host_gpus(mirror, since_s=since_s)

    if run_id is not None:
        if requirements is not None:
            raise BadArgument("require", "it selects GPUs for a launch: leave it out, or leave out run_id.")
        run = await run_in_thread(server.store.find, run_id)
        record = (await run_in_thread(server.store.fetch_record, run)).attempt(run.attempt) / "gpus.jsonl"
        usage = await run_in_thread(lambda: read_usage(run, record, server.store.now_s(run), since_s))
        snapshot = Snapshot()
        if uses_gpus_now(run):
            mirror = Path(run.spec.mirror)
            is_far = bool(run.spec.mirror)
            snapshot = (await run_in_thread(query_far, mirror)).snapshot if is_far else await run_in_thread(query)
        return report_run(run, snapshot, usage)
    if host is not None:
        table, is_far = find_host(await run_in_thread(read_hosts_file, server.home), host)
        if is_far:
            state = await run_in_thread(query_far, server.home.hosts / table.name)
            return report_machine(state.snapshot, state.holders, requirements, table.gpu_limits)
    snapshot = await run_in_thread(query)
    holders = await run_in_thread(Leases(lease_directory(server.environ)).holders)
    names = {uuid: holder.text for uuid, holder in holders.items()}
    return report_machine(snapshot, names, requirements, await run_in_thread(read_gpu_limits, server.home))


TOOL = tool(
    gpu_check,
    title="Check GPUs",
    annotations=READ_ONLY,
    search_hint="nvidia-smi, GPU memory, utilisation, free GPUs, CUDA devices, temperature, who uses the GPU",
)
