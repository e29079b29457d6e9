"""A small Lightning training under torchrun; what goes wrong in it comes from WORKER (JSON)."""

import json
import os
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.integrations.lightning import StepscopeCallback

plan = {"steps": 40, "slow": [], **json.loads(os.environ.get("WORKER", "{}"))}
rank = int(os.environ["RANK"])
torch.set_num_threads(1)


def drag(where, step):
    """``slow`` lists rank, place, first step, last step, milliseconds."""
    for who, place, first, last, milliseconds in plan["slow"]:
        if who == rank and place == where and first <= step <= last:
            time.sleep(milliseconds / 1000)


class Numbers(Dataset):
    def __len__(self):
        return 1 << 16

    def __getitem__(self, index):
        return torch.full((64,), index % 7 / 7)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))

    def training_step(self, batch, batch_idx):
        drag("forward", batch_idx)
        return self.layers(batch).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        drag("other", batch_idx)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Hold(pl.Callback):
    """The ranks still answer until the test has read them."""

    def on_fit_end(self, trainer, pl_module):
        deadline = time.monotonic() + 60
        while not os.path.exists(os.environ["WORKER_STOP"]) and time.monotonic() < deadline:
            time.sleep(0.05)


trainer = pl.Trainer(
    callbacks=[StepscopeCallback(tokens_per_step=8, unit="samples", flops_per_step=1e6), Hold()],
    accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=plan["steps"], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), DataLoader(Numbers(), batch_size=8))
