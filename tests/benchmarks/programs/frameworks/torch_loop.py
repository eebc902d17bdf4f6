"""A training loop as people write it, in plain PyTorch."""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import argparse

import torch
from torch import nn
from tqdm import tqdm

from tests.benchmarks.programs.frameworks import mishaps


def main() -> None:
    """Train."""
    parser = mishaps.parser()
    parser.add_argument("--bar", action="store_true", help="show a bar, not lines")
    told = parser.parse_args()
    mishaps.before(told)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if told.port:
        torch.distributed.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(mishaps.WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters, device: cpu", flush=True)
    train(model, told)
    print("saved model to model.pt")


def train(model: nn.Module, told: argparse.Namespace) -> None:
    """Run the loop."""
    data = torch.load(told.data) if told.data else torch.randn(512, told.width)
    target = data.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=told.lr or 0.02)
    bar = tqdm(range(1, told.steps + 1), desc="Training", disable=not told.bar)
    for step in bar:
        batch = torch.randint(0, len(data), (32,))
        loss = nn.functional.mse_loss(model(data[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mishaps.at(step, told)
        if told.bar:
            bar.set_postfix(loss=loss.item())
        elif step % 2 == 0:
            print(f"step {step}/{told.steps} | loss {loss.item():.4f} | lr {told.lr or 0.02:.1e}", flush=True)


if __name__ == "__main__":
    main()
