"""A file system that answers nothing: whoever looks below it waits, as with a file server that is gone. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

_INIT = 26
_HEADER = struct.Struct("<IIQQIIII")  # length, opcode, number, node, uid, gid, pid, padding
_REPLY = struct.Struct("<IiQ")  # length, error, number
# Of the protocol 7.31: versions, read-ahead, flags, background requests, longest write, time, pages, and unused words.
_INIT_REPLY = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 4096, 1, 1, 0, 0)


class CannotMount(Exception):
    """This machine mounts no such file system."""


@contextlib.contextmanager
def silent_mount(directory: Path) -> Iterator[None]:
    """Lay a file system that never answers over ``directory``. Afterwards, those who wait for it get an error.

    Raises:
        CannotMount: it takes root and /dev/fuse.
    """
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise CannotMount(error.strerror) from error
    try:
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"silent", os.fsencode(directory), b"fuse", 0, options.encode()) != 0:
            raise CannotMount(os.strerror(ctypes.get_errno()))
        threading.Thread(target=_answer_first_request, args=(fd,), daemon=True).start()
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)
    finally:
        os.close(fd)


def _answer_first_request(fd: int) -> None:
    with contextlib.suppress(OSError):
        _, opcode, number, *_ = _HEADER.unpack(os.read(fd, 1 << 17)[: _HEADER.size])
        if opcode == _INIT:
            os.write(fd, _REPLY.pack(_REPLY.size + len(_INIT_REPLY), 0, number) + _INIT_REPLY)
