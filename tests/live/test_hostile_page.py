"""Hostile requests to the page, byte by byte: nothing runs, nothing of others is told, nothing is done unconfirmed."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from mcp_server.page.sessions import PageSessions
from mcp_server.store.state_home import StateHome
from tests.support.sandbox import Sandbox, until, until_async
from tests.support.service import Service, serve, tokens

CANARY = "canary-3f9a-must-not-be-told"
NOT_FOUND, BAD, NOBODY, REFUSED = (404, 400), (400,), (401,), (403,)


@dataclass(frozen=True)
class Attack:
    """One request; ``cookie``: whose session it has. ``refused``: the statuses that refuse it."""

    line: str
    refused: tuple[int, ...]
    cookie: str = "{bob}"
    body: str = ""
    headers: str = ""


def get(path: str, refused: tuple[int, ...], headers: str = "", cookie: str = "{bob}") -> Attack:
    return Attack(f"GET {path} HTTP/1.1", refused, cookie, headers=headers)


OWN = "X-Runward: page\r\nContent-Type: application/json\r\n"


def post(path: str, refused: tuple[int, ...], body: str = "{}", headers: str = OWN, cookie: str = "{bob}") -> Attack:
    return Attack(f"POST {path} HTTP/1.1", refused, cookie, body, headers)


KILL, RUN = "/api/runs/{adas_run}/kill", '{"run_id": "{adas_run}"}'
OWN_KILL, OWN_RUN = "/api/runs/{bobs_run}/kill", '{"run_id": "{bobs_run}"}'
ATTACKS = (
    # paths
    *(
        get(f"/static/{path}", NOT_FOUND)
        for path in (
            "../routes.py",
            "%2e%2e/routes.py",
            "..%2froutes.py",
            "..%2f..%2f__init__.py",
            "vendor/../../board.py",
            "/etc/passwd",
            "%2fetc%2fpasswd",
            "index.html%00.js",
            "%00",
            ".hidden.js",
            "vendor",
            "x.py",
            "..%5croutes.py",
            "%252e%252e/routes.py",
            "index.html/",
            "index.html/../../routes.js",
        )
    ),
    *(
        get(f"/api/runs/{path}", NOT_FOUND)
        for path in (
            "..%2f..%2ftokens.toml",
            "%2e%2e",
            ".",
            "..%2f{adas_run}",
            "<script>alert(1)</script>",
            "%3Cscript%3E",
            "a%00b",
            "{adas_run}/../{bobs_run}",
            "{adas_run}/file/..%2f..%2fspec.json",
            "{adas_run}/spec.json",
        )
    ),
    get("/api/../tokens.toml", NOT_FOUND),
    get("/tokens.toml", NOT_FOUND),
    get("/page/sessions", NOT_FOUND),
    get("//api/runs", NOT_FOUND),
    get("/api", NOT_FOUND),
    # values
    *(
        get(f"/api/runs/{{bobs_run}}/log?{query}", BAD)
        for query in (
            "attempt=-1",
            "attempt=999999",
            "attempt=1;id",
            "after=-1",
            "after=0x10",
            "line=1e9",
            "grep=(a%2b)%2b$",
            "grep=(",
            "attempt=" + "9" * 400,
            "after=%D9%A1",
        )
    ),
    get("/api/runs?limit=-1", BAD),
    get("/api/runs?before=..%2f..", NOT_FOUND),
    get("/api/sparks?" + "&".join(["run=a"] * 61), BAD),
    get("/api/compare?" + "&".join(f"run=r{n}" for n in range(41)), BAD),
    get("/api/runs/{bobs_run}/scalars?from=x", BAD),
    get("/api/runs/{bobs_run}/scalars?" + "&".join(f"tag=t{n}" for n in range(41)), BAD),
    # who asks
    get("/api/runs", NOBODY, cookie=""),
    get("/api/events", NOBODY, cookie=""),
    get("/api/gpus", NOBODY, cookie=""),
    get("/api/runs", NOBODY, cookie="{name}=" + "A" * 43),
    get("/api/runs", NOBODY, cookie="{name}={hash}"),
    get("/api/runs", NOBODY, cookie="{name}=..%2f..%2ftokens"),
    get("/api/runs", NOBODY, cookie="{other}"),
    get("/api/runs", NOBODY, cookie="{spent}"),
    get("/api/runs", (401, 431), cookie="{name}=" + "A" * 20_000),
    get("/api/runs?token={ada}", NOBODY, cookie=""),
    get("/api/runs", NOBODY, "Authorization: Bearer runward_x\r\n", cookie=""),
    get("/api/runs", NOBODY, "Authorization: Basic YWRhOmFkYQ==\r\n", cookie=""),
    post("/api/session", NOBODY, '{"token": "ada"}', cookie=""),
    post("/api/session", NOBODY, '{"token": ["{ada}"]}', cookie=""),
    get("/open/{link_hash}", NOT_FOUND, cookie=""),
    get("/open/..%2f..%2fsessions", NOT_FOUND, cookie=""),
    get("/open/{spent_code}", NOT_FOUND, cookie=""),
    Attack("HEAD /open/{code} HTTP/1.1", (405,), ""),
    post("/open/{code}", (405,), cookie=""),
    # other sites
    get("/api/runs", (421,), "Host: evil.example\r\n"),
    get("/", (421,), "Host: localhost.evil.example\r\n", cookie=""),
    get("/api/runs", REFUSED, "Origin: http://evil.example\r\n"),
    get("/api/runs", REFUSED, "Origin: null\r\n"),
    get("/api/runs", REFUSED, "Sec-Fetch-Site: cross-site\r\n"),
    get("/api/runs", REFUSED, "Sec-Fetch-Site: same-site\r\n"),
    Attack("OPTIONS /api/runs HTTP/1.1", (405, 403), headers="Origin: http://evil.example\r\n"),
    Attack(f"OPTIONS {OWN_KILL} HTTP/1.1", (405,)),
    # changes that nobody confirmed, or that another page sends
    post(KILL, REFUSED, RUN),
    post("/api/runs/{adas_run}/note", REFUSED, '{"text": "mine"}'),
    post(KILL, REFUSED, RUN, f"{OWN}Authorization: Bearer {{ada}}\r\n", cookie=""),
    post(OWN_KILL, (409,), "{}"),
    post(OWN_KILL, (409,), RUN),
    post(OWN_KILL, (409,), '{"run_id": ["{bobs_run}"]}'),
    post(OWN_KILL, (409,), '{"run_id": true}'),
    post(OWN_KILL, (409,), '{"run_id": "{bobs_run}\\u200b"}'),
    post(OWN_KILL, (409,), '{"run_id": "{bobs_run}\\n"}'),
    post(OWN_KILL, BAD, "[]"),
    post(OWN_KILL, BAD, '{"run_id": '),
    post(OWN_KILL, BAD, "[" * 30_000),
    post(OWN_KILL, (400, 413), '{"run_id": "{bobs_run}", "reason": "' + "x" * 100_000 + '"}'),
    post(OWN_KILL, BAD, '{"run_id": "{bobs_run}", "reason": ["x"]}'),
    post(OWN_KILL, REFUSED, OWN_RUN, "Content-Type: application/json\r\n"),
    post(OWN_KILL, REFUSED, OWN_RUN, "X-Runward: page\r\nContent-Type: text/plain\r\n"),
    post(OWN_KILL, REFUSED, "run_id={bobs_run}", "X-Runward: page\r\nContent-Type: multipart/form-data\r\n"),
    post(OWN_KILL, REFUSED, OWN_RUN, f"{OWN}Origin: http://127.0.0.1:1\r\n"),
    post(OWN_KILL, REFUSED, OWN_RUN, f"{OWN}Sec-Fetch-Site: same-site\r\n"),
    post(OWN_KILL, NOBODY, OWN_RUN, cookie=""),
    get(OWN_KILL, (405,)),
    get(f"{OWN_KILL}?run_id={{bobs_run}}", (405,), "X-HTTP-Method-Override: POST\r\n"),
    Attack("DELETE /api/runs/{bobs_run} HTTP/1.1", (405,), headers=OWN),
    Attack("PUT /api/runs/{bobs_run}/note HTTP/1.1", (405,), headers=OWN),
    post("/api/runs/live/kill", NOT_FOUND, '{"run_id": "live"}'),
    post("/api/runs/tag:x/kill", NOT_FOUND, '{"run_id": "tag:x"}'),
    post("/api/runs/{bobs_run}/note", BAD, '{"text": ""}'),
    # files of others
    get("/api/runs/{adas_run}/files", REFUSED),
    get("/api/runs/{adas_run}/file/" + "0" * 24, REFUSED),
    get("/api/runs/{adas_run}/diff", REFUSED),
    get("/api/runs/{bobs_run}/diff?other={adas_run}", REFUSED),
)


@dataclass
class Siege:
    service: Service
    words: dict[str, str]

    def send(self, attack: Attack) -> tuple[int, bytes]:
        lines = [attack.line, *([] if "Host: " in attack.headers else ["Host: 127.0.0.1:{port}"])]
        lines += [f"Cookie: {attack.cookie}"] if attack.cookie else []
        head, body = "\r\n".join(lines) + "\r\n" + attack.headers, attack.body
        for _ in range(2):  # a cookie's word has words in it
            for word, value in self.words.items():
                head, body = head.replace(f"{{{word}}}", value), body.replace(f"{{{word}}}", value)
        length = (
            f"Content-Length: {len(body.encode())}\r\n" if body or not attack.line.startswith(("GET", "HEAD")) else ""
        )
        return self.service.send(f"{head}{length}\r\n{body}".encode())

    def state(self) -> dict[str, str]:
        """Every file of the state directory, but for what living runs write themselves."""
        root = self.service.sandbox.path / "state"
        kept = (path for path in sorted(root.rglob("*")) if path.is_file() and "attempts" not in path.parts)
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in kept
            if not path.name.startswith(("index", ".")) and path.suffix not in (".sqlite", ".db")
        }


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    sandbox = Sandbox(tmp_path_factory.mktemp("siege"), f"runward-test-{secrets.token_hex(4)}")
    known, home = tokens(sandbox), StateHome(sandbox.path / "state")
    words = {"ada": known.add("ada"), "bobs_token": known.add("bob")}
    sessions = PageSessions(home)
    name = sessions.cookie
    try:
        with serve(sandbox) as service:
            for owner in ("ada", "bob"):
                run_id = anyio.run(_start, service, words["ada" if owner == "ada" else "bobs_token"], owner)
                words[f"{owner}s_run"] = run_id
            spent_code = sessions.make_link()
            spent = sessions.redeem(spent_code)
            session = sessions.redeem(sessions.make_link("bob"))
            code = sessions.make_link()
            assert spent is not None
            sessions.log_out(spent)
            words |= {"bob": f"{name}={session}", "spent": f"{name}={spent}", "spent_code": spent_code, "code": code}
            words |= {"other": f"runward_page={session}", "name": name, "port": str(service.port)}
            (link,) = (home.path / "page" / "links").iterdir()
            words |= {"link_hash": link.name, "hash": hashlib.sha256((session or "").encode()).hexdigest()[:43]}
            yield Siege(service, words)
    finally:
        sandbox.close()


async def _start(service: Service, token: str, owner: str) -> str:
    place = service.sandbox.path / owner
    place.mkdir()
    (place / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n" + CANARY.encode())
    async with service.agent(token) as agent:
        run_id = await agent.launch("echo begun; sleep 600", cwd=str(place))
    await until_async(lambda: "begun" in service.sandbox.log(run_id), "the first output")
    return run_id


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: f"{one.line[:60]} {one.headers[:40]!r} {one.body[:30]}")
def test_a_hostile_request_is_refused_and_reads_and_changes_nothing(siege: Siege, attack: Attack) -> None:
    before = siege.state()
    status, told = siege.send(attack)
    assert status in attack.refused, (status, told[:400])
    head, _, body = told.partition(b"\r\n\r\n")
    assert CANARY.encode() not in told
    assert b"access-control-allow" not in head.lower()
    if b"text/html" in head:
        assert body.startswith(b"<!doctype html><meta charset=utf-8><title>runward</title><p>This link is spent")
    assert siege.state() == before
    assert {siege.service.sandbox.run(siege.words[f"{owner}s_run"]).state for owner in ("ada", "bob")} == {"running"}


def test_there_are_eighty_of_them() -> None:
    assert len(ATTACKS) >= 80


def test_the_attacker_of_these_is_otherwise_let_in(siege: Siege) -> None:
    """Else all refusals would be of a broken session."""
    assert siege.send(get("/api/runs", ()))[0] == 200
    assert siege.send(get("/api/runs/{bobs_run}/files", ()))[0] == 200
    assert siege.send(get("/api/runs/{adas_run}/log", ()))[0] == 200
    assert siege.send(get("/static/index.html", ()))[0] == 200


HOSTILE = "<img src=x onerror=alert(1)>'\"`;--\u202e\u2066</script>{{7*7}}"


@pytest.mark.anyio
async def test_hostile_texts_of_runs_leave_as_data_that_shows_what_it_is(sandbox: Sandbox) -> None:
    place = sandbox.path / "<b>place"
    place.mkdir()
    png = b"\x89PNG\r\n\x1a\n" + bytes(32)
    (sandbox.path / "picture").write_bytes(png)
    (sandbox.path / "out.txt").write_text(
        f"step 1/2 loss 0.5 {HOSTILE}\x1b]0;title\x07\x1b[31mred\x1b[0m\n"
        "{'<img src=x>': 1.5, 'loss': 0.25, 'step': 2}\n"
        "RuntimeError: <script>alert(1)</script>\n"
    )
    command = f"cp {sandbox.path}/picture '<svg onload=alert(1)>.png'; cat {sandbox.path}/out.txt; exit 1"
    tokens(sandbox).add("ada")
    async with sandbox.agent() as agent:
        run_id = (
            await agent.call(
                "launch_run",
                command=command,
                cwd=str(place),
                tags=["<i>tag"],
                name="a<b>",
                env={"X": HOSTILE},
                wait_s=20,
            )
        )["run_id"]
    sessions = PageSessions(StateHome(sandbox.path / "state"))
    with serve(sandbox) as service:
        words = {"me": f"{sessions.cookie}={sessions.redeem(sessions.make_link())}", "port": str(service.port)}
        page = Siege(service, words)
        until(lambda: sandbox.run(run_id).ended, "the end")
        addresses = (
            "/api/me",
            "/api/runs",
            f"/api/runs/{run_id}",
            f"/api/runs/{run_id}/log",
            f"/api/runs/{run_id}/log?grep=img",
            f"/api/runs/{run_id}/scalars",
            f"/api/runs/{run_id}/scalars?tag=loss",
            f"/api/runs/{run_id}/files",
            f"/api/runs/{run_id}/diff",
            f"/api/sparks?run={run_id}&run=%3Cscript%3E",
            f"/api/compare?run={run_id}",
            "/api/gpus",
        )
        for address in addresses:
            status, told = page.send(get(address, (), cookie="{me}"))
            head, _, body = told.partition(b"\r\n\r\n")
            assert status == 200, (address, told[:300])
            assert b"content-type: application/json" in head, address
            assert b"x-content-type-options: nosniff" in head
            assert not any(sign in body.decode() for sign in "\u202e\u2066\x07\x00"), address
            json.loads(body)
        files: dict[str, Any] = json.loads(page.send(get(addresses[7], (), cookie="{me}"))[1].partition(b"\r\n\r\n")[2])
        assert [one["name"] for one in files["pictures"]] == ["<svg onload=alert(1)>.png"]
        assert "<" not in files["pictures"][0]["url"]
