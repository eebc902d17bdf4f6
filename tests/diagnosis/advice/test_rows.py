"""Each block of `diagnosis/advice/*.rows` wins on the lines in which its failure was seen."""

from __future__ import annotations

import re

import pytest

from mcp_server.diagnosis.advice import FILES, blocks, names
from mcp_server.diagnosis.advice.blocks import ADVICE_CHARS, Advice, NextStep, Scene
from mcp_server.diagnosis.advice.next_action import propose_for_case, propose_next_step, read_files
from mcp_server.diagnosis.failure.diagnose import Diagnosis, RunFacts, diagnose
from mcp_server.diagnosis.failure.kinds import ACTIONS, KINDS
from mcp_server.diagnosis.failure.statements import match_error_kind
from mcp_server.text.lines import number_lines
from mcp_server.text.rows import Block, read_blocks
from tests.diagnosis.advice.test_blocks import assert_advice_agrees

BLOCKS = read_files()
_KEYS = {"kinds", "kind", "line", "text", "near", "log", "not", "do", "say", "then", "seen"}


def diagnose_seen(block: Advice) -> list[Diagnosis | None]:
    """Return the diagnoses of a log of the lines seen; a divergence is seen in metrics too, said in a sentence."""
    lines = block.seen.split("\n")
    failures = [diagnose(number_lines(block.seen.encode()), 1)]
    if "divergence" in block.kinds:
        facts = RunFacts(diverged=lines[-1], diverged_since=("" if len(lines) == 1 else lines[0], ""))
        failures.append(diagnose(number_lines(lines[-1].encode()), run_facts=facts))
    return failures


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Advice, NextStep]]:
    """Return the list of what blocks propose from now on."""
    steps: list[tuple[Advice, NextStep]] = []
    propose = Advice.propose

    def note(block: Advice, scene: Scene) -> NextStep | None:
        step = propose(block, scene)
        if step is not None:
            steps.append((block, step))
        return step

    monkeypatch.setattr(Advice, "propose", note)
    return steps


def test_each_block_wins_on_the_lines_in_which_it_was_seen(proposed: list[tuple[Advice, NextStep]]) -> None:
    others = []
    for block in BLOCKS:
        proposed.clear()
        advice = [failure.advice for failure in diagnose_seen(block) if failure]
        if not any(one == block and step.advice in advice for one, step in proposed):
            others.append((block.say, advice))
    assert others == []


def test_no_two_blocks_are_alike_and_none_is_without_a_sample() -> None:
    assert len(set(BLOCKS)) == len(BLOCKS) <= 500
    assert [block.say for block in BLOCKS if not block.seen] == []


def test_every_advice_seen_agrees_with_its_action() -> None:
    for block in BLOCKS:
        for failure in diagnose_seen(block):
            if failure:
                assert_advice_agrees(failure)


def test_every_block_can_be_read_and_no_line_ends_in_a_space() -> None:
    for block in BLOCKS:
        for pattern in (block.line, block.text, block.near, block.log, block.unless):
            re.compile(pattern)
            assert pattern == pattern.strip()
        assert set(block.kinds) <= set(KINDS)
        assert block.action in ACTIONS
        assert block.then in {"", "launch_run again"}
        assert block.then or block.say.endswith("."), block.say


def test_every_key_of_a_block_is_known() -> None:
    for name in (*FILES, "kinds"):
        assert {key for block in read_blocks(f"diagnosis/advice/{name}") for key, _ in block} <= _KEYS


def test_a_block_that_names_its_kind_proves_it_and_no_other_table_holds_its_line() -> None:
    proving = [
        dict(block) for name in FILES for block in read_blocks(f"diagnosis/advice/{name}") if block[0][0] == "kind"
    ]
    assert len(proving) > 20
    for fields in proving:
        lines = [value for value in fields["seen"].split("\n") if re.search(fields["line"], value)]
        assert {match_error_kind(line) for line in lines} == {fields["kind"]}, fields
    messages = {fields["text"] for fields in map(dict, read_blocks("diagnosis/failure/failures")) if "text" in fields}
    assert {fields["line"] for fields in proving}.isdisjoint(messages)


def test_what_needs_no_line_has_an_advice() -> None:
    for case in ("no_first_step", "not_found", "not_executable", "imbalance", "unseen_end", "lost_session"):
        assert 0 < len(propose_for_case(case).advice) <= ADVICE_CHARS


def list_renames() -> list[Block]:
    return list(read_blocks("diagnosis/advice/renames"))


def test_each_rename_wins_on_the_line_in_which_it_was_seen() -> None:
    for block in list_renames():
        fields = dict(block)
        line = fields["seen"]
        kind = "import_error" if re.match("(?:ModuleNotFound|Import)Error", line) else "python_error"
        scene = Scene(kind, line, message=line)
        step = names.name_today(scene)
        assert step is not None, line
        assert fields["use"] in step.advice
        assert propose_next_step(scene).advice == step.advice


def test_each_condition_holds_where_it_was_seen_and_nowhere_else_without_need() -> None:
    for block in read_blocks("diagnosis/advice/parts"):
        if block[0][0] == "shown":
            fields = dict(block)
            assert blocks.is_shown(fields["shown"], fields["seen"]), fields
            assert not blocks.is_shown(fields["shown"], "step 1 loss 0.5\n")


def test_a_part_is_worded_for_what_the_log_shows() -> None:
    say = "The shared memory is full: {shm}"
    assert blocks.word_parts(say, "") == (
        "The shared memory is full: enlarge /dev/shm (docker --shm-size=16g or --ipc=host), or lower num_workers"
    )
    pod = (
        "The shared memory is full: mount an emptyDir with medium: Memory at /dev/shm of the pod, or lower num_workers"
    )
    assert blocks.word_parts(say, "Pod: train-0") == pod
    assert blocks.word_parts(say, "Pod: train-0\nSLURM_JOB_ID=7") == pod
    assert blocks.word_parts("{0} and {gpu_indices} stay", "") == "{0} and {gpu_indices} stay"
