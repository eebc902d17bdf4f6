"""What every reader says of the commands that stand in the tests, kept as a snapshot."""

import json
import os
from pathlib import Path

import pytest

from tests.command.answers import answer

pytestmark = pytest.mark.slow

_SNAPSHOT = Path(__file__).parents[1] / "data" / "commands.jsonl"


def test_every_reader_answers_for_each_command_as_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")  # in answers that expand `~`
    before = [json.loads(line) for line in _SNAPSHOT.read_text().splitlines()]
    now = [{"command": each["command"], "answers": answer(each["command"])} for each in before]
    if os.environ.get("RUNWARD_UPDATE_SNAPSHOTS"):
        _SNAPSHOT.write_text("".join(f"{json.dumps(each)}\n" for each in now))
        before = now
    assert len(now) > 1700
    assert [(new, old) for new, old in zip(now, before, strict=True) if new != old][:3] == []
