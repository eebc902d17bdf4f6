"""The file that trials change: linear regression by stochastic gradient descent. It leaves weights.json."""

import argparse
import json
import random
from pathlib import Path

from prepare import DIMENSIONS, STEPS, draw, predict

LEARNING_RATE = 0.01
BATCH_SIZE = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    rng = random.Random(parser.parse_args().seed)
    weights = [0.0] * DIMENSIONS
    for step in range(1, STEPS + 1):
        batch = draw(rng, BATCH_SIZE)
        errors = [predict(weights, x) - y for x, y in batch]
        for i in range(DIMENSIONS):
            weights[i] -= LEARNING_RATE * 2 * sum(e * x[i] for e, (x, _) in zip(errors, batch)) / BATCH_SIZE
        if step % 10 == 0:
            print(f"step {step}/{STEPS} loss={sum(e * e for e in errors) / BATCH_SIZE:.4f}", flush=True)
    Path("weights.json").write_text(json.dumps(weights))


if __name__ == "__main__":
    main()
