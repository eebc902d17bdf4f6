"""What must be refused, sent to a real server: nothing may be read or changed by it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from mcp_server.store.tokens import hash_of
from tests.support import hostile_requests
from tests.support.sandbox import Sandbox, until_async
from tests.support.service import Service, serve, tokens

_BLANK = b"\r\n\r\n"
_OF_THE_SUPERVISOR = ("progress.json", "outputs.json")
"""Files (and their temporary names) that the supervisor of a living run writes again and again."""

_WRITTEN_MEANWHILE = ("__pycache__", "code")
"""Directories that are filled beside the calls: bytecode, and what a run keeps of its code in its first seconds."""


_OUTSIDE = """## [exp_purpose]
Work where this token may not read

## [exp_codebase_dir]
{code}

## [exp_launch_command]
bash train.sh

## [exp_result_dir]
{results}
"""


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
                if any(name in path.parts for name in _WRITTEN_MEANWHILE):
                    continue
                if any(name in path.name for name in _OF_THE_SUPERVISOR):
                    continue
                kept = path.is_file() and not path.is_symlink() and path.name != "output.log"
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
            words |= {"port": str(service.port), "session": service.open_session(words["alice"])}
            words |= {"bobs_place": str(_bobs_place(sandbox.path)), "persons": "of-a-person"}
            sandbox.tmux("new-session", "-d", "-s", words["persons"], f"echo {hostile_requests.CANARY}; sleep 600")
            words["bobs_run"] = anyio.run(_bobs_run, service, words["bob"], words["bobs_place"])
            yield Siege(service, words)
    finally:
        sandbox.close()


def _traps(path: Path) -> Path:
    trap = path / "trap"
    (trap / "events").mkdir(parents=True)
    (trap / "secret").write_text(f"{hostile_requests.CANARY}\n")
    (trap / "loop").symlink_to(trap / "loop")
    (trap / "link").symlink_to(trap / "secret")
    os.mkfifo(trap / "fifo")
    os.mkfifo(trap / "events" / "events.out.tfevents.1.fifo")
    (trap / "events" / "events.out.tfevents.2.link").symlink_to(trap / "secret")
    (trap / "events" / "events.out.tfevents.3.zero").symlink_to("/dev/zero")
    (trap / "blueprint.md").write_text(f"{hostile_requests.CANARY}\n\n# An experiment of somebody\n")
    return trap


def _bobs_place(path: Path) -> Path:
    """Where bob's run works, so that he may read there and nobody else."""
    place = path / "bobs"
    place.mkdir()
    (place / "secret").write_text(f"{hostile_requests.CANARY}\n")
    return place


async def _bobs_run(service: Service, token: str, place: str) -> str:
    async with service.agent(token) as bob:
        run_id = await bob.launch("echo begun; sleep 600", name="bobs", cwd=place)
    await until_async(lambda: "begun" in service.sandbox.log(run_id), "the first output")
    return run_id


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


def test_there_are_two_hundred_of_them() -> None:
    assert len(hostile_requests.ALL) >= 200
    assert len({attack.name for attack in hostile_requests.ALL}) == len(hostile_requests.ALL)


@pytest.mark.parametrize(
    "ask",
    [
        lambda path: hostile_requests.call("read_log", path=path),
        lambda path: hostile_requests.call("read_tb", logdir=path),
        lambda path: hostile_requests.call("read_tb", compare=[path]),
        lambda path: hostile_requests.call("check_blueprint", path=path),
        lambda path: hostile_requests.call("launch_run", blueprint=path),
        lambda path: hostile_requests.call("preflight", blueprint=path),
        lambda path: hostile_requests.call("preflight", paths=[path]),
        lambda path: hostile_requests.call("preflight", cwd=path),
        lambda path: hostile_requests.call("preflight", host="lab", cwd=path),
        lambda path: hostile_requests.call("preflight", host="lab", paths=[path]),
        lambda path: hostile_requests.call("preflight", command="true", params=path),
        lambda path: hostile_requests.call("launch_run", command="true", params=path),
        lambda path: hostile_requests.call("launch_run", command="true", cwd=path, dry_run=True),
        lambda path: hostile_requests.call("preflight", result_dir=path),
        lambda path: hostile_requests.call("preflight", python=path, imports=["os"]),
        lambda path: hostile_requests.call("finish_blueprint", run_id="none", result_dir=path),
    ],
)
def test_what_is_outside_is_answered_alike_whether_it_exists_or_not(siege: Siege, ask: Callable[[str], bytes]) -> None:
    _assert_answered_alike(siege, ask)


