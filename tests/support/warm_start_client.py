"""The client of `warm_start.py`: in `ps` it is the server or command, which a fork runs."""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(f"\0{sys.argv[1]}")
umask = os.umask(0)
os.umask(umask)
request = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd(), umask])  # noqa: PTH109 - pathlib takes time
socket.send_fds(connection, [request.encode()], [0, 1, 2])
nothing = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(nothing, fd)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: connection.send(b"%d" % number))
code = int(connection.recv(16) or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
