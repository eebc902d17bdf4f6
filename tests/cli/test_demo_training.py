"""The demo's training is real: its gradients are right and it learns."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from mcp_server.cli.setup import demo_training as demo


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(1)
    weights = demo.initial_weights(rng, context=3, embedding=2, hidden=4)
    contexts = rng.integers(len(demo.CHARACTERS), size=(5, 3))
    contexts[0] = contexts[0, 0]  # a character that occurs twice in one context
    following = rng.integers(len(demo.CHARACTERS), size=5)
    _, gradients = demo.loss_and_gradients(weights, contexts, following)

    for name, weight in weights.items():
        numeric = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            value = weight[place]
            weight[place] = value + 1e-5
            above, _ = demo.loss_and_gradients(weights, contexts, following)
            weight[place] = value - 1e-5
            below, _ = demo.loss_and_gradients(weights, contexts, following)
            weight[place] = value
            numeric[place] = (above - below) / 2e-5
        np.testing.assert_allclose(gradients[name], numeric, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_thirty_steps_lower_the_loss_and_leave_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(["--logdir", str(tmp_path), "--steps", "30"])

    data, step, held_out, sample = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"data [\d,]+ characters, [\d,]+ held out; [\d,]+ parameters", data)
    assert re.fullmatch(r"step 30/30 loss [\d.]+ bits/char [\d.]+ steps/s [\d.]+", step)
    assert held_out.startswith("held-out bits/char ")
    assert sample.startswith("sample: ")

    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 30
    assert result["uniform_bits_per_char"] == math.log2(96)
    assert result["bigram_bits_per_char"] < result["uniform_bits_per_char"]
    assert result["held_out_bits_per_char"] < result["uniform_bits_per_char"] - 1

    (events,) = tmp_path.glob("events.out.tfevents.*")
    tags = [value.tag for event in EventFileLoader(str(events)).Load() for value in event.summary.value]
    assert tags == ["train/loss", "train/steps_per_s", "eval/bits_per_char"]


def test_training_is_the_same_every_time() -> None:
    ids = demo.encode("for i in range(10):\n    print(i)\n" * 20)

    def losses() -> list[float]:
        rng = np.random.default_rng(demo.SEED)
        return list(demo.train(demo.initial_weights(rng, 4, 4, 16), ids, 30, rng))

    first = losses()
    assert first == losses()
    assert first[-1] < first[0] - 1


def test_held_out_files_are_not_trained_on() -> None:
    trained_on, held_out = demo.TRAINED_ON.split(), demo.HELD_OUT.split()
    assert not set(trained_on) & set(held_out)
    assert 0.08 < len(demo.source_text(demo.HELD_OUT)) / len(demo.source_text(demo.TRAINED_ON)) < 0.12


def test_fewer_than_one_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--logdir", str(tmp_path / "never"), "--steps", "0"])
    assert "--steps must be 1 or more, not 0." in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
