"""Documents of many writers, read through a server by check_blueprint and a dry launch: every value is the true one."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.blueprint_truth import DATA, SETS, Verdict, build_world, judge_set, read_set
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Verdict]]]:
    root = tmp_path_factory.mktemp("documents")
    lab = build_world(root)
    sandbox = Sandbox(root, "documents")
    sandbox.environ["PATH"] = f"{lab}/envs/torch24/bin:{sandbox.environ['PATH']}"

    async def judge_all() -> dict[str, list[Verdict]]:
        async with sandbox.agent() as agent:
            return {name: await judge_set(name, agent, lab) for name in SETS}

    yield asyncio.run(judge_all())
    sandbox.close()


def test_no_document_is_read_wrongly(verdicts: dict[str, list[Verdict]]) -> None:
    wrong = [each for each in itertools.chain(*verdicts.values()) if each.verdict == "wrong"]
    assert not wrong


def test_every_document_that_a_person_can_read_is_read_and_every_other_is_refused_with_its_cause(
    verdicts: dict[str, list[Verdict]],
) -> None:
    refused = [each for each in itertools.chain(*verdicts.values()) if each.verdict == "refused"]
    assert not refused


def test_every_document_of_the_sets_is_judged(verdicts: dict[str, list[Verdict]]) -> None:
    files = {name: set(read_set(name)) | {path.name for path in Path(DATA / name).glob("*.md")} for name in SETS}
    assert {name: {each.name for each in set_verdicts} for name, set_verdicts in verdicts.items()} == files
    assert sum(map(len, files.values())) >= 800
