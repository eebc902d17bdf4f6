"""Scalars in tables, as the loggers write them."""

import json
import math
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.formats.text_tables import iter_log_history
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from tests.support.scalar_files import START_S, csv_file, points, read

# --- CSV


def test_lightning_leaves_cells_empty_and_an_empty_cell_is_no_point(tmp_path: Path) -> None:
    csv_file(
        tmp_path,
        "epoch,step,train_loss,val_loss\n0,49,2.5,\n0,99,2.25,\n0,99,,2.0\n1,149,nan,\n1,199,1.5,\n1,199,,1.0\n",
    )
    run = read(tmp_path)
    assert points(run, "val_loss") == [(99, 2.0), (199, 1.0)]
    assert points(run, "epoch") == [(49, 0), (99, 0), (149, 1), (199, 1)]
    assert [step for step, _ in points(run, "train_loss")] == [49, 99, 149, 199]
    assert math.isnan(run.series["train_loss"].values[2])
    assert set(run.series) == {"epoch", "train_loss", "val_loss"}
    assert run.notes == ()
    assert all(math.isnan(wall) for wall in run.series["val_loss"].walls)


class StableBaselines3Csv:
    """Writes as stable_baselines3.common.logger.CSVOutputFormat does: a new key rewrites header and rows."""

    def __init__(self, path: Path) -> None:
        self.path, self.keys = path, list[str]()
        path.touch()

    def write(self, values: dict[str, float]) -> None:
        extra = sorted(values.keys() - self.keys)
        lines = self.path.read_text().splitlines(keepends=True)
        if extra:
            self.keys += extra
            padded = [line[:-1] + "," * len(extra) + "\n" for line in lines[1:]]
            lines = [",".join(self.keys) + "\n", *padded]
        row = ",".join(str(values.get(key, "")) for key in self.keys)
        with self.path.open("r+") as file:
            file.write("".join(lines) + row + "\n")


def test_stable_baselines_rewrites_its_file_when_a_column_appears(tmp_path: Path) -> None:
    logger, reader = StableBaselines3Csv(tmp_path / "progress.csv"), ScalarReader()
    (source,) = find_sources(tmp_path)
    assert reader.read(source).series == {}
    logger.write({"rollout/ep_rew_mean": 20.5, "time/total_timesteps": 2048})
    assert points(reader.read(source), "rollout/ep_rew_mean") == [(2048, 20.5)]
    logger.write({"rollout/ep_rew_mean": 21.5, "time/total_timesteps": 4096, "train/loss": 0.5})
    run = reader.read(source)
    assert points(run, "rollout/ep_rew_mean") == [(2048, 20.5), (4096, 21.5)]
    assert points(run, "train/loss") == [(4096, 0.5)]
    assert set(run.series) == {"rollout/ep_rew_mean", "train/loss"}
    assert run.series["train/loss"].restarts == ()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_keras_counts_epochs_and_may_use_another_separator(tmp_path: Path, separator: str) -> None:
    text = "epoch,accuracy,loss\n0,0.5,1.5\n1,0.75,0.5\n".replace(",", separator)
    run = read(csv_file(tmp_path, text, "training.log"))
    assert points(run, "loss") == [(0, 1.5), (1, 0.5)]
    assert set(run.series) == {"accuracy", "loss"}


def test_ultralytics_pads_its_columns_and_its_time_is_not_a_time_of_day(tmp_path: Path) -> None:
    run = read(
        csv_file(tmp_path, "  epoch,      time,  train/box_loss\n  1,  12.5,  0.875\n  2,  25,  0.75\n", "results.csv")
    )
    assert points(run, "train/box_loss") == [(1, 0.875), (2, 0.75)]
    assert points(run, "time") == [(1, 12.5), (2, 25.0)]


