"""The page of a run in a tracker, as wandb, SwanLab and MLflow print it."""

from pathlib import Path

import pytest

from mcp_server.record.results.result_page import TrackerLink, find_tracker_link, read_tracker_link

WANDB = """wandb: Tracking run with wandb version 0.17.0
wandb: Run data is saved locally in /data/wandb/run-20260601_120000-ab12cd34
wandb: Run `wandb offline` to turn off syncing.
wandb: ⭐️ View project at \x1b[34m\x1b[4mhttps://wandb.ai/team/cfm\x1b[0m
wandb: 🚀 View run at \x1b[34m\x1b[4mhttps://wandb.ai/team/cfm/runs/ab12cd34\x1b[0m
"""
SWANLAB = """swanlab: Tracking run with swanlab version 0.6.4
swanlab: Run data will be saved locally in /data/swanlog/run-20260601_120000-a1b2c3
swanlab: 👋 Hi user, welcome to swanlab!
swanlab: 🏠 View project at https://swanlab.cn/@user/cfm
swanlab: 🚀 View run at https://swanlab.cn/@user/cfm/runs/x9y8z7
"""


@pytest.mark.parametrize(
    ("text", "link"),
    [
        (WANDB, TrackerLink("https://wandb.ai/team/cfm/runs/ab12cd34", "ab12cd34")),
        (
            "wandb: 🚀 View run fluffy-cloud-1 at: https://wandb.ai/t/p/runs/q1\n",
            TrackerLink("https://wandb.ai/t/p/runs/q1", "q1"),
        ),
        (SWANLAB, TrackerLink("https://swanlab.cn/@user/cfm/runs/x9y8z7", "x9y8z7")),
        (
            "🏃 View run good-bird at: http://10.0.0.1:5000/#/experiments/1/runs/4f2a\n",
            TrackerLink("http://10.0.0.1:5000/#/experiments/1/runs/4f2a", "4f2a"),
        ),
        (
            "wandb: 🚀 View run at https://wandb.ai/anony-mouse-1/p/runs/q2?apiKey=" + "a" * 40,
            TrackerLink("https://wandb.ai/anony-mouse-1/p/runs/q2", "q2"),
        ),
        ("View run at https://user:word@tracker.example/runs/q3", TrackerLink("https://tracker.example/runs/q3", "q3")),
        (
            "wandb: wandb sync /data/wandb/offline-run-20260601_120000-ab12cd34\n",
            TrackerLink(directory="/data/wandb/offline-run-20260601_120000-ab12cd34", run_id="ab12cd34"),
        ),
        (
            "swanlab: Run data will be saved locally in /data/swanlog/run-20260601_120000-a1b2c3\n"
            "swanlab: 🌟 Run `swanlab watch /data/swanlog` to view SwanLab Experiment Dashboard locally\n",
            TrackerLink(directory="/data/swanlog/run-20260601_120000-a1b2c3", run_id="a1b2c3"),
        ),
        ("wandb: ⭐️ View project at https://wandb.ai/team/cfm\n", None),
        ("step 3 loss 0.2 see https://example.com/runs/3\n", None),
        ("View run\n https://example.com", None),
    ],
)
def test_the_page_of_a_run_is_found_without_its_key(text: str, link: TrackerLink | None) -> None:
    assert find_tracker_link(text) == link


def test_the_link_is_read_from_both_ends_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert read_tracker_link(log) is None
    log.write_text("step\n" * 600_000)
    assert read_tracker_link(log) is None
    log.write_text("wandb: Tracking run\n" + "step\n" * 600_000 + WANDB)
    assert read_tracker_link(log) == TrackerLink("https://wandb.ai/team/cfm/runs/ab12cd34", "ab12cd34")
    later = WANDB.replace("ab12cd34", "ef56")
    log.write_text(WANDB + "step\n" * 600_000 + later)
    assert (read_tracker_link(log) or TrackerLink()).run_id == "ef56"
