"""Supervises one run: `python -I -S …/supervisor RUN_DIR`, as the process of the run's tmux pane."""

from __future__ import annotations

import gc
import os
import sys

if not __package__:  # started by its path, without site-packages
    # Imports make no garbage: to look for it after each 700 objects takes 4 % of the processor time of a short run.
    gc.set_threshold(20_000)
    # Last: no package installed next to this one may hide a module of the standard library.
    sys.path[0:1] = []
    sys.path.append(os.path.realpath(__file__).rsplit("/", 3)[0])

from mcp_server.supervisor.guard import start_spare
from mcp_server.system.own_process import forbid_core_dumps, set_title, supervisor_title, take_umask


def main() -> int:
    """Supervise the run whose directory is the first argument and return the exit status."""
    take_umask()
    if sys.argv[1] == "--starter":
        from mcp_server.supervisor.starter import serve  # noqa: PLC0415 - 32 ms

        return serve(sys.argv[2])
    forbid_core_dumps()
    if sys.argv[1] == "--ray-job":
        from mcp_server.supervisor.jobs.ray_mirror import main as mirror  # noqa: PLC0415 - 63 ms, of jobs of Ray

        return mirror(sys.argv[2:])
    set_title(supervisor_title(os.path.basename(sys.argv[1].rstrip("/"))))
    guard = start_spare()  # before the rest is loaded, which takes 40 ms, and memory that the guard would keep
    from mcp_server.supervisor.supervise import supervise_alone  # noqa: PLC0415 - 61 ms, as above

    return supervise_alone(sys.argv[1], guard)


if __name__ == "__main__":
    sys.exit(main())
