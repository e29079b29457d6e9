"""Lightning with Stepscope: one line, marked. Needs ``pip install lightning``.

While it runs: ``curl -s localhost:9401/metrics | grep phase_seconds``.
"""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.integrations.lightning import StepscopeCallback

BATCH, WIDTH = 32, 256


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def main(steps: int = 500) -> None:
    model = Model()
    flops = 6.0 * BATCH * sum(parameter.numel() for parameter in model.parameters())
    trainer = pl.Trainer(
        callbacks=[StepscopeCallback(tokens_per_step=BATCH, unit="samples", flops_per_step=flops)],  # here
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
    )
    data = TensorDataset(torch.randn(steps * BATCH, WIDTH), torch.randn(steps * BATCH, 1))
    trainer.fit(model, DataLoader(data, batch_size=BATCH))


if __name__ == "__main__":
    main()
