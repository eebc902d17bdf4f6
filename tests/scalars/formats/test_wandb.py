"""Scalars in the logs of wandb are read as they grow, and around damage."""

import math
import sys
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, SourceReader, find_sources
from mcp_server.scalars.series import ScalarsUnreadable
from tests.support.scalar_files import START_S, points, read


def test_wandb_runs_are_found_once_and_without_wandb_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "wandb" / "offline-run-20261121_213809-fpjajw8p"
    run.mkdir(parents=True)
    (run / "run-fpjajw8p.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    (tmp_path / "wandb" / "latest-run").symlink_to(run.name)
    expected = [ScalarSource("wandb", run / "run-fpjajw8p.wandb")]
    assert find_sources(tmp_path) == find_sources(tmp_path / "wandb") == find_sources(run) == expected
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    with pytest.raises(ScalarsUnreadable, match=r"pip install 'runward\[wandb\]'"):
        read(run)


def test_what_wandb_writes_is_read_as_it_grows_and_around_damage(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(mode="offline", silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
    with wandb.init(project="p", dir=tmp_path, settings=settings) as run:
        for n in range(600):
            run.log({"loss": n / 8, "eval": {"acc": math.nan if n == 5 else n}, "text": "x" * 300, "flag": True})
        run.log({"big": "x" * 100_000, "loss": -math.inf}, step=1_000)
    (source,) = find_sources(tmp_path)
    scalars = SourceReader().read(source)
    assert set(scalars.series) == {"loss", "eval/acc", "_runtime"}
    assert scalars.notes == ()
    assert points(scalars, "loss") == [*((n, n / 8) for n in range(600)), (1_000, -math.inf)]
    assert math.isnan(scalars.series["eval/acc"].values[5])
    assert scalars.series["loss"].walls[0] > START_S

    whole, part, reader = source.path.read_bytes(), ScalarSource("wandb", tmp_path / "part.wandb"), SourceReader()
    for end in (3, 7, 20, 40_000, 40_001, 100_000, len(whole) - 50_000, len(whole)):
        part.path.write_bytes(whole[:end])
        grown = reader.read(part)
    assert points(grown, "loss") == points(scalars, "loss")

    part.path.write_bytes(whole[:70_000] + b"\xff" * 500 + whole[70_500:])
    damaged = SourceReader().read(part)  # a reader that knew the file would not look there again
    assert damaged.notes == ("Damaged places skipped: 1.",)
    assert 400 < len(damaged.series["loss"].steps) < 600
    assert points(damaged, "loss")[-1] == (1_000, -math.inf)
