"""Measures a trial in a process of its own, after train.py has ended well. Protected."""

import json
import random
from pathlib import Path

from prepare import draw, predict

weights = json.loads(Path("weights.json").read_text())
held_out = draw(random.Random(8), 500)
print(f"val_loss: {sum((predict(weights, x) - y) ** 2 for x, y in held_out) / len(held_out):.6f}")
