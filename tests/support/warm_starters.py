"""Forks the starters of supervisors: a process that has loaded their program, 0.2 s of processor time less.

`python -I -S warm_starters.py ADDRESS PROGRAM`, until standard input ends. A request names the starter's socket and its
tmux server, in whose place this process is the parent.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

gc.set_threshold(20_000)
sys.path.append(str(Path(sys.argv[2]).parents[1]))

from mcp_server.supervisor import starter, supervise, warm_up  # noqa: E402, F401 - from the copy

warm_up.warm_up()
warm_up.warm_up = lambda: None
parent = os.getppid


def start(path: str, tmux_server: int) -> None:
    def tmux_once() -> int:
        os.getppid = parent
        return tmux_server

    os.getppid = tmux_once
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    starter.serve(path)


listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(f"\0{sys.argv[1]}")
listener.listen(64)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody else reaps what it forks
print("ready", flush=True)
while 0 not in (ready := select.select([0, listener.fileno()], [], [])[0]):
    with listener.accept()[0] as channel:
        request = json.loads(channel.recv(1 << 16))
    if os.fork() == 0:
        listener.close()
        try:
            start(*request)
        finally:
            os._exit(0)
