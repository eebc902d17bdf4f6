"""The data and the fixed number of steps of every trial. Protected: a trial that changes it is invalid."""

import random

DIMENSIONS, STEPS, NOISE = 8, 60, 0.3
TRUTH = [random.Random(7).gauss(0, 1) for _ in range(DIMENSIONS)]


def draw(rng: random.Random, count: int) -> list:
    """Return so many pairs of input and target."""
    inputs = [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(count)]
    return [(x, predict(TRUTH, x) + rng.gauss(0, NOISE)) for x in inputs]


def predict(weights: list, x: list) -> float:
    return sum(w * v for w, v in zip(weights, x))
