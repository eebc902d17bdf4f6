"""A canary secret: is it anywhere but in the run's own environment?"""

from __future__ import annotations

import base64
import secrets
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.to_thread

from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, program, shell, until
from tests.benchmarks.report import Row, Table

_NAME = "CANARY_API_KEY"
_LIVE_S = 2.5
_PLACES = ("argv of all processes", "tmux environment", "pane", "log", "state directory", "answers")


async def measure(sandbox: Sandbox) -> Table:
    """Let a run print a secret in all ways, and look for it everywhere, while it runs and afterwards."""
    canary = f"cnry{secrets.token_hex(8)}-/+{secrets.token_hex(8)}"
    needles = _spellings(canary)
    async with sandbox.server(**{_NAME: canary}) as server:
        ours = await _under_runward(sandbox, server, needles)
    plain = await _in_plain_tmux(sandbox, canary, needles)
    rows = tuple(
        Row(
            f"canary found in {place}",
            str(ours[place]),
            str(plain[place]) if place in plain else "",
            bar="0",
            ok=not ours[place],
        )
        for place in _PLACES
    )
    note = (
        f"{len(needles)} spellings: plain, either half, base64 in three alignments, hex, URL. Printed whole, letter by "
        "letter, in two writes 0.2 s apart, encoded, in a traceback. Baseline: `tmux new-session -e KEY=value`."
    )
    found = [f"Found in {place}: {needle}" for place, needle in sorted(ours.where)]
    return Table("Secrets", rows, (note, *found[:8]))


def _spellings(canary: str) -> dict[str, bytes]:
    """Return what would give the canary away, by name."""
    raw = canary.encode()
    first, _, second = canary.partition("-/+")
    found = {
        "plain": raw,
        "first half": first.encode(),
        "second half": second.encode(),
        "URL": quote(canary, safe="").encode(),
        "hex": raw.hex().encode(),
        "HEX": raw.hex().upper().encode(),
    }
    for shift in range(3):
        # The digits that the canary alone decides, when ``shift`` other bytes stand before it.
        digits = base64.b64encode(b"\0" * shift + raw)[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]
        found[f"base64+{shift}"] = digits
        found[f"urlsafe base64+{shift}"] = digits.translate(bytes.maketrans(b"+/", b"-_"))
    return found


class Hits(Counter[str]):
    """How often something was found, by place; ``where`` also says which spelling."""

    def __init__(self, needles: dict[str, bytes]) -> None:
        super().__init__()
        self.needles = needles
        self.where: set[tuple[str, str]] = set()

    def look(self, place: str, data: bytes | str) -> None:
        """Count the needles in ``data``; wraps of a terminal do not hide them."""
        text = data.encode() if isinstance(data, str) else data
        for name, needle in self.needles.items():
            if count := max(text.count(needle), text.replace(b"\n", b"").count(needle)):
                self[place] += count
                self.where.add((place, name))


class Watcher:
    """Reads the arguments of all processes again and again: some live for milliseconds."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()

    def watch(self) -> None:
        """Look until told to stop."""
        while not self._stop.wait(0.002):
            self.seen.update(b" ".join(processes.argv(pid)) for pid in processes.pids())

    def stop(self) -> None:
        """Look no longer."""
        self._stop.set()


async def _under_runward(sandbox: Sandbox, server: Server, needles: dict[str, bytes]) -> Hits:
    hits, watcher = Hits(needles), Watcher()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, watcher.watch)
        try:
            command = program("leak", _NAME, _LIVE_S)
            run_id = await server.launch(command, secrets=[_NAME], name="leak", tags=["canary"])
            if not await until(lambda: _has_said(sandbox.log(run_id))):
                raise NotMeasured("the run did not say all within 10 s")
            await _ask_all(server, run_id)
            _look_at_tmux(sandbox, hits, sandbox.socket, run_id)
            _look_at_files(sandbox, hits, run_id)
            await server.wait(run_id)
        finally:
            watcher.stop()
    await _ask_all(server, run_id)
    _look_at_tmux(sandbox, hits, sandbox.socket, run_id)
    _look_at_files(sandbox, hits, run_id)
    for answer in server.answers:
        hits.look("answers", answer)
        hits.look("answers", answer.replace("\\n", ""))
    for arguments in watcher.seen:
        hits.look("argv of all processes", arguments)
    return hits


def _has_said(log: Path) -> bool:
    return log.exists() and b"all said" in log.read_bytes()


async def _ask_all(server: Server, run_id: str) -> None:
    """Call every tool that tells something of a run."""
    await server.wait(run_id, timeout_s=0)
    await server.call("wait_run", run_ids=run_id, timeout_s=0, since=0)
    await server.call("read_log", run_id=run_id, tail=500)
    await server.call("read_log", run_id=run_id, grep="base64|plain|key|:", context=5)
    await server.call("read_log", run_id=run_id, start_line=1)
    await server.call("capture_pane", run_id=run_id, lines=500, history=True)
    await server.call("list_runs", others=True)
    await server.call("launch_run", command="true", secrets=[_NAME], dry_run=True)
    await server.call("kill_run", run_id=run_id)


def _look_at_tmux(sandbox: Sandbox, hits: Hits, socket: str, session: str) -> None:
    for scope in (["-g"], ["-t", f"={session}"]):
        hits.look("tmux environment", sandbox.tmux("show-environment", *scope, socket=socket))
    server = sandbox.tmux("display-message", "-p", "#{pid}", socket=socket).strip()
    hits.look("tmux environment", Path(f"/proc/{server}/environ").read_bytes())
    for joined in ([], ["-J"]):
        hits.look("pane", sandbox.tmux("capture-pane", "-p", *joined, "-S", "-", "-t", f"={session}:", socket=socket))


def _look_at_files(sandbox: Sandbox, hits: Hits, run_id: str) -> None:
    hits.look("log", sandbox.log(run_id).read_bytes())
    for path in _files(sandbox.home):
        if path != sandbox.log(run_id):
            hits.look("state directory", path.read_bytes())


def _files(top: Path) -> Iterable[Path]:
    return [path for path in top.rglob("*") if path.is_file()]


async def _in_plain_tmux(sandbox: Sandbox, canary: str, needles: dict[str, bytes]) -> Hits:
    """Do it as people do: the secret by `-e` into a session that starts the server."""
    hits = Hits(needles)
    command = shell(program("leak", _NAME, _LIVE_S))
    log = sandbox.work / "plain.log"
    sandbox.tmux(
        "-f", "/dev/null", "new-session", "-d", "-s", "leak", "-e", f"{_NAME}={canary}", f"{command} | tee {log}"
    )
    if not await until(lambda: _has_said(log)):
        raise NotMeasured("the plain run did not say all within 10 s")
    for pid in processes.pids():
        hits.look("argv of all processes", b" ".join(processes.argv(pid)))
    _look_at_tmux(sandbox, hits, sandbox.plain_socket, "leak")
    hits.look("log", log.read_bytes())
    return hits
