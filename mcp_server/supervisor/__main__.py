"""Supervises one run: `python -I -S …/supervisor RUN_DIR`, as the process of the run's tmux pane."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # started by its path, without site-packages
    # Last: no package installed next to this one may hide a module of the standard library.
    sys.path[0:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from mcp_server.supervisor.supervise import supervise

if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