def test_with_read_roots_a_launch_outside_of_them_is_refused_alike_whether_its_cwd_exists_or_not(siege: Siege) -> None:
    settings = siege.service.sandbox.path / "state" / "config.toml"
    allowed = siege.service.sandbox.path / "allowed"
    allowed.mkdir()
    try:
        settings.write_text(f"read_roots = [{str(allowed)!r}]\n")
        (allowed / "way_out").symlink_to(siege.words["trap"])
        _assert_answered_alike(siege, lambda path: hostile_requests.call("launch_run", command="true", cwd=path))
        inside = siege.service.send(siege.filled(hostile_requests.call("launch_run", command="true", cwd=str(allowed))))
        assert b'"state":"' in inside[1]
        document = allowed / "outside.md"
        document.write_text(_OUTSIDE.format(code=siege.words["trap"], results=allowed / "results"))
        for arguments in ({}, {"cwd": str(allowed), "tensorboard": "{trap}"}, {"blueprint": str(document)}):
            given = {"command": "true", **arguments} if "blueprint" not in arguments else arguments
            for tool, whole in (
                ("launch_run", given),
                ("launch_sweep", {"name": "out", "common": given, "cells": [{}]}),
            ):
                answer = siege.service.send(siege.filled(hostile_requests.call(tool, **whole)))[1]
                assert b"this token may read" in answer, (tool, whole, answer)
        (allowed / "a.yaml").write_text("a: 1\n")
        common = {"command": "true", "cwd": str(allowed)}
        for ask in (
            lambda path: hostile_requests.call("launch_run", **common, params=f"a.yaml,{path}"),
            lambda path: hostile_requests.call("preflight", **common, params=f"{allowed}/a.yaml, {path}"),
            *(
                lambda path, kind=kind: hostile_requests.call(
                    "launch_sweep", name="out", common=common, source=f"{kind}a.yaml,{path}.yaml", dry_run=True
                )
                for kind in ("verl:", "hydra :")
            ),
        ):
            _assert_answered_alike(siege, ask)
        for pattern in ("way_out/*.yaml", "way_o*/*"):
            sweep = hostile_requests.call("launch_sweep", name="out", common=common, source=f"hydra:a.yaml,{pattern}")
            assert b"this token may read" in siege.service.send(siege.filled(sweep))[1]
        way_out = {"command": "true", "cwd": f"{allowed}/{{d}}"}
        sweep = hostile_requests.call("launch_sweep", name="out", common=way_out, grid={"d": [siege.words["trap"]]})
        assert b"holds a parameter" in siege.service.send(siege.filled(sweep))[1]
        through_link = hostile_requests.call("launch_run", command="true", cwd=str(allowed / "way_out" / "events"))
        assert b"this token may read" in siege.service.send(siege.filled(through_link))[1]
    finally:
        settings.unlink()


def _assert_answered_alike(siege: Siege, ask: Callable[[str], bytes]) -> None:
    answers = set()
    for path in ("secret", "events", "fifo", "link", "loop", "absent", "events/absent", "secret/absent"):
        name = f"{{trap}}/{path}"
        told = siege.service.send(siege.filled(ask(name)))[1].partition(_BLANK)[2]
        assert b"this token may read" in told
        answers.add(told.replace(siege.filled(name.encode()), b"PATH"))
    assert len(answers) == 1


def test_what_a_person_allows_and_what_is_a_callers_own_may_be_read(siege: Siege) -> None:
    settings = siege.service.sandbox.path / "state" / "config.toml"
    requests = [
        siege.filled(request)
        for request in (
            hostile_requests.call("read_log", path="{trap}/secret"),
            hostile_requests.call("capture_pane", session="{persons}"),
        )
    ]
    try:
        settings.write_text(f"read_roots = [{siege.words['trap']!r}]\nallow_sessions = ['of-a-*']\n")
        for request in requests:
            assert hostile_requests.CANARY.encode() in siege.service.send(request)[1]
        others = siege.service.send(siege.filled(hostile_requests.call("list_runs", others=True)))[1]
        assert b"of-a-person" in others
    finally:
        settings.unlink()
    others = siege.service.send(siege.filled(hostile_requests.call("list_runs", others=True)))[1]
    assert b"of-a-person" not in others
    of_bob = hostile_requests.modern(
        "tools/call", {"name": "read_log", "arguments": {"path": "{bobs_place}/secret"}}, token="{bob}"
    )
    assert hostile_requests.CANARY.encode() in siege.service.send(siege.filled(of_bob))[1]
    of_bobs_run = hostile_requests.modern(
        "tools/call",
        {"name": "read_log", "arguments": {"path": "{trap}/../state/runs/{bobs_run}/attempts/1/output.log"}},
        token="{bob}",
    )
    assert b"begun" in siege.service.send(siege.filled(of_bobs_run))[1]
    of_run = hostile_requests.call("capture_pane", run_id="{bobs_run}")
    assert b"begun" in siege.service.send(siege.filled(of_run))[1]


def test_after_all_that_the_server_serves_on_and_has_said_nothing_on_stderr(siege: Siege) -> None:
    assert siege.service.health()["status"] == "ok"
    assert siege.service.send(siege.filled(hostile_requests.plain()))[0] == 200
    assert "Traceback" not in siege.service.log.read_text()
    assert not [word for word in ("alice", "bob") if siege.words[word] in siege.service.log.read_text()]


@pytest.mark.slow
def test_who_does_not_say_in_time_what_it_wants_is_let_go(siege: Siege) -> None:
    with ThreadPoolExecutor() as pool:
        parts = [b"", siege.filled(hostile_requests.plain())[:40]]
        assert list(pool.map(lambda part: siege.service.send(part, timeout_s=25), parts)) == [(0, b"")] * 2
