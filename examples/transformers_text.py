"""The Trainer of transformers: a small GPT-2 learns to count, with a quarter of its weights.

python examples/transformers_text.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from inface.integrations.transformers import FrankWolfeCallback, optimizer


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that go up by one, two or three, modulo 20."""
    found = []
    for number in range(count):
        ids = (number + torch.arange(16) * (1 + number % 3)) % 20
        found.append({"input_ids": ids, "labels": ids})
    return found


def main() -> Any:
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=10,
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            args,
            train_dataset=sentences(320),
            optimizer_cls_and_kwargs=optimizer(args, density=0.25),  # the trainer makes it, of its own model
        )
        FrankWolfeCallback().add_to(trainer)
        trainer.train()
    return trainer


if __name__ == "__main__":
    main()
