"""Counts that no name tells: lines of one shape whose number rises by the same."""

import pytest

from mcp_server.diagnosis.progress.tracker import ProgressTracker
from tests.support.rows import for_each


def read(template: str, numbers: list[int], *, every_s: float = 1.0) -> ProgressTracker:
    progress = ProgressTracker()
    for at, n in enumerate(numbers):
        for line in template.format(n=n, x=2 + 1 / (at + 1), clock=f"10:{at:02d}:{at:02d}").splitlines():
            progress.read_lines([line], 1 + at * every_s)
    return progress


UP, TENS = [*range(1, 13)], [*range(100, 1300, 100)]


@for_each(
    [
        ("[{n:,}] ROCAUC: {x:.2f}%", TENS, (1200, None), {"rocauc": 2.08}),
        ("{n}: {x:f}, {x:f} avg loss, 0.001000 rate, 1.12 seconds, 64 images", UP, (12, None), {"loss": 2.083333}),
        ("{n:3d}  412.12 ms run,   12.10 ms python,    {x:.2f} loss, 0.002000 LR", UP, (12, None), {"loss": 2.08}),
        ("{n:4d} train loss:  {x:.5f} test acc: 81.50%", UP, (12, None), {"loss": 2.08333}),
        ("{n:7d}/ 200000: {x:.4f}", TENS, (1200, 200000), {}),
        (
            "lib: 2026-03-01 {clock},123 [INFO] Iter={n}, size=256, max={x:.4f}, std=1.2",
            TENS,
            (1200, None),
            {"max": 2.0833},
        ),
        ("[log: 11-28 {clock}] {{3006}} INFO - iteration {n}, current learner lgbm", UP, (12, None), {}),
        ("{clock} | [trpo] epoch #{n} | Optimizing policy...\n{clock} | [trpo] epoch #{n} | Saved", UP, (12, None), {}),
        ("batch {n:7d}: trn: rmse = {x:.2e}, rmse_e = 1.00e-01, lr = 1.00e-03", TENS, (1200, None), {"loss": 2.08}),
        ("Progress: {n:5.1f}% words/sec/thread: 81234 lr: 0.05 avg.loss: {x:.4f}", UP, (12, 100), {"loss": 2.0833}),
        ("t={n:04d}  E={x:.6f} +/- 0.0012  var=0.41", TENS, (1200, None), {"e": 2.083333}),
        ("After sweep {n} energy={x:.6f} maxlinkdim=10 time=0.412", UP, (12, None), {"energy": 2.083333}),
        ("[INFO] Finished {n} trials.\n[INFO] new incumbent. cost={x:.4f}", UP, (12, None), {"loss": 2.0833}),
        ("Training: {n}% complete", UP, (12, 100), {}),
        ("Losses {{'ner': {x:.4f}, 'tagger': 0.1}}", UP, (None, None), {"ner loss": 2.0833}),
        ("Steps executed: {n} Episode length: 200 Return: {x:.4f}", TENS, (1200, None), {"reward": 2.0833}),
        ("At iterate {n:5d}    f=  {x:.5f}D+00    |proj g|=  {x:.5f}D-01", UP, (12, None), {"f": 2.08333}),
        ("epoch 1 | iteration {n} | err {x:.6f}", TENS, (1200, None), {"err": 2.083333}),
        ("Progress: {n} / 1200 total iterations (10.1%)", TENS, (1200, 1200), {}),
    ]
)
def test_a_number_that_rises_evenly_beside_another_is_the_step(
    row: tuple[str, list[int], tuple[int | None, int | None], dict[str, float]],
) -> None:
    template, numbers, place, metrics = row
    progress = read(template, numbers)
    assert progress.first_step_seen
    assert (progress.step, progress.total_steps) == place
    assert {name: progress.metrics.get(name) for name in metrics} == pytest.approx(metrics)


def test_a_count_without_a_known_measure_goes_on_through_the_epochs_beside_it() -> None:
    lines = [f"epoch {epoch} | iteration {n} | err {1 / n:.4f}" for epoch in (1, 2) for n in range(10, 101, 10)]
    progress = ProgressTracker()
    for at, line in enumerate(lines):
        progress.read_lines([line], at)
    assert (progress.round, progress.step, progress.total_steps) == (1, 200, None)


def test_the_lines_before_the_proof_are_steps_too() -> None:
    progress = ProgressTracker()
    found = [
        one for n in range(1, 5) for one in progress.read_lines([f"{n:7d}/    40: {1 / n:.4f} auc {n / 9:.3f}"], n)
    ]
    assert [(one.step, one.metrics) for one in found] == [(n, {"auc": round(n / 9, 3)}) for n in range(1, 5)]
    assert progress.first_step_line.split()[0] == "1/"


@for_each(
    [
        ("  {n} conv 16 3 x 3 / 1 416 x 416 x 3 -> 416 x 416 x 16 {x:.3f} BFLOPs", UP, 0.001),  # a list, at once
        ("Layer {n}: mean {x:.3f} std 0.98", UP, 1.0),
        ("Processed {n} of 9000 documents, {x:.2f} MB/s", TENS, 1.0),
        ("{n} files scanned, {x:.2f} MB", TENS, 1.0),
        ("{n}/9000 images, mean {x:.2f}", TENS, 1.0),
        ("[{n}/782]  eta: 0:00:33    time: {x:.6f}  data: 0.0003  max mem: 862", TENS, 1.0),
        ("Evaluating episode {n}: reward {x:.2f}", UP, 1.0),
        ("2026-03-01 10:00:{n:02d} waiting for the cluster, load {x:.2f}", UP, 1.0),
        ("heartbeat {x:.2f} at {clock}", UP, 1.0),
        ("[{n}] memory {x:.2f}", [100, 250, 310, 700, 720, 1000, 1900], 1.0),  # no even rise
        ("epoch 0 step 0 iter {n}: data {x:.2f}", UP, 1.0),
        ('127.0.0.1 - - [01/Mar/2026:{clock} +0000] "GET /v1/x HTTP/1.1" 200 {n} {x:.3f}', TENS, 1.0),
        ("  {n:,} 3%   {x:.2f}MB/s    0:00:29", TENS, 1.0),
        ("frame={n:5d} q=28.0 size=  256kB time=00:00:01.00 bitrate=2048.01kbits/s speed={x:.2f}x", TENS, 1.0),
        ("{n}, NVIDIA H100, 41, {x:.2f} W, 81920 MiB", UP, 1.0),
        ("[{n}] alive rss {x:.1f}", TENS, 1.0),
        ("n={n} took {x:.3f} s", TENS, 1.0),
        ("[{n}/57] subject_{n} acc {x:.2f}", UP, 1.0),
        ("{n}/1319 correct: {x:.1f}", TENS, 1.0),
        ("quantizing layer {n}/32 | error {x:.4f} | time 12.1", UP, 1.0),
        ("[{n}/ 291] attn_q.weight - [ 4096, 4096], converting to q4_K .. size = 32.00 MiB -> {x:.2f} MiB", UP, 1.0),
    ]
)
def test_a_list_and_a_count_of_other_work_are_no_steps(row: tuple[str, list[int], float]) -> None:
    template, numbers, every_s = row
    progress = read(template, numbers, every_s=every_s)
    assert (progress.first_step_seen, progress.step, progress.metrics) == (False, None, {})
