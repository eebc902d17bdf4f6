"""The script for a machine with a card, with the fake driver: what it judges, and what it says it cannot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BARE = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler makes the fake driver")
def test_checks_pass_with_the_fake_driver_and_those_that_need_cuda_say_why_not(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.device", "--fake", "--out", str(tmp_path)]
    words += ["--only", "fields,limits,stranger,owner,kill,nccl"]
    done = subprocess.run(words, cwd=ROOT, env=BARE, capture_output=True, text=True, timeout=300, check=False)
    told = json.loads((tmp_path / "device.json").read_text())
    outcomes = {each["check"]: (each["state"], each["why"]) for each in told["checks"]}
    reason = outcomes.pop("nccl")
    assert outcomes == dict.fromkeys(("fields", "limits", "stranger", "owner", "kill"), ("passed", "")), done.stderr
    assert reason == ("skipped", "it needs real CUDA: PyTorch and a card; the driver is a fake.")
    assert done.returncode == 0
    assert "no figure here is a card's" in (tmp_path / "report.md").read_text()


def test_an_unknown_check_is_refused_with_the_names_of_all(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.device.session", str(tmp_path), str(tmp_path), "nothing"]
    done = subprocess.run(words, cwd=ROOT, env=BARE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("No check is named nothing. There are fields, time,")
    assert not list(tmp_path.iterdir())
