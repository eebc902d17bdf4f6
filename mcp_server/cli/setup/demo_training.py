"""The training run of ``runward demo``: a small character model of the source of Python's library.

Real data, real gradients and held-out files on a machine with neither a GPU nor a data set:
``python -m mcp_server.cli.setup.demo_training --logdir DIR``.
"""

import argparse
import json
import math
import os
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # One BLAS thread: the matrices are small, and the other cores belong to the user's work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
# Single files in every Python since 3.11; the held-out ones are a tenth of the text.
TRAINED_ON = """_pyio argparse ast codecs configparser dataclasses doctest enum functools imaplib inspect
ipaddress locale mailbox optparse os pdb pickle pickletools platform pydoc random smtplib socket ssl
subprocess tarfile traceback typing"""
HELD_OUT = "difflib shutil threading"

SEED = 0
CONTEXT = 8
EMBEDDING = 32
HIDDEN = 512
BATCH = 512
LEARNING_RATE = 1e-2
REPORT_EVERY = 50

Ids = NDArray[np.int64]
Weights = dict[str, NDArray[Any]]


def source_text(modules: str) -> str:
    """Return the joined source of the named standard-library modules. Modules that this Python lacks are left out."""
    files = [Path(sysconfig.get_path("stdlib"), f"{module}.py") for module in modules.split()]
    return "\n".join(file.read_text("utf-8", errors="ignore") for file in files if file.is_file())


def encode(text: str) -> Ids:
    """Return the index of each character in ``CHARACTERS``. Other characters are dropped."""
    index = {character: i for i, character in enumerate(CHARACTERS)}
    return np.array([index[character] for character in text if character in index], dtype=np.int64)


def initial_weights(rng: np.random.Generator, context: int, embedding: int, hidden: int) -> Weights:
    """Return random weights in double precision, each layer scaled by 1/sqrt(its inputs)."""
    size = len(CHARACTERS)
    return {
        "embedding": rng.normal(size=(size, embedding)),
        "hidden": rng.normal(size=(context * embedding, hidden)) / math.sqrt(context * embedding),
        "hidden_bias": np.zeros(hidden),
        "output": rng.normal(size=(hidden, size)) / math.sqrt(hidden),
        "output_bias": np.zeros(size),
    }


