"""Live runs: first steps, progress, stalls, errors and divergence are reported while the run goes on."""

import json
import re
import sys
from typing import Any

import pytest

from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

STEPS = """
import sys, time
for step in range(1, 4):
    print(f"epoch {step}/40 loss {1 / step:.4f}", flush=True)
"""
# Goes on when a file appears, so that nothing in these tests depends on how fast they run.
GO_ON = """
import os, time
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)
"""


def python(sandbox: Sandbox, code: str) -> list[str]:
    path = sandbox.path / "train.py"
    path.write_text(code)
    return [sys.executable, str(path)]


async def news(agent: Agent, run_id: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    answer = await agent.call("wait_run", run_ids=run_id, **{"timeout_s": 40, **arguments})
    return answer["reason"], answer["runs"][0]


async def test_the_first_step_is_an_event_and_later_steps_are_in_every_answer(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, GO_ON + STEPS + "until('go')"), cwd=str(sandbox.path))
        reason, status = await news(agent, run_id, until="first_step")
        assert reason == "first_step"
        assert [e["kind"] for e in status["events"]] == ["first_step"]
        await until_async(lambda: sandbox.run(run_id).progress.get("step") == 3, "progress on disk")
        now = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
        progress = sandbox.run(run_id).progress
        assert (now["step"], progress["total_steps"], progress["metrics"]["loss"]) == (3, 40, 0.3333)
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["step"] == 3


async def test_a_wait_for_the_first_step_ends_at_once_when_it_has_been_made(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, GO_ON + STEPS + "until('go')"), cwd=str(sandbox.path))
        assert (await news(agent, run_id, until="first_step"))[0] == "first_step"
        assert (await news(agent, run_id, until="first_step"))[0] == "first_step"
        (sandbox.path / "go").touch()


async def test_a_missing_first_step_is_reported_and_stops_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            python(sandbox, GO_ON + "print('loading', flush=True)\nuntil('go')"),
            cwd=str(sandbox.path),
            first_step_timeout_s=0.5,
        )
        reason, status = await news(agent, run_id)
        assert (reason, status["state"]) == ("first_step_timeout", "running")
        assert "'loading'" in status["events"][-1]["text"]
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"


async def test_only_the_first_step_pattern_decides(sandbox: Sandbox) -> None:
    code = (
        GO_ON + "print('epoch 1 loss 0.5', flush=True)\nuntil('go')\nprint('kl loss: 0.01', flush=True)\nuntil('end')"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            python(sandbox, code), cwd=str(sandbox.path), first_step_pattern=r"kl loss: ", first_step_timeout_s=0.5
        )
        assert (await news(agent, run_id))[0] == "first_step_timeout"
        (sandbox.path / "go").touch()
        assert (await news(agent, run_id))[0] == "first_step"
        (sandbox.path / "end").touch()


async def test_a_stall_and_its_end_are_reported_with_evidence(sandbox: Sandbox) -> None:
    code = GO_ON + STEPS + "until('go')\nprint('epoch 4/40 loss 0.2', flush=True)\nuntil('end')"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path), stall_timeout_s=1)
        assert (await news(agent, run_id, until="first_step"))[0] == "first_step"
        reason, status = await news(agent, run_id)
        assert (reason, status["state"]) == ("stalled", "stalled")
        stalled = sandbox.run(run_id).events[-1]
        told = status["events"][-1]["text"]
        assert re.search(r"It waits: \w+.*\. Processor time used in the last \d+ s: 0\.\d s\.", told), told
        assert "epoch 3/40" in stalled["text"]
        assert stalled["cpu_used_s"] < 0.5
        assert re.search(r"It waits: \w+.*\. Processor time used in the last \d+ s: 0\.\d s\.", stalled["text"])
        assert any("python" in name for name in stalled["waits_in"])
        beats = [(await news(agent, run_id, timeout_s=0))[1].get("events", ()) for _ in range(2)]
        marks = [[event.get("again") for event in events] for events in beats]
        assert marks == [[True], []], "over stdio trouble is told once more, as such"
        assert "again" not in status["events"][-1]
        (sandbox.path / "go").touch()
        await until_async(lambda: sandbox.run(run_id).state == "running", "the end of the stall")
        assert sandbox.run(run_id).events[-1]["kind"] == "resumed"
        (sandbox.path / "end").touch()


