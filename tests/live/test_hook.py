"""`runward hook`, as clients start it, beside a live run."""

import json
from typing import Any

import pytest

from tests.support.sandbox import Sandbox, until

pytestmark = pytest.mark.anyio


def ask(sandbox: Sandbox, command: object, **more: object) -> dict[str, Any]:
    event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": command}, **more}
    told = sandbox.runward("hook", stdin=None, input=json.dumps(event))
    assert (told.returncode, told.stderr) == (0, "")
    return dict(json.loads(told.stdout)["hookSpecificOutput"]) if told.stdout else {}


async def test_a_stop_of_a_live_run_is_asked_about_and_refused_where_the_settings_say_so(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exec -a hooked_train_program sleep 600")
        stop, socket = "pkill -f hooked_train", sandbox.environ["RUNWARD_TMUX_SOCKET"]
        asked = until(lambda: "permissionDecision" in (told := ask(sandbox, stop)) and told)  # it has its name now
        assert (asked["permissionDecision"], f'kill_run("{run_id}")' in asked["permissionDecisionReason"]) == (
            "ask",
            True,
        )
        assert ask(sandbox, f"tmux -L {socket} kill-server")["permissionDecision"] == "ask"
        assert "permissionDecision" not in ask(sandbox, stop, turn_id="t1"), "Codex takes no question"
        assert "permissionDecision" not in ask(sandbox, "pkill -f another_train")
        (sandbox.path / "state" / "config.toml").write_text('hook = "block"\n')
        assert ask(sandbox, ["bash", "-lc", stop], turn_id="t1")["permissionDecision"] == "deny"
        assert list(ask(sandbox, "nohup python train.py &")) == ["hookEventName", "additionalContext"]
        (sandbox.path / "state" / "config.toml").write_text('hook = "off"\n')
        assert ask(sandbox, stop) == {}


def test_an_ordinary_command_gets_no_word_and_what_is_no_question_blocks_nothing(sandbox: Sandbox) -> None:
    assert ask(sandbox, "git commit -m 'python train.py &'") == {}
    assert "launch_run(" in ask(sandbox, "torchrun train.py")["additionalContext"]
    for text in ("", "{", "[]", '{"tool_input": {}}', '{"tool_input": {"command": 3}}'):
        told = sandbox.runward("hook", stdin=None, input=text)
        assert (told.returncode, told.stdout, "PreToolUse" in told.stderr) == (1, "", True), text