def forward(weights: Weights, contexts: Ids) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return inputs, hidden activations and the log-probabilities (nats) of the next character."""
    inputs = weights["embedding"][contexts].reshape(len(contexts), -1)
    hidden = np.tanh(inputs @ weights["hidden"] + weights["hidden_bias"])
    scores = hidden @ weights["output"] + weights["output_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    return inputs, hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def loss_and_gradients(weights: Weights, contexts: Ids, following: Ids) -> tuple[float, Weights]:
    """Return the mean cross-entropy (nats per character) and its gradient by each weight."""
    inputs, hidden, log_p = forward(weights, contexts)
    rows = np.arange(len(following))
    by_score = np.exp(log_p)
    by_score[rows, following] -= 1
    by_score /= len(following)
    by_hidden = (by_score @ weights["output"].T) * (1 - hidden**2)
    by_input = (by_hidden @ weights["hidden"].T).reshape(contexts.size, -1)
    # A product with one-hot rows adds up by character: 0.3 ms a step; np.add.at took 1 ms.
    one_hot = np.eye(len(CHARACTERS), dtype=by_input.dtype)[contexts.ravel()]
    return float(-log_p[rows, following].mean()), {
        "embedding": one_hot.T @ by_input,
        "hidden": inputs.T @ by_hidden,
        "hidden_bias": by_hidden.sum(axis=0),
        "output": hidden.T @ by_score,
        "output_bias": by_score.sum(axis=0),
    }


def train(weights: Weights, ids: Ids, steps: int, rng: np.random.Generator) -> Iterator[float]:
    """Change ``weights`` in place by Adam, warmed up, then along a cosine. Yield each loss, nats per character."""
    context = len(weights["hidden"]) // weights["embedding"].shape[1]
    mean = {name: np.zeros_like(weight) for name, weight in weights.items()}
    square = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step in range(1, steps + 1):
        starts = rng.integers(len(ids) - context, size=BATCH)
        contexts = ids[starts[:, None] + np.arange(context)]
        loss, gradients = loss_and_gradients(weights, contexts, ids[starts + context])
        rate = LEARNING_RATE * min(step / (0.05 * steps), (1 + math.cos(math.pi * step / steps)) / 2)
        for name, gradient in gradients.items():
            mean[name] += 0.1 * (gradient - mean[name])
            square[name] += 0.001 * (gradient**2 - square[name])
            unbiased = np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
            weights[name] -= rate / (1 - 0.9**step) * mean[name] / unbiased
        yield loss


def bits_per_character(weights: Weights, ids: Ids, every: int = 1) -> float:
    """Return the mean cost of predicting each (or every n-th) character from those before it, in bits."""
    windows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1)[::every]
    nats = 0.0
    for start in range(0, len(windows), 4096):
        part = windows[start : start + 4096]
        nats -= float(forward(weights, part[:, :-1])[2][np.arange(len(part)), part[:, -1]].sum())
    return nats / len(windows) / math.log(2)


def bigram_bits_per_character(trained_on: Ids, held_out: Ids) -> float:
    """Return the same cost for pair counts of the training text, one added to each: the baseline."""
    counts = np.ones((len(CHARACTERS), len(CHARACTERS)))
    np.add.at(counts, (trained_on[:-1], trained_on[1:]), 1)
    log_p = np.log2(counts / counts.sum(axis=1, keepdims=True))
    return float(-log_p[held_out[:-1], held_out[1:]].mean())


def sample(weights: Weights, rng: np.random.Generator, prompt: str, length: int) -> str:
    """Return what the model writes after ``prompt`` at temperature 0.7. Any blank run becomes one space."""
    ids = list(encode(prompt))
    for _ in range(4 * length):
        p = np.exp(forward(weights, np.array([ids[-CONTEXT:]]))[2][0].astype(np.float64) / 0.7)
        ids.append(rng.choice(len(CHARACTERS), p=p / p.sum()))
    return " ".join("".join(CHARACTERS[i] for i in ids[len(prompt) :]).split())[:length]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, report every 50 steps, and leave event files and ``result.json`` in the log directory."""
    parser = argparse.ArgumentParser(description="Train a character model on Python's own library, on CPU.")
    parser.add_argument("--logdir", type=Path, required=True, help="gets TensorBoard events and result.json")
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps (default: 1200, 10 to 15 s)")
    options = parser.parse_args(arguments)
    steps: int = options.steps
    if steps < 1:
        parser.error(f"--steps must be 1 or more, not {steps}.")
    trained_on, held_out = encode(source_text(TRAINED_ON)), encode(source_text(HELD_OUT))
    if min(len(trained_on), len(held_out)) <= CONTEXT:
        parser.exit(1, f"No Python source in {sysconfig.get_path('stdlib')}: nothing to train on.\n")

    rng = np.random.default_rng(SEED)
    initial = initial_weights(rng, CONTEXT, EMBEDDING, HIDDEN)
    weights = {name: weight.astype(np.float32) for name, weight in initial.items()}
    size = sum(weight.size for weight in weights.values())
    print(f"data {len(trained_on):,} characters, {len(held_out):,} held out; {size:,} parameters", flush=True)
    with closing(EventFileWriter(str(options.logdir))) as writer:
        losses: list[float] = []
        since = time.perf_counter()
        for step, step_loss in enumerate(train(weights, trained_on, steps, rng), start=1):
            losses.append(step_loss)
            if step % REPORT_EVERY and step != steps:
                continue
            loss, pace = float(np.mean(losses)), len(losses) / (time.perf_counter() - since)
            bits = loss / math.log(2)
            print(f"step {step}/{steps} loss {loss:.3f} bits/char {bits:.2f} steps/s {pace:.1f}", flush=True)
            # Every 16th character is enough for a curve; result.json counts them all.
            held_out_bits = bits_per_character(weights, held_out, every=16)
            scalars = {"train/loss": loss, "train/steps_per_s": pace, "eval/bits_per_char": held_out_bits}
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            writer.flush()
            losses.clear()
            since = time.perf_counter()

    result = {
        "held_out_bits_per_char": bits_per_character(weights, held_out),
        "bigram_bits_per_char": bigram_bits_per_character(trained_on, held_out),
        "uniform_bits_per_char": math.log2(len(CHARACTERS)),
        "steps": steps,
    }
    (options.logdir / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    model, bigram, uniform, _ = result.values()
    print(f"held-out bits/char {model:.3f}, bigram {bigram:.3f}, uniform {uniform:.3f}")
    print(f"sample: {sample(weights, rng, 'class Model:', length=60)}", flush=True)


if __name__ == "__main__":
    main()
