"""A training with Lightning, with the bar that it shows by itself."""

# mypy: disable-error-code="import-not-found,import-untyped"
# mypy: allow-subclassing-any
from __future__ import annotations

import argparse
import math

import lightning
import numpy as np
import torch
from torch import nn

from tests.benchmarks.programs.frameworks import mishaps

_EPOCHS = 3


class Regression(lightning.LightningModule):
    """A line through points."""

    def __init__(self, told: argparse.Namespace) -> None:
        super().__init__()
        self.told = told
        self.layers = nn.Sequential(nn.Linear(mishaps.WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss."""
        (points,) = batch
        loss = nn.functional.mse_loss(self.layers(points), points.sum(1, keepdim=True))
        self.log("train_loss", loss, prog_bar=True)
        mishaps.at(self.global_step, self.told)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        """Tell the loss on held-out data."""
        (points,) = batch
        loss = nn.functional.mse_loss(self.layers(points), points.sum(1, keepdim=True))
        self.log("val_loss", loss, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return what steps."""
        return torch.optim.SGD(self.parameters(), lr=self.told.lr or 0.01)


def main() -> None:
    """Train."""
    parser = mishaps.parser()
    parser.add_argument("--precision", default="32-true")
    told = parser.parse_args()
    mishaps.before(told)
    lightning.seed_everything(0)
    torch.set_num_threads(1)
    points = torch.from_numpy(np.load(told.data)) if told.data else torch.randn(512, told.width)
    loaders = [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=8) for _ in range(2)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        strategy="ddp" if told.port else "auto",
        precision=told.precision,
        max_epochs=_EPOCHS,
        limit_train_batches=math.ceil(told.steps / _EPOCHS),
        limit_val_batches=4,
        logger=False,
        enable_checkpointing=False,
        log_every_n_steps=5,
    )
    trainer.fit(Regression(told), *loaders)


if __name__ == "__main__":
    main()