def test_a_csv_file_may_have_a_mark_crlf_quotes_text_and_booleans(tmp_path: Path) -> None:
    text = 'step,"loss, smoothed",note,done\r\n1,0.5,"a ""b"",\r\nc",True\r\n2,"0.25","x",False\r\n'
    run = read(csv_file(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert {tag: points(run, tag) for tag in run.series} == {"loss, smoothed": [(1, 0.5), (2, 0.25)]}


def test_a_row_inside_a_quoted_cell_waits_for_its_end(tmp_path: Path) -> None:
    path, reader = csv_file(tmp_path, 'step,loss,note\n1,0.5,"one\n'), ScalarReader()
    (source,) = find_sources(path)
    assert reader.read(source).series == {}
    with path.open("a") as file:
        file.write('2,9,9"\n2,0.25,x\n')
    assert points(reader.read(source), "loss") == [(1, 0.5), (2, 0.25)]


def test_a_stray_quote_costs_the_rows_around_it_and_no_others(tmp_path: Path) -> None:
    rows = [f"{n},0.5,{'x' * 100}\n" for n in range(30_000)]
    rows[50] = '50,0.5,"x\n'
    run = read(csv_file(tmp_path, "step,loss,note\n" + "".join(rows)))
    steps = run.series["loss"].steps
    assert len(steps) == 29_999
    assert steps[-1] == 29_999
    assert 50 not in steps
    assert run.notes == ("Rows over 1 MiB skipped: 1.",)


@pytest.mark.parametrize("spelling", ["inf", "Infinity", "-inf", "-Infinity", "nan", "NaN", "NAN"])
def test_what_is_not_finite_is_a_value_however_spelt(tmp_path: Path, spelling: str) -> None:
    table = read(csv_file(tmp_path, f"step,loss\n1,{spelling}\n2,\n"))
    lines = read(csv_file(tmp_path, f'{{"step": 1, "loss": "{spelling}"}}\n', "metrics.jsonl"))
    for run in (table, lines):
        assert str(run.series["loss"].values.tolist()) == str([float(spelling)])


def test_without_a_step_rows_are_counted(tmp_path: Path) -> None:
    run = read(csv_file(tmp_path, '#{"t_start": 1.0}\nr,l,t\n1.5,10,0.5\n2.5,20,0.75\n'))
    assert points(run, "r") == [(0, 1.5), (1, 2.5)]
    assert run.notes == ("Steps are row numbers.",)


def test_a_column_of_any_name_that_rises_by_one_counts_steps_also_under_a_second_header(tmp_path: Path) -> None:
    path = tmp_path / "kiln_log.csv"
    path.write_text("lap,warp\n1,2.8\n2,2.7\n3,2.6\nlap,warp\n4,2.5\n")
    assert find_sources(tmp_path) == [ScalarSource("csv", path)]
    run = read(path)
    assert set(run.series) == {"warp"}
    assert points(run, "warp") == [(1, 2.8), (2, 2.7), (3, 2.6), (4, 2.5)]


def test_a_header_in_a_comment_that_each_attempt_writes_again_begins_another_part(tmp_path: Path) -> None:
    path = tmp_path / "curve.dat"
    path.write_text("# it L_cls lr\n1 1.5 0.02\n2 1.25 0.02\n# it L_cls lr\n1 1.0 0.01\n2 0.5 0.01\n3 0.25 0.01\n")
    assert find_sources(tmp_path) == [ScalarSource("csv", path)]
    assert points(read(path), "L_cls") == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_a_batch_number_that_restarts_with_each_epoch_is_not_a_step(tmp_path: Path) -> None:
    rows = "".join(f"{epoch},{batch},{epoch + batch / 8}\n" for epoch in range(3) for batch in range(4))
    run = read(csv_file(tmp_path, "epoch,step,loss\n" + rows))
    assert run.series["loss"].steps.tolist() == list(range(12))
    assert run.series["loss"].restarts == ()
    assert run.notes == (
        "Steps are row numbers: 'epoch', 'step' cannot be one (rare, fractions, repeats, or restarts in each epoch).",
    )


def test_an_epoch_with_fractions_is_not_a_step_even_where_they_come_late(tmp_path: Path) -> None:
    path, reader = csv_file(tmp_path, "epoch,loss\n0,1\n1,2\n"), ScalarReader()
    (source,) = find_sources(path)
    assert points(reader.read(source), "loss") == [(0, 1), (1, 2)]
    with path.open("a") as file:
        file.write("1.5,3\n")
    run = reader.read(source)
    assert points(run, "loss") == [(0, 1), (1, 2), (2, 3)]
    assert points(run, "epoch") == [(0, 0), (1, 1), (2, 1.5)]


def test_a_stretch_of_steps_that_is_repeated_is_a_restart(tmp_path: Path) -> None:
    text = "step,loss\n10,1\n20,2\n30,3\n40,4\n50,5\n60,6\n40,7\n50,8\n"
    path, reader = csv_file(tmp_path, text), ScalarReader()
    (source,) = find_sources(path)
    both = [(10, 1), (20, 2), (30, 3), (40, 4), (40, 7), (50, 5), (50, 8), (60, 6)]
    assert points(reader.read(source), "loss") == both, "two points may be late ones"
    with path.open("a") as file:
        file.write("60,9\n")
    run = reader.read(source)
    assert points(run, "loss") == [(10, 1), (20, 2), (30, 3), (40, 7), (50, 8), (60, 9)]
    assert run.series["loss"].restarts == (40,)


def test_a_header_in_the_middle_begins_another_part_with_its_own_columns(tmp_path: Path) -> None:
    run = read(csv_file(tmp_path, "loss,lr\n1,0.5\n2,0.5\nloss,acc,lr\n5,0.125,0.25\n"))
    assert points(run, "loss") == [(0, 5)]
    assert points(run, "lr") == [(0, 0.25)]
    assert points(run, "acc") == [(0, 0.125)]
    assert run.series["loss"].restarts == (0,)


# --- JSON lines


def test_json_lines_are_flattened_and_have_a_time(tmp_path: Path) -> None:
    lines = [
        {"_step": 0, "_timestamp": START_S, "loss": 1, "eval": {"acc": {"top1": 0.5}}, "ok": True, "tags": [1, 2]},
        {"_step": 5, "_timestamp": START_S + 1, "loss": "0.25", "name": "x", "none": None},
    ]
    run = read(csv_file(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "log.jsonl"))
    assert {tag: points(run, tag) for tag in run.series} == {"loss": [(0, 1), (5, 0.25)], "eval/acc/top1": [(0, 0.5)]}
    assert run.series["loss"].walls.tolist() == [START_S, START_S + 1]


@pytest.mark.parametrize(
    ("key", "time"),
    [
        ("timestamp", START_S),
        ("time", START_S * 1e3),
        ("ts", START_S * 1e9),
        ("wall_time", "2023-11-14T22:13:20Z"),
        ("ts", "2023-11-14T23:13:20+01:00"),
        ("timestamp", datetime.fromtimestamp(START_S).isoformat(sep=" ")),
    ],
)
def test_a_time_is_a_number_of_any_unit_or_iso_8601(tmp_path: Path, key: str, time: object) -> None:
    run = read(csv_file(tmp_path, json.dumps({"step": 1, key: time, "loss": 2}) + "\n", "a.jsonl"))
    assert run.series["loss"].walls.tolist() == [START_S]
    assert set(run.series) == {"loss"}
    table = read(csv_file(tmp_path, f"step,{key},loss\n1,{time},2\n"))
    assert table.series["loss"].walls.tolist() == [START_S]
    assert set(table.series) == {"loss"}


@pytest.mark.parametrize(
    "key", ["step", "global_step", "iteration", "iter", "total_timesteps", "timesteps_total", "epoch", "_step", "Step"]
)
def test_the_step_goes_by_many_names(tmp_path: Path, key: str) -> None:
    run = read(csv_file(tmp_path, f'{{"{key}": 7, "loss": 1}}\n{{"{key}": 9, "loss": 2}}\n', "a.jsonl"))
    assert points(run, "loss") == [(7, 1), (9, 2)]
    assert set(run.series) == {"loss"}


def test_a_line_without_a_step_has_that_of_the_line_before(tmp_path: Path) -> None:
    text = '{"lr": 0.5}\n{"step": 10, "loss": 1}\n{"step": 20, "loss": 2}\n{"val_loss": 3, "epoch": 1}\n'
    run = read(csv_file(tmp_path, text, "a.jsonl"))
    assert points(run, "val_loss") == [(20, 3)]
    assert points(run, "lr") == [(10, 0.5)]
    assert points(run, "epoch") == [(20, 1)]


def test_one_summary_with_a_step_does_not_become_the_clock_of_all_lines(tmp_path: Path) -> None:
    text = "".join(f'{{"epoch": {n}, "loss": {n}}}\n' for n in range(20)) + '{"step": 9000, "final": 1}\n'
    assert points(read(csv_file(tmp_path, text, "a.jsonl")), "loss") == [(n, n) for n in range(20)]


def test_lines_that_are_not_objects_are_skipped_and_counted(tmp_path: Path) -> None:
    lines = [b'{"step": 1, "loss": 1}', b"[1]", b"{broken", b'{"step": 2, "loss": NaN}', b"\xff\xfe", b"", b"1" * 5000]
    lines += [b'{"step": 3, "x": "' + b"x" * 2**20 + b'"}', b"\0" * 5000 + b'{"step": 4, "loss": -Infinity}']
    lines += [b'{"a":' * 100_000, b'{"step": 1e400, "loss": 7, "big": 1' + b"0" * 400 + b"}", b""]
    run = read(csv_file(tmp_path, b"\n".join(lines), "a.jsonl"))
    assert run.series["loss"].steps.tolist() == [1, 2, 4, 4]
    assert run.series["loss"].values[2:].tolist() == [-math.inf, 7]
    assert set(run.series) == {"loss"}
    assert run.notes == ("Rows over 1 MiB skipped: 1.", "Damaged rows skipped: 5.")


# --- Hugging Face


def trainer_state(directory: Path, history: Sequence[dict[str, Any]]) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "trainer_state.json"
    path.write_text(
        json.dumps({"best_metric": None, "global_step": 20, "is_hyper_param_search": False, "log_history": history})
    )
    return path


def test_a_trainer_state_has_the_tags_of_the_tensorboard_callback(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 2.5, "step": 10},
        {"epoch": 0.5, "eval_loss": 2.25, "eval_runtime": 3.5, "step": 10},
        {"epoch": 1.0, "loss": math.nan, "step": 20},
        {"epoch": 1.0, "train_loss": 2.0, "train_runtime": 9.5, "step": 20},
    ]
    run = read(trainer_state(tmp_path, history))
    assert set(run.series) == {
        *("train/epoch", "train/grad_norm", "train/learning_rate", "train/loss"),
        *("eval/loss", "eval/runtime", "train/train_loss", "train/train_runtime"),
    }
    assert points(run, "eval/loss") == [(10, 2.25)]
    assert points(run, "train/epoch") == [(10, 0.5), (20, 1.0)]


def test_the_newest_trainer_state_counts_also_where_a_checkpoint_of_an_older_run_is_further(tmp_path: Path) -> None:
    old, new, top = (
        trainer_state(tmp_path / name, [{"step": 1, "loss": 1}]) for name in ("checkpoint-90", "checkpoint-10", "")
    )
    for age, path in enumerate([new, old, top]):
        os.utime(path, ns=(0, 10**18 - age))
    assert find_sources(tmp_path) == [ScalarSource("trainer_state", new)]
    top.unlink()
    (tmp_path / "checkpoint-final").mkdir()
    assert find_sources(tmp_path) == [ScalarSource("trainer_state", new)]


@pytest.mark.parametrize(
    "history",
    [
        *([], [{}], [1, -2.5e3, None, "a]b", [1, [2]], {"a": {"b": "}"}}]),
        [{"step": step, "note": "x" * (step * 37 % 9000)} for step in range(300)],
        [{"step": 1, "ü": "\\ud83d", "long": "x" * 300_000}, 123456789],
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_log_history_is_parsed_entry_by_entry_as_if_it_were_parsed_whole(
    history: list[Any], indent: int | None
) -> None:
    text = json.dumps({"best": '\\"log_history\\": [', "log_history": history, "max_steps": 5}, indent=indent)
    assert list(iter_log_history(text)) == history


def test_no_parse_of_a_trainer_state_takes_more_than_a_mebibyte_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser lets no other thread run."""
    decode, sizes = json.JSONDecoder.raw_decode, []

    def note_size(decoder: json.JSONDecoder, text: str) -> tuple[Any, int]:
        sizes.append(len(text))
        return decode(decoder, text)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", note_size)
    entries = iter_log_history('{"log_history": [' + "[]," * 10**6 + '{"a":"' + "x" * 2**21 + '"}]}')
    assert [next(entries) for _ in range(1000)] == [[]] * 1000
    assert max(sizes) <= 4096
    with pytest.raises(ValueError):  # noqa: PT011 - of Python's parser
        list(iter_log_history('{"log_history": [{"a":"' + "x" * 2**21 + '"}]}'))
    assert max(sizes) <= 2**20


def test_a_log_history_of_too_many_entries_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.scalars.formats.text_tables._MOST_ENTRIES", 1000)
    with pytest.raises(ScalarsUnreadable, match="more than 1,000 entries"):
        read(trainer_state(tmp_path, [{"step": 1}] * 1001))


@pytest.mark.parametrize("text", ["", '{"log_history": [{"st', "[]", "{}", "[" * 100_000])
def test_half_a_trainer_state_is_an_error_that_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScalarsUnreadable, match="not a trainer state, or is just being written"):
        read(csv_file(tmp_path, text, "trainer_state.json"))
