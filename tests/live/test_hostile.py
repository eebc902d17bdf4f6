"""What must be refused, sent to a real server: nothing may be read or changed by it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from mcp_server.store.tokens import hash_of
from tests.support import hostile_requests
from tests.support.sandbox import Sandbox
from tests.support.service import Service, serve, tokens

_BLANK = b"\r\n\r\n"


@dataclass
class Siege:
    """A server with two agents' tokens, a run of bob's, and files that must not be read."""

    service: Service
    words: dict[str, str]

    def filled(self, data: bytes) -> bytes:
        length = f"Content-Length: {len(data.partition(_BLANK)[2])}".encode()
        for word, value in self.words.items():
            data = data.replace(f"{{{word}}}".encode(), value.encode())
        return data.replace(length, f"Content-Length: {len(data.partition(_BLANK)[2])}".encode(), 1)

    def state(self) -> dict[str, str]:
        """Every file of the state directory and of the traps, but for what the living run itself writes."""
        found = {}
        for root in (self.service.sandbox.path / "state", Path(self.words["trap"])):
            for path in sorted(root.rglob("*")):
                kept = path.is_file() and not path.is_symlink() and path.name not in ("progress.json", "output.log")
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if kept else ""
        return found


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    sandbox = Sandbox(tmp_path_factory.mktemp("siege"), f"runward-test-{secrets.token_hex(4)}")
    known = tokens(sandbox)
    words = {name: known.add(name) for name in ("alice", "bob", "removed")}
    known.remove("removed")
    words |= {
        "trap": str(_traps(sandbox.path)),
        "alice_half": words["alice"][:25],
        "alice_upper": words["alice"].upper(),
    }
    words |= {"alice_hash": hash_of(words["alice"])}
    try:
        with serve(sandbox) as service:
            words |= {"port": str(service.port), "session": _session(service, words["alice"])}
            words["bobs_run"] = anyio.run(_bobs_run, service, words["bob"])
            yield Siege(service, words)
    finally:
        sandbox.close()


def _traps(path: Path) -> Path:
    trap = path / "trap"
    (trap / "events").mkdir(parents=True)
    (trap / "secret").write_text(f"{hostile_requests.CANARY}\n")
    (trap / "link").symlink_to(trap / "secret")
    os.mkfifo(trap / "fifo")
    os.mkfifo(trap / "events" / "events.out.tfevents.1.fifo")
    (trap / "events" / "events.out.tfevents.2.link").symlink_to(trap / "secret")
    (trap / "events" / "events.out.tfevents.3.zero").symlink_to("/dev/zero")
    return trap


def _session(service: Service, token: str) -> str:
    status, told = service.send(
        hostile_requests.legacy(hostile_requests.INITIALIZE, host="localhost").replace(b"{alice}", token.encode())
    )
    assert status == 200, told
    lines = (line.partition(b":") for line in told.split(b"\r\n"))
    return next(value.strip().decode() for name, _, value in lines if name.lower() == b"mcp-session-id")


async def _bobs_run(service: Service, token: str) -> str:
    async with service.agent(token) as bob:
        return await bob.launch("echo begun; sleep 600", name="bobs")


@pytest.mark.parametrize("attack", hostile_requests.ALL, ids=lambda attack: attack.name)
def test_a_hostile_request_is_refused_and_reads_and_changes_nothing(
    siege: Siege, attack: hostile_requests.Hostile
) -> None:
    before = siege.state()
    status, told = siege.service.send(siege.filled(attack.request))
    assert hostile_requests.CANARY.encode() not in told
    if attack.refused:
        assert status in attack.refused, (status, told[:500])
    else:
        assert _refuses(told), (status, told[:500])
    assert siege.state() == before
    assert siege.service.sandbox.run(siege.words["bobs_run"]).state == "running"


def _refuses(told: bytes) -> bool:
    body = told.partition(_BLANK)[2]
    data = next((line[6:] for line in body.splitlines() if line.startswith(b"data: {")), body)
    answer = json.loads(data)
    result = answer.get("result", {})
    return "error" in answer or result.get("isError") is True or result.get("structuredContent", {}).get("ok") is False


def test_after_all_that_the_server_serves_on_and_has_said_nothing_on_stderr(siege: Siege) -> None:
    assert siege.service.health()["status"] == "ok"
    assert siege.service.send(siege.filled(hostile_requests.plain()))[0] == 200
    assert "Traceback" not in siege.service.log.read_text()
    assert not [word for word in ("alice", "bob") if siege.words[word] in siege.service.log.read_text()]


def test_who_does_not_say_in_time_what_it_wants_is_let_go(siege: Siege) -> None:
    with ThreadPoolExecutor() as pool:
        parts = [b"", siege.filled(hostile_requests.plain())[:40]]
        assert list(pool.map(lambda part: siege.service.send(part, timeout_s=25), parts)) == [(0, b"")] * 2
