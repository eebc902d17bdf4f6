"""The request that each service wants for a notice. Pure.

- ntfy: JSON to the server's root, with the topic in it (https://docs.ntfy.sh/publish/#publish-as-json).
- Slack: an incoming webhook; `&`, `<` and `>` are escaped (https://api.slack.com/messaging/webhooks).
- Feishu and Lark: a custom bot, which may want a signature (https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot).
- json: every fact of the notice, for programs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mcp_server.record.notices.notice import Notice
from mcp_server.record.notices.target import Target

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
