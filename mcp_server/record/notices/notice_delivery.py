"""Brings one notice to one target: an HTTP request or a command, tried once. Errors name no secret.

- ntfy: JSON to the server's root, with the topic in it (https://docs.ntfy.sh/publish/#publish-as-json). - Slack: an
incoming webhook; `&`, `<` and `>` are escaped (https://api.slack.com/messaging/webhooks). - Feishu and Lark: a custom
bot, which may want a signature (https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot). - json: every fact
of the notice, for programs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mcp_server.record.notices.notice import Notice, Target
from mcp_server.system import processes
from mcp_server.system.timed_http import build_timed_opener

_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_SUCCESS_TAG, _URGENT_TAG = "white_check_mark", "warning"


@dataclass(frozen=True)
class Request:
    """An HTTP POST of JSON."""

    url: str
    body: bytes
    headers: dict[str, str]


def make_request(target: Target, notice: Notice, unix_s: int) -> Request:
    """Return the request that brings ``notice`` to ``target`` at the time ``unix_s``."""
    url = target.url
    if target.service == "ntfy":
        url, body = _make_ntfy(target, notice)
    elif target.service == "slack":
        text = f"*{_escape(notice.title)}*\n{_escape(notice.text)}"
        body = {"text": text}
    elif target.service == "feishu":
        body = {"msg_type": "text", "content": {"text": f"{notice.title}\n{notice.text}"}}
        if target.sign_secret:
            key = f"{unix_s}\n{target.sign_secret}".encode()
            sign = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
            body |= {"timestamp": str(unix_s), "sign": sign}
    else:
        body = dict(notice.facts)
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "runward"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    return Request(url, json.dumps(body, ensure_ascii=False).encode(errors="replace"), headers)


def find_refusal(target: Target, answer: bytes) -> str:
    """Return why a service refused a notice although its HTTP status is 200, or empty where it accepted."""
    if target.service != "feishu":
        return ""
    try:
        facts = json.loads(answer)
        code = facts.get("code", facts.get("StatusCode", 0))
        return "" if code == 0 else f"code {code}: {facts.get('msg', '')}"
    except (ValueError, AttributeError):
        return "the answer is not of Feishu"


def _make_ntfy(target: Target, notice: Notice) -> tuple[str, dict[str, Any]]:
    parts = urlsplit(target.url)
    prefix, _, topic = parts.path.rstrip("/").rpartition("/")
    body: dict[str, Any] = {"topic": unquote(topic), "title": notice.title, "message": notice.text}
    if notice.is_urgent:
        body |= {"priority": 4, "tags": [_URGENT_TAG]}
    elif notice.is_success:
        body |= {"tags": [_SUCCESS_TAG]}
    return urlunsplit(parts._replace(path=f"{prefix}/")), body


def _escape(text: str) -> str:
    for sign, escape in _ESCAPES:
        text = text.replace(sign, escape)
    return text


_TIMEOUT_S = 15.0
_COMMAND_S = 30.0
_END_WITHIN_S, _LOOK_S = 5.0, 0.01
_MARK = "RUNWARD_NOTICE_COMMAND"
# The pids of the commands of all threads, and of the children that this process had before the first of them.
_under_way, _strangers, _starting = set[int](), list[int](), threading.Lock()
_ANSWER_BYTES = 65_536
_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class DeliveryFailed(Exception):
    """A notice did not arrive. ``may_pass``: another try may succeed, after ``wait_s`` where the service says so."""

    cause: str
    may_pass: bool = True
    wait_s: float = 0.0

    def __str__(self) -> str:
        """Return the cause."""
        return self.cause


def deliver(target: Target, notice: Notice, env: Mapping[str, str]) -> None:
    """Bring ``notice`` to ``target`` once. ``env``: the environment of a command."""
    if target.command:
        _run_command(target, notice, env)
    else:
        _post(target, notice)


def _post(target: Target, notice: Notice) -> None:
    request = make_request(target, notice, int(time.time()))
    try:
        opener = build_timed_opener()
        post = urllib.request.Request(request.url, request.body, request.headers, method="POST")  # noqa: S310 - checked
        with opener.open(post, timeout=_TIMEOUT_S) as answer:
            refusal = find_refusal(target, answer.read(_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            wait_s = _retry_after_s(error.headers.get("Retry-After", ""))
            raise DeliveryFailed(f"HTTP {error.code}", error.code in _MAY_PASS, wait_s) from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise DeliveryFailed(_without_secrets(f"{type(cause).__name__}: {cause}", target)) from None
    except ValueError:  # of an address that cannot be used; its text may hold the address
        raise DeliveryFailed("the address cannot be used", may_pass=False) from None
    if refusal:
        raise DeliveryFailed(_without_secrets(refusal, target), may_pass=False)


def _run_command(target: Target, notice: Notice, env: Mapping[str, str]) -> None:
    """Run the command with the facts as JSON on its input, and title and text in its environment."""
    facts = notice.facts
    named = {"RUNWARD_NOTICE_TITLE": notice.title, "RUNWARD_NOTICE_TEXT": notice.text}
    named |= {
        f"RUNWARD_NOTICE_{name.upper()}": str(facts[name]) for name in ("run_id", "kind", "state") if name in facts
    }
    mark = f"{os.getpid()}-{threading.get_native_id()}"
    with contextlib.suppress(OSError, AttributeError):  # not Linux: what leaves its session is not found
        processes.become_subreaper()
    try:
        with _starting:
            if not _under_way:
                _strangers[:] = processes.children_of_threads(os.getpid())
            process = subprocess.Popen(
                target.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**env, **named, _MARK: mark},
                cwd="/",
                start_new_session=True,
            )
            _under_way.add(process.pid)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it cannot be used"
        raise DeliveryFailed(f"{target.command[0]}: {cause}", may_pass=False) from None
    try:
        process.communicate(json.dumps(dict(facts), ensure_ascii=False).encode(errors="replace"), _COMMAND_S)
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"the command took more than {_COMMAND_S:g} s", may_pass=False) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            _end_all_of(process, mark)
        _under_way.discard(process.pid)
    if process.returncode:
        raise DeliveryFailed(f"the command ended with {process.returncode}")


def _end_all_of(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a command with all that it has started, also in sessions of their own, and collect them.

    Orphans become children of this process. Beside another command only those are its own that have its mark: the last
    command ends the others.
    """
    give_up_s = time.monotonic() + _END_WITHIN_S
    while True:
        with _starting:
            others = _under_way - {process.pid}
            living = processes.descendants(os.getpid(), without=others.union(_strangers))
            processes.reap_children(without=_under_way.union(_strangers))
        if others:
            own = {process.pid, *(each.pid for each in processes.descendants(process.pid))}
            own |= {each.pid for each in processes.find_by_variable(_MARK, mark)}
            living = [each for each in living if each.pid in own]
        for each in living:
            processes.send_signal(each, signal.SIGKILL)
        if (process.poll() is not None and not living) or time.monotonic() > give_up_s:
            return
        time.sleep(_LOOK_S)


def _retry_after_s(header: str) -> float:
    try:
        return min(max(float(header), 0.0), 3600.0)
    except ValueError:
        return 0.0


def _without_secrets(text: str, target: Target) -> str:
    for value in target.secrets:
        text = text.replace(value, "***")
    return text
