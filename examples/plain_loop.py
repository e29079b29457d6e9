"""A plain PyTorch loop with Stepscope: four lines, marked. Alone, or ``torchrun --nproc-per-node=2 examples/plain_loop.py``.

While it runs: ``curl -s localhost:9401/metrics | grep phase_seconds``.
"""

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from stepscope import StepMonitor

BATCH, WIDTH = 32, 256


def main(steps: int = 500) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    flops = 6.0 * BATCH * sum(parameter.numel() for parameter in model.parameters())
    monitor = StepMonitor.from_env(model=model, tokens_per_step=BATCH, unit="samples", flops_per_step=flops)  # 1
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    if "WORLD_SIZE" in os.environ:
        monitor.wrap(model, optimizer)  # 2
    loader = DataLoader(
        TensorDataset(torch.randn(steps * BATCH, WIDTH), torch.randn(steps * BATCH, 1)), batch_size=BATCH
    )
    for inputs, targets in monitor.batches(loader):  # 3
        with monitor.phase("forward"):
            loss = nn.functional.mse_loss(model(inputs), targets)
        with monitor.phase("backward"):
            loss.backward()
        with monitor.phase("optimizer"):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        monitor.step_done(loss=loss, grad_norm=norm)  # 4
    monitor.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
