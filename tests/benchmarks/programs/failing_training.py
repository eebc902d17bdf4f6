"""Prints what a fine-tuning prints, then fails as they do, deep in a library: `failing_training.py [SECONDS_LIVE]`."""

import math
import sys
import time

STEPS = 240


class OutOfMemoryError(RuntimeError):
    """Named as torch.cuda's."""


OutOfMemoryError.__module__ = "torch"


def main() -> None:
    """Train until the memory is gone."""
    print("Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00,  1.28it/s]")
    print("trainable params: 20,185,088 || all params: 7,635,801,600 || trainable%: 0.2643")
    Trainer(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0).train()


class Trainer:
    """As deep as trainers are."""

    def __init__(self, live_s: float) -> None:
        self.live_s = live_s

    def train(self) -> None:
        """Run every epoch."""
        return self._inner_training_loop(epochs=3)

    def _inner_training_loop(self, epochs: int) -> None:
        for step in range(1, STEPS * epochs):
            self.training_step(step)

    def training_step(self, step: int) -> None:
        """Print one step."""
        loss, rate = 0.9 + 1.4 * math.exp(-step / 80), 2e-4 * (1 - step / (3 * STEPS))
        if step % 10 == 0:
            print(
                f"{{'loss': {loss:.4f}, 'grad_norm': 0.8731, 'learning_rate': {rate:.3e}, 'epoch': {step / STEPS:.2f}}}"
            )
        done, left = step * 2, (3 * STEPS - step) * 2
        bar = f"{step * 100 // (3 * STEPS):>3}%|{'#' * (step // 72):<10}| {step}/{3 * STEPS}"
        print(f"\r{bar} [{done // 60:02}:{done % 60:02}<{left // 60:02}:{left % 60:02},  2.00s/it]", end="", flush=True)
        if step == STEPS:
            time.sleep(self.live_s)
            print()
            self.compute_loss(step)

    def compute_loss(self, step: int) -> None:
        """Call the model."""
        self.forward(layer=31)

    def forward(self, layer: int) -> None:
        """Go through the layers."""
        self.attention(layer)

    def attention(self, layer: int) -> None:
        """Allocate what is not there."""
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
            "1.31 GiB is free. Process 28714 has 77.83 GiB memory in use. Of the allocated memory 74.06 GiB is "
            "allocated by PyTorch, and 3.12 GiB is reserved by PyTorch but unallocated."
        )


if __name__ == "__main__":
    main()