async def test_a_hang_in_the_second_round_is_reported_with_its_round(sandbox: Sandbox) -> None:
    code = f"""{GO_ON}
for seed in (1, 2):
    print(f"seed {{seed}}", flush=True)
    for epoch in range(1, 13 if seed == 1 else 9):
        print(f"epoch {{epoch}}/12 loss {{1 / epoch:.4f}}", flush=True)
until('go')
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path), stall_timeout_s=1)
        await until_async(lambda: sandbox.run(run_id).state == "stalled", "the stall")
        status = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
        assert (status["state"], status["round"], status["step"]) == ("stalled", 2, 8)
        assert "after round 2, step 8 of 12" in sandbox.run(run_id).events[-1]["text"]
        (sandbox.path / "go").touch()
        end = await agent.end(run_id)
    assert (end["state"], end["round"], end["step"]) == ("finished", 2, 8)


@pytest.mark.slow
async def test_an_error_of_a_process_that_does_not_end_is_reported(sandbox: Sandbox) -> None:
    code = f"""{GO_ON}
import traceback
for step in range(1, 5):
    print(f"node3 | step {{step}} loss 0.5", flush=True)
    time.sleep(1.2)  # fewer, faster steps would be no pace
try: {{}}['missing']
except KeyError: print("".join(f"node3 | {{line}}\\n" for line in traceback.format_exc().splitlines()), flush=True)
until('end')
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path))
        assert (await news(agent, run_id, until="first_step"))[0] == "first_step"
        reason, status = await news(agent, run_id)
        assert (reason, status["state"]) == ("error_seen", "running")
        assert status["failure"]["kind"] == "python_error"
        assert status["failure"]["line"] == "KeyError: 'missing'"
        (sandbox.path / "end").touch()
        end = await agent.end(run_id)
        assert (end["state"], "failure" in end) == ("finished", False)


async def test_an_error_followed_by_steps_is_not_reported(sandbox: Sandbox) -> None:
    code = f"""{GO_ON}
import traceback
for step in range(1, 60):
    print(f"step {{step}} loss {{1 / step:.4f}}", flush=True)
    if step == 5:
        try: {{}}['missing']
        except KeyError: traceback.print_exc()
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path))
        end = await agent.end(run_id)
    assert end["state"] == "finished"
    assert "error_seen" not in [e["kind"] for e in sandbox.run(run_id).events]
    assert "failure" not in end


async def test_divergence_is_reported_while_the_run_goes_on_and_at_its_end(sandbox: Sandbox) -> None:
    code = (
        GO_ON
        + "for s in range(1, 40): print(f'step {s} loss {0.5 if s < 9 else float(\"nan\")}', flush=True)\nuntil('end')"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path))
        reason, status = await news(agent, run_id, until="event")
        assert reason in ("first_step", "error_seen")
        if reason == "first_step" and "failure" not in status:
            reason, status = await news(agent, run_id)
        assert status["failure"]["kind"] == "divergence"
        assert "nan" in status["failure"]["line"]
        (sandbox.path / "end").touch()
        end = await agent.end(run_id)
    assert (end["state"], end["exit_code"], end["failure"]["kind"]) == ("finished", 0, "divergence")
    assert end["failure"]["line_number"] == 9
    assert end["failure"]["context"] == ["loss has been nan in 31 readings in a row, since step 9, line 9."]


HEALTHY = """
import sys, warnings
for step in range(1, 121):
    print(f"step {step} loss {(2.0 if step < 60 else 900.0) / step:.4f}", flush=True)  # stage 2 has another scale
    print(f"  aux_loss: nan", flush=True)
    if step % 3 == 0:
        print("WARNING: loss is nan, skipping batch", flush=True)
        print("train.py:7: UserWarning: loss: nan\\n  warnings.warn(f'loss: nan at {step}')", flush=True)
