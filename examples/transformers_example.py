"""The Hugging Face ``Trainer`` with Stepscope: one line, marked. Needs ``pip install transformers accelerate``; nothing
is downloaded. While it runs: ``curl -s localhost:9401/metrics | grep phase_seconds``.
"""

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from stepscope.integrations.transformers import StepscopeCallback

BATCH, LENGTH, VOCABULARY = 8, 64, 512


class RandomText(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(VOCABULARY, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}


def main(steps: int = 200) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            logging_steps=1,  # loss and gradient norm are published when they are logged
            save_steps=100,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to=[],
        )
        callback = StepscopeCallback(tokens_per_step=BATCH * LENGTH, sequence_length=LENGTH)  # here
        Trainer(model, arguments, train_dataset=RandomText(), callbacks=[callback]).train()


if __name__ == "__main__":
    main()
