"""Guards of an open sweep on real git repositories: tampering, repeats, code as proposed, files of people, time."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from pathlib import Path

import anyio.to_thread

from mcp_server.record.code.protected_files import changed, digest
from mcp_server.sweeps.trials.proposals import capture, checkout, move_tip, read_base, remove_checkout, save_ref, tip
from mcp_server.sweeps.trials.protection import check_protect, violations
from tests.benchmarks.harness import Sandbox
from tests.benchmarks.report import Row, Table, measured
from tests.support.repository import git, make_repository, picture
from tests.support.tampering import AT_RUN_TIME, KINDS, PROTECT

LONGEST_S = 400.0
_EACH, _CLEAN, _TRIALS, _PAIRS, _FILES, _TIMED = 10, 200, 100, 50, 5_000, 20
_IGNORED_BYTES = 30 << 20


async def measure(sandbox: Sandbox) -> Table:
    """Tamper, propose, and compare."""
    return await anyio.to_thread.run_sync(_measure, sandbox.work)


def _measure(work: Path) -> Table:
    found, clean = _tamper(work / "tamper"), _stay_clean(work / "clean")
    same, elsewhere = _repeat(work / "repeat")
    ran, kept, trees, grown = _run_all(work / "person")
    times = _time(work / "large")
    rows = (
        _count(f"tampering found, {len(KINDS)} kinds", found, len(KINDS) * _EACH),
        _count("clean proposals and runs that were let pass", clean, _CLEAN),
        _count("the same files have the same tree", same, _PAIRS),
        _count("the same change on another base has the same patch id", elsewhere, _PAIRS),
        _count("the code that ran is the code that was proposed, edited meanwhile", ran, _TRIALS),
        Row("a person's index, stash, hooks and files are as before", "yes" if kept else "no", bar="yes", ok=kept),
        Row("worktrees left", str(trees), bar="0", ok=trees == 0),
        measured(
            f"growth of a repository by {_TRIALS} trials, beside 30 MiB of ignored files",
            grown / 2**20,
            "MiB",
            at_most=1,
        ),
        measured(f"a proposal of {_FILES:,} files, median", 1e3 * statistics.median(times), "ms", at_most=150),
        measured(f"the same, longest of {_TIMED}", 1e3 * max(times), "ms"),
    )
    return Table("Guards of an open sweep", rows)


def _count(what: str, found: int, of: int) -> Row:
    return Row(what, f"{found} of {of}", bar=f"{of}", ok=found == of)


def _tamper(work: Path) -> int:
    found = 0
    for number in range(_EACH):
        for kind, (name, change) in enumerate(KINDS.values()):
            place = work / f"{number}-{kind}"
            project = make_repository(place / "project")
            home = place / "home"
            os.environ["HOME"] = str(home)
            for path in (project / "data/train.bin", home / "cache/tokens"):
                path.parent.mkdir(parents=True)
                path.write_text("1 2 3\n")
            base = read_base(project)
            protect = check_protect(project, base, [*PROTECT, "~/cache"])
            if (name, change) not in AT_RUN_TIME:
                change(project / name)
                made = capture(project, base, worktree=project, text="x")
                found += name in violations(made.files, protect, repository=project, base=base)
                continue
            there = checkout(project, base, place / "t1.0", links=protect)
            before = digest(project, base, protect, there)
            target = Path(name).expanduser() if name.startswith("~") else (project if ".git/" in name else there) / name
            change(target)
            found += changed(before, digest(project, base, protect, there)) == [name]
        shutil.rmtree(work)
    return found


def _stay_clean(work: Path) -> int:
    """Edit, add and remove files that are not protected; let a run write what runs write."""
    project, passed, chance = make_repository(work), 0, random.Random(1)
    base = read_base(project)
    protect = check_protect(project, base, ["prepare.py", "eval/"])
    for number in range(_CLEAN):
        name = chance.choice(
            ["train.py", "model.py", "lib/layers.py", "notes.md", f"optimizer_{number}.py", "config.yaml"]
        )
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"x = {number}\n")
        made = capture(project, base, worktree=project, text="x")
        there = checkout(project, made.commit, work.parent / "cell", links=protect)
        before = digest(project, base, protect, there)
        (there / "eval/__pycache__").mkdir()
        (there / "eval/__pycache__/score.cpython-311.pyc").write_text("x")
        (there / "weights.pt").write_bytes(b"0" * number)
        is_same = not changed(before, digest(project, base, protect, there))
        passed += is_same and not violations(made.files, protect, repository=project, base=base)
    return passed


def _repeat(work: Path) -> tuple[int, int]:
    lines = [f"value_{number} = {number}" for number in range(200)]
    project, same, elsewhere = make_repository(work, {"train.py": "\n".join(lines) + "\n"}), 0, 0
    base, chance = read_base(project), random.Random(2)
    for number in range(_PAIRS):
        at, other = chance.sample(range(200), 2)
        mine = [*lines[:at], f"value_{at} = {1000 + number}", *lines[at + 1 :]]
        theirs = [*lines[:other], f"value_{other} = -1", *lines[other + 1 :]]
        both = [*mine[:other], theirs[other], *mine[other + 1 :]]

        def propose(text: list[str], on: str) -> tuple[str, str, str]:
            (project / "train.py").write_text("\n".join(text) + "\n")
            made = capture(project, on, worktree=project, text="x")
            return made.commit, made.tree, made.patch_id

        _, tree, patch_id = propose(mine, base)
        same += propose(mine, base)[1] == tree
        elsewhere += propose(both, propose(theirs, base)[0])[2] == patch_id
    return same, elsewhere


def _run_all(work: Path) -> tuple[int, bool, int, int]:
    """Make and run trials while a person's tree is edited; return what was right, and by how many bytes git grew."""
    project, ran = make_repository(work), 0
    (project / "data").mkdir()
    (project / "data/checkpoint").write_bytes(os.urandom(_IGNORED_BYTES))
    (project / "train.py").write_text("stashed\n")
    git(project, "stash")
    (project / "prepare.py").write_text("staged\n")
    git(project, "add", "prepare.py")
    (project / ".git/hooks/post-checkout").write_text("#!/bin/sh\ntouch hooked\n")
    (project / ".git/hooks/post-checkout").chmod(0o755)
    text, base = (project / "train.py").read_text(), read_base(project)
    agent = work.parent / "agent"
    git(project, "worktree", "add", "-q", "--detach", str(agent))
    before, size = picture(project), _size(project / ".git")
    former = None
    for number in range(_TRIALS):
        proposed = f"lr = {number}\n{text}"
        (agent / "train.py").write_text(proposed)
        made = capture(project, base, worktree=agent, text=f"lr {number}")
        (agent / "train.py").write_text("edited meanwhile\n")
        save_ref(project, "ar", f"t{number}", made.commit)
        there = checkout(project, made.commit, work.parent / f"cells/t{number}.0")
        ran += (there / "train.py").read_text() == proposed
        remove_checkout(project, work.parent / f"cells/t{number}.0")
        if number % 10 == 0:
            ran -= not move_tip(project, "ar", made.commit, former)
            former = tip(project, "ar")
    git(project, "worktree", "remove", "--force", str(agent))
    trees = len(git(project, "worktree", "list").splitlines()) - 1
    return ran, picture(project) == before, trees, _size(project / ".git") - size


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _time(work: Path) -> list[float]:
    files = {f"src/d{number % 50}/f{number}.py": f"import os\nx = {number}\n" * 20 for number in range(_FILES)}
    project = make_repository(work, {"prepare.py": "import numpy\n", "train.py": "lr = 1\n", **files})
    base, times = read_base(project), []
    for number in range(_TIMED):
        (project / "train.py").write_text(f"lr = {number}\n")
        (project / f"layer_{number}.py").write_text("")
        begun_s = time.perf_counter()
        made = capture(project, base, worktree=project, text="x")
        violations(made.files, ["prepare.py"], repository=project, base=base)
        save_ref(project, "ar", f"t{number}", made.commit)
        times.append(time.perf_counter() - begun_s)
    return times
