"""The requests of a server to the relay of a far host: one table, which both ends import."""

from __future__ import annotations

from typing import NamedTuple

MOST_CONTENT_BYTES = 8 * 2**20  # of a file, in one answer
_CODE = "name hash sync files sent commit clone origin repository pack_bytes token"


class RelayRequest(NamedTuple):
    """A request: the words that it may say.

    ``finishes``: it is carried out although nobody hears the answer. ``most_bytes``: its answer brings compressed
    bytes, unpacked at most so many.
    """

    words: frozenset[str]
    finishes: bool = False
    most_bytes: int = 0


def _ask(words: str = "", *, finishes: bool = False, most_bytes: int = 0) -> RelayRequest:
    return RelayRequest(frozenset(words.split()), finishes, most_bytes)


REQUESTS = {
    "ping": _ask(),  # shows that the channel works
    "subscribe": _ask("have dead"),  # pushes all runs from now on
    # Of launches: at most once for a run id.
    "launch": _ask("spec handover options", finishes=True),
    "launch_array": _ask("runs options name most_at_once", finishes=True),  # as one array of jobs
    "preview_job": _ask("run options"),  # the batch script, and Slurm's estimate of its start
    "preview_array": _ask("name count options most_at_once"),
    "withdraw": _ask("run"),  # a run which is not there is never started
    "discard": _ask("run", finishes=True),  # directory and session of a refused launch
    # Of runs.
    "stop_request": _ask("run request", finishes=True),  # writes it, or withdraws it
    "interrupt": _ask("run", finishes=True),  # a living supervisor reads its stop request; says whether it reached it
    "reap": _ask("run", finishes=True),  # stops all processes of a run whose supervisor is dead or stuck, and verifies
    "leftovers": _ask("run"),  # the processes that a run left behind when its supervisor died
    "screen": _ask("run history"),  # the lines of its pane, of a run without tmux the end of its log
    "close_screens": _ask("ended"),  # the sessions of these runs
    "sessions": _ask("socket"),  # those of a tmux server
    # Of files. A path is absolute or below the state directory.
    "read": _ask("path offset count", most_bytes=MOST_CONTENT_BYTES),
    "files": _ask("patterns"),  # size, time and inode of the regular files that match
    "paths": _ask("paths"),  # what is there: ``directory``, ``file``, ``missing`` with near names, or ``unknown``
    "trees": _ask("roots"),  # the files below some directories
    "contents": _ask("paths", most_bytes=2 * MOST_CONTENT_BYTES),  # of small files
    "write_documents": _ask("directory files"),  # into a result directory
    "disk": _ask("path"),  # free bytes on the disk of a directory
    # Of code: where a content is or would be, and what is missing for it; a part of an upload; make its directory.
    "code_look": _ask(_CODE),
    "code_put": _ask("token offset"),
    "code_make": _ask(_CODE),
    # Of the host.
    "gpus": _ask("env near query since_s python"),  # with the holders of leases of them and of its cpu slots
    "free_port": _ask("low high"),
    "check": _ask("python imports env cwd ports ray"),  # as preflight does; nothing that is named is started
}
