"""A small training run: linear regression by stochastic gradient descent. Python 3.9 or newer, nothing else.

It prints its steps, writes metrics.csv and checkpoint.json into --out, and goes on from there with --resume.
``--room N`` plays a GPU that has memory for N samples.
"""

import argparse
import csv
import json
import random
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", type=int, default=1024)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.batch_size > args.room:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    truth = [random.Random(7).gauss(0, 1) for _ in range(8)]
    held_out_rng = random.Random(8)
    held_out = [sample(held_out_rng, truth) for _ in range(200)]
    weights, step = [0.0] * len(truth), 0
    checkpoint = args.out / "checkpoint.json"
    if args.resume and checkpoint.exists():
        weights, step = json.loads(checkpoint.read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    with (args.out / "metrics.csv").open("a", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", "loss", "eval_loss"])
        while step < args.steps:
            step += 1
            batch = [sample(rng, truth) for _ in range(args.batch_size)]
            loss = descend(weights, batch, args.lr)
            if step % 10 == 0:
                evaluated = sum((predict(weights, x) - y) ** 2 for x, y in held_out) / len(held_out)
                print(f"step {step}/{args.steps} loss={loss:.4f} eval_loss={evaluated:.4f}", flush=True)
                table.writerow([step, loss, evaluated])
                file.flush()
                checkpoint.write_text(json.dumps([weights, step]))
                time.sleep(0.01)


def sample(rng: random.Random, truth: list) -> tuple:
    x = [rng.gauss(0, 1) for _ in truth]
    return x, predict(truth, x) + rng.gauss(0, 0.1)


def predict(weights: list, x: list) -> float:
    return sum(w * v for w, v in zip(weights, x))


def descend(weights: list, batch: list, lr: float) -> float:
    """Take one step of gradient descent on ``weights``, and return the loss before it."""
    errors = [predict(weights, x) - y for x, y in batch]
    for i in range(len(weights)):
        weights[i] -= lr * 2 * sum(error * x[i] for error, (x, _) in zip(errors, batch)) / len(batch)
    return sum(error * error for error in errors) / len(batch)


if __name__ == "__main__":
    main()
