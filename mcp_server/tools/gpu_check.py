"""gpu_check: whether the GPUs of this machine are free and healthy."""

import sys
import time
from functools import partial
from typing import Annotated

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import BadArgument
from mcp_server.gpus import placement, query
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.run_directory import RunDir
from mcp_server.tools.context import Call, server_of
from mcp_server.tools.schema import READ_ONLY, tool
from mcp_server.views import gpu_report, gpu_usage

_WITHIN_S = 1.9  # an agent waits for the answer


async def gpu_check(
    ctx: Call,
    require: Annotated[
        dict[str, int | float | bool] | None,
        Field(
            description="What GPUs must fulfil: count, free_memory_mib, power_limit_w and max_sm_clock_mhz "
            "(at most), no_strangers"
        ),
    ] = None,
    run_id: Annotated[
        str | None, Field(description="Only this run's GPUs, with how it used them and their imbalance")
    ] = None,
    since_s: Annotated[float | None, Field(gt=0, description="Use and Xid errors of the last so many seconds")] = None,
) -> gpu_report.GpuReport:
    """Tell whether this machine's GPUs are healthy and free: who uses or leases them, and what is wrong.

    Call it before a launch that needs GPUs, or when a run is slow. free holds UUIDs, or beginnings of them,
    which launch_run's gpus takes. It changes nothing and leases nothing. Without a driver it is an error.
    """
    server = server_of(ctx)
    try:
        demands = placement.require(require) if require is not None else None
    except ValueError as error:
        raise BadArgument("require", str(error)) from error
    ask = partial(query.ask, sys.executable, server.environ, since_s=since_s, within_s=_WITHIN_S)
    if run_id is not None:
        if demands is not None:
            raise BadArgument("require", "says what GPUs to be had must fulfil: leave it out, or run_id.")
        run = await anyio.to_thread.run_sync(server.store.observe, run_id)
        record = RunDir(server.home.runs / run.run_id).attempt(run.attempt) / "gpus.jsonl"
        use = await anyio.to_thread.run_sync(partial(gpu_usage.read, run, record, time.time(), since_s))
        told = gpu_report.is_told_by_driver(run)
        snapshot = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True) if told else Snapshot()
        return gpu_report.of_run(run, snapshot, use)
    snapshot = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
    holders = await anyio.to_thread.run_sync(Leases(lease_directory(server.environ)).holders)
    return gpu_report.of_machine(snapshot, {uuid: holder.text for uuid, holder in holders.items()}, demands)


TOOL = tool(gpu_check, title="Check GPUs", annotations=READ_ONLY)
