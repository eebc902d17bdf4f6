"""A notice says what happened, why, and where to look; each service gets it in its own form."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from mcp_server.record.events import TRAITS
from mcp_server.record.notices.notice import (
    EVENTS,
    NoticedRun,
    Target,
    guess_service,
    make_notice,
    name_target,
    split_command,
)
from mcp_server.record.notices.sender import find_refusal, make_request

RUN = NoticedRun("cfm-7kqz", "cfm", "alice", "box1")
FAILED = {
    "seq": 9,
    "kind": "ended",
    "state": "failed",
    "at": "2026-11-22T10:00:00Z",
    "text": "The command failed with exit code 1.",
    "elapsed_s": 7380.0,
    "exit_code": 1,
    "failure": {"kind": "oom", "line": "CUDA out of memory", "advice": "Halve num_envs."},
}


def sent(target: Target, event: dict[str, Any]) -> Any:
    return json.loads(make_request(target, make_notice(event, RUN), 1_700_000_000).body)


def test_a_failure_says_kind_line_advice_and_where_to_look() -> None:
    notice = make_notice(FAILED, RUN)
    assert notice.title == "failed (oom): cfm-7kqz after 2.05 h"
    assert notice.text.splitlines() == [
        "The command failed with exit code 1.",
        "CUDA out of memory",
        "Halve num_envs.",
        "alice on box1. runward logs cfm-7kqz",
    ]
    assert notice.is_urgent
    assert not notice.is_success


@pytest.mark.parametrize(
    ("event", "title"),
    [
        ({"kind": "ended", "state": "finished", "elapsed_s": 5.0}, "finished: cfm-7kqz after 5 s"),
        ({"kind": "ended", "state": "lost"}, "lost: cfm-7kqz"),
        ({"kind": "refused", "state": "failed"}, "not started: cfm-7kqz"),
        ({"kind": "stalled"}, "stalled: cfm-7kqz"),
        ({"kind": "first_step_timeout"}, "no first step: cfm-7kqz"),
        ({"kind": "retrying", "failure": {"kind": "oom"}}, "retrying (oom): cfm-7kqz"),
    ],
)
def test_the_title_says_what_happened(event: dict[str, Any], title: str) -> None:
    assert make_notice(event, RUN).title == title


def test_every_text_is_masked() -> None:
    event = {**FAILED, "text": "key-of-alice", "params": {"a": ["key-of-alice"]}}
    notice = make_notice(event, RUN, lambda text: text.replace("key-of-alice", "***"))
    assert "key-of-alice" not in json.dumps([notice.title, notice.text, notice.facts])
    assert notice.facts["params"] == {"a": ["***"]}


def test_a_long_text_is_shortened_and_the_last_line_stays() -> None:
    notice = make_notice({**FAILED, "text": "x" * 50_000}, RUN)
    assert len(notice.text) <= 1_000
    assert notice.text.endswith("runward logs cfm-7kqz")


def test_ntfy_gets_topic_title_message_and_a_priority_for_trouble() -> None:
    target = Target("n", url="https://ntfy.example/sub/my%20topic", service="ntfy", token="tk_1")
    request = make_request(target, make_notice(FAILED, RUN), 0)
    assert request.url == "https://ntfy.example/sub/"
    assert request.headers["Authorization"] == "Bearer tk_1"
    body = json.loads(request.body)
    assert (body["topic"], body["title"], body["priority"]) == ("my topic", "failed (oom): cfm-7kqz after 2.05 h", 4)
    assert "priority" not in sent(target, {"kind": "ended", "state": "finished"})


def test_slack_gets_text_whose_signs_it_does_not_interpret() -> None:
    body = sent(Target("s", url="https://hooks.slack.com/x", service="slack"), {**FAILED, "text": "<!channel> a & b"})
    assert body["text"].startswith("*failed (oom): cfm-7kqz after 2.05 h*\n&lt;!channel&gt; a &amp; b\n")


def test_feishu_gets_text_with_a_signature() -> None:
    body = sent(Target("f", url="https://open.feishu.cn/x", service="feishu", sign_secret="s3"), FAILED)
    assert body["msg_type"] == "text"
    assert body["content"]["text"].startswith("failed (oom)")
    expected = hmac.new(b"1700000000\ns3", b"", hashlib.sha256).digest()
    assert (body["timestamp"], base64.b64decode(body["sign"])) == ("1700000000", expected)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (b'{"code":0,"msg":"success"}', ""),
        (b'{"StatusCode":0}', ""),
        (b'{"code":19021,"msg":"sign match fail"}', "code 19021: sign match fail"),
        (b"<html>", "the answer is not of Feishu"),
        (b"[]", "the answer is not of Feishu"),
    ],
)
def test_feishu_refuses_with_status_200(answer: bytes, refusal: str) -> None:
    assert find_refusal(Target("f", service="feishu"), answer) == refusal
    assert find_refusal(Target("j", service="json"), answer) == ""


def test_a_program_gets_every_fact() -> None:
    body = sent(Target("j", url="https://box/hook"), FAILED)
    assert {name: body[name] for name in ("run_id", "owner", "host", "kind", "state", "exit_code", "seq")} == {
        "run_id": "cfm-7kqz",
        "owner": "alice",
        "host": "box1",
        "kind": "ended",
        "state": "failed",
        "exit_code": 1,
        "seq": 9,
    }
    assert body["failure"]["kind"] == "oom"


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("https://ntfy.sh/t", "ntfy"),
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://open.feishu.cn/open-apis/bot/v2/hook/x", "feishu"),
        ("https://open.larksuite.com/open-apis/bot/v2/hook/x", "feishu"),
        ("https://example.org/ntfy", "json"),
    ],
)
def test_the_service_is_known_by_its_host(url: str, service: str) -> None:
    assert guess_service(url) == service


def test_a_target_is_named_without_its_secret() -> None:
    assert name_target("https://user:pw@hooks.slack.com/services/T/B/key", ()) == "hooks.slack.com"
    assert name_target("", ["/usr/bin/notify-send", "x"]) == "notify-send"
    assert "key" not in repr(Target("s", url="https://hooks.slack.com/services/T/B/key", token="key"))


def test_what_a_target_wants() -> None:
    ends = Target("a", events=("ended",))
    failures = Target("b", events=("failed", "stalled"))
    assert [ends.accepts("ended", "finished"), ends.accepts("refused", "failed"), ends.accepts("stalled", "")] == [
        1,
        1,
        0,
    ]
    assert [
        failures.accepts("ended", "finished"),
        failures.accepts("ended", "failed"),
        failures.accepts("stalled", ""),
    ] == [*(False, True, True)]


def test_every_kind_that_can_be_named_is_an_event_or_an_end() -> None:
    assert set(EVENTS) - set(TRAITS) == {"finished", "failed", "killed", "timed_out", "lost"}


@pytest.mark.parametrize("command", ["", "  ", [], [""], "echo 'open"])
def test_a_command_without_words_is_refused(command: str | list[str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - two sources, one meaning
        split_command(command)