"""


async def test_a_policy_never_stops_a_healthy_training_that_speaks_of_nan(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, HEALTHY), cwd=str(sandbox.path), recovery="default")
        end = await agent.end(run_id)
    assert (end["state"], end["step"], "failure" in end) == ("finished", 120, False)
    assert [e["kind"] for e in sandbox.run(run_id).events] == ["started", "first_step", "ended"]


async def test_a_policy_stops_a_divergence_with_its_second_sign(sandbox: Sandbox) -> None:
    code = f"""{GO_ON}
def train(steps, rest):
    for step in steps:
        print(f"step {{step}} loss nan {{rest}}", flush=True)
print("step 1 loss 2.0 grad_norm 1.0", flush=True)
train(range(2, 12), "grad_norm 1.0")
until("second sign")
train(range(12, 22), "grad_norm nan")
until("never")
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path), recovery="default")
        kinds = ["started", "first_step", "error_seen"]
        await until_async(lambda: [e["kind"] for e in sandbox.run(run_id).events] == kinds, "the report")
        (sandbox.path / "second sign").touch()
        end = await agent.end(run_id)
    assert (end["state"], end["failure"]["kind"]) == ("killed", "divergence")
    stopping = next(e["text"] for e in sandbox.run(run_id).events if e["kind"] == "stopping")
    assert "loss has been nan in 20 readings in a row, since step 2. The gradient norm has been nan in" in stopping


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "{python} fail.py || true",
            "An exception was printed at line 9, although the exit code is 0: ValueError: bad",
        ),
        ("{python} fail.py; {python} go_on.py", "An exception was printed at line 9, although"),
        ("{python} go_on.py", ""),
    ],
)
async def test_an_exit_code_of_0_that_hides_a_failure_is_noted(sandbox: Sandbox, command: str, words: str) -> None:
    (sandbox.path / "fail.py").write_text(
        "for s in range(1, 6): print(f'step {s}/20 loss 0.{s}', flush=True)\nraise ValueError('bad')\n"
    )
    (sandbox.path / "go_on.py").write_text("for s in range(1, 21): print(f'step {s}/20 loss 0.{s}', flush=True)\n")
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command.format(python=sys.executable), cwd=str(sandbox.path))
        end = await agent.end(run_id)
        status = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
    assert (end["state"], end["exit_code"], "failure" in end) == ("finished", 0, False)
    assert words in status.get("note", "")
    assert bool(words) == ("note" in status) == ("exception_printed" in [e["kind"] for e in sandbox.run(run_id).events])


async def test_a_failure_is_reported_with_the_line_that_proves_it(sandbox: Sandbox) -> None:
    code = "print('start', flush=True)\nraise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path))
        end = await agent.end(run_id)
    failure = end["failure"]
    assert (end["state"], failure["kind"], failure["retryable"]) == ("failed", "oom_gpu", True)
    assert failure["line"] == "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    # Python 3.13 colours it.
    line = re.sub(r"\x1b\[[\d;]*m", "", sandbox.log(run_id).splitlines()[failure["line_number"] - 1])
    assert line == failure["line"]
    assert failure["advice"]


async def test_a_run_that_a_person_stops_has_no_failure(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, GO_ON + STEPS + "until('never')"), cwd=str(sandbox.path))
        assert (await news(agent, run_id, until="first_step"))[0] == "first_step"
        await agent.kill(run_id)
        end = await agent.end(run_id)
    assert (end["state"], "failure" in end) == ("killed", False)


@pytest.mark.slow
async def test_a_pattern_that_never_ends_stops_the_monitoring_and_not_the_run(sandbox: Sandbox) -> None:
    code = "import time\nprint('a' * 3000 + '!', flush=True)\nprint('after', flush=True)\ntime.sleep(600)"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            python(sandbox, code), cwd=str(sandbox.path), first_step_pattern="(a|aa)+$", time_limit_s=4
        )
        end = await agent.end(run_id)
    assert end["state"] == "timed_out"
    assert "observer_error" in [e["kind"] for e in sandbox.run(run_id).events]
    assert "after" in sandbox.log(run_id)


