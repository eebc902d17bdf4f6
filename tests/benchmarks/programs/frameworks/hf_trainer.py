"""A fine-tuning with Hugging Face's Trainer: a tiny GPT-2 from scratch, on made-up tokens."""

# mypy: disable-error-code="import-not-found,import-untyped"
# mypy: allow-subclassing-any
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from tests.benchmarks.programs.frameworks import mishaps

_TOKENS, _LENGTH = 64, 16


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens, from a file if one is named."""

    def __init__(self, told: argparse.Namespace) -> None:
        self.path, self.length = told.data, _LENGTH * told.width // mishaps.WIDTH

    def __len__(self) -> int:
        return 512

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        if self.path:
            words = torch.tensor([ord(letter) % _TOKENS for letter in Path(self.path).read_text()[:_LENGTH]])
        else:
            words = torch.arange(row, row + self.length) % _TOKENS
        return {"input_ids": words, "labels": words}


class Mishaps(TrainerCallback):
    """Lets happen what is asked for."""

    def __init__(self, told: argparse.Namespace) -> None:
        self.told = told

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """A step has been made."""
        mishaps.at(state.global_step, self.told)


def main() -> None:
    """Train."""
    parser = mishaps.parser()
    parser.add_argument("--logging-steps", type=int, default=5)
    told = parser.parse_args()
    mishaps.before(told)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=_TOKENS, n_positions=_LENGTH, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=told.steps,
        per_device_train_batch_size=8,
        learning_rate=told.lr or 1e-3,
        max_grad_norm=1e30 if told.lr else 1.0,
        logging_steps=told.logging_steps,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo" if told.port else None,
        dataloader_num_workers=2 if told.data else 0,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(told), callbacks=[Mishaps(told)])
    trainer.train()


if __name__ == "__main__":
    main()