async def test_a_stack_shows_no_secret(sandbox: Sandbox) -> None:
    tools = sandbox.path / "bin"
    tools.mkdir()
    spy = tools / "py-spy"
    spy.write_text("#!/bin/sh\necho python train.py --key $WANDB_API_KEY_COPY; echo main train.py:3\n")
    spy.chmod(0o755)
    secret = "wandb-0123456789abcdef"
    spy.write_text(f"#!/bin/sh\necho python train.py --key {secret}; echo main train.py:3\n")
    path = f"{tools}:{sandbox.environ['PATH']}"
    async with sandbox.agent(PATH=path, WANDB_API_KEY=secret) as agent:
        run_id = await agent.launch(
            python(sandbox, GO_ON + "print('step 1 loss 0.5', flush=True)\nuntil('go')"),
            cwd=str(sandbox.path),
            secrets=["WANDB_API_KEY"],
            stall_timeout_s=1,
        )
        await until_async(lambda: sandbox.run(run_id).state == "stalled", "the stall")
        (sandbox.path / "go").touch()
    stalled = next(e for e in sandbox.run(run_id).events if e["kind"] == "stalled")
    assert "main train.py:3" in stalled["stack"]
    assert secret not in sandbox.rundir(run_id).events.read_text()


BARS = """
import sys, time
def draw(at):
    full, rest = "█" * at, " " * (30 - at)
    bars = [f"Epoch {n}: {at * 3}%|{full}▌{rest}| {at}/30 [00:0{n}<00:41, 1.2{n}it/s, loss=0.23]" for n in range(5)]
    bars += [f"{at}/30 {'━' * at}╸{'━' * (29 - at)} 0:00:0{n} 4{n}ms/step - loss: 0.3{n}" for n in range(3)]
    bars += [f"{at}/30 [{'=' * at}>{'.' * (29 - at)}] - ETA: {n}s - loss: 0.4{n}" for n in range(2)]
    sys.stderr.write("".join(f"\\r{bar}" for bar in bars) if at % 2 else "\\n".join(bars))
for at in range(1, 31):
    draw(at)
sys.stderr.write("\\r" + "  7%|██▏       | 7/99 [00:01<00:13,  6.9it/s]")
raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x512 and 768x768)" + " of a long message" * 30)
"""


async def test_the_answer_about_a_failure_amid_ten_bars_has_300_tokens(sandbox: Sandbox) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    async with sandbox.agent_in_process() as agent:
        facts = {"name": "qwen2-7b-sft-lr2e-4", "params": {"lr": 1e-4, "num_envs": 64}}
        run_id = await agent.launch(python(sandbox, BARS), cwd=str(sandbox.path), **facts)
        answer = await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=60)
    failure = answer["runs"][0]["failure"]
    assert (failure["kind"], failure["line"][:40]) == ("python_error", "RuntimeError: mat1 and mat2 shapes canno")
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    assert not set("█▌━╸") & set(text)
    assert openai.o200k_base().count(text) <= 300, text


async def test_a_reward_that_stays_nan_is_reported_and_noted_and_stops_nothing(sandbox: Sandbox) -> None:
    code = f"""{GO_ON}
for step in range(1, 361):
    print(f"step {{step}} loss 0.5 reward: {{1.5 if step < 8 else float('nan')}}", flush=True)
until("end")
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, code), cwd=str(sandbox.path), recovery="default")
        kinds = ["started", "first_step", "error_seen"]
        await until_async(lambda: [e["kind"] for e in sandbox.run(run_id).events] == kinds, "the report")
        seen = sandbox.run(run_id).events[-1]
        (sandbox.path / "end").touch()
        end = await agent.end(run_id)
    assert re.match(r"reward has been nan in \d+ readings in a row, since step 8\. By itself it proves", seen["text"])
    assert "reward: nan" in seen["failure"]["line"]
    assert (end["state"], "failure" in end, end["note"]) == ("finished", False, "reward ended as nan since step 8.")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[main] Unable to locate checkpoint runs/exp7/last.ckpt, exiting", "data_error"),
        ("Invalid loss, terminating training", "divergence"),
    ],
)
async def test_a_program_that_gives_up_with_code_0_says_why(sandbox: Sandbox, line: str, kind: str) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(python(sandbox, f"print('seed 1')\nprint({line!r})\n"), cwd=str(sandbox.path))
        end = await agent.end(run_id)
        assert end["exit_code"] == 0
        assert (end["failure"]["kind"], end["failure"]["line"]) == (kind, line)
