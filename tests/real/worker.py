"""A small training loop under torchrun, as a user writes it; what goes wrong in it comes from WORKER (JSON)."""

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from stepscope import StepMonitor

plan = {
    "strategy": "ddp", "ddp": {}, "steps": 60, "layers": 6, "width": 192, "batch": 64, "workers": 0, "micro_batches": 1,
    "slow_rank": None, "where": None, "milliseconds": 0, "user_hook": False, "unused": False, "wrap": True,
    "minutes": 0, "checkpoint_every": 0,
    **json.loads(os.environ.get("WORKER", "{}")),
}  # fmt: skip

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
slow = plan["milliseconds"] / 1000 if rank == plan["slow_rank"] else 0.0


def drag(where, factor=1.0):
    if slow and plan["where"] == where:
        time.sleep(factor * slow)


class Numbers(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index % plan["batch"] == 0:
            drag("data_wait", random.uniform(0.5, 1.5))  # no two batches take the same
        return torch.randn(plan["width"])


class Drag(torch.autograd.Function):
    """Extra work in the backward of the middle layer."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        drag("backward")
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(plan["width"], plan["width"]) for _ in range(plan["layers"]))
        self.spare = nn.Linear(8, 8) if plan["unused"] else None

    def forward(self, x):
        drag("forward")
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number == plan["layers"] // 2:
                x = Drag.apply(x)
        return {"loss": x.square().mean()}


model = Model()
monitor = StepMonitor.from_env(
    model=model, tokens_per_step=plan["batch"], unit="samples", flops_per_step=6.0 * plan["layers"] * plan["width"] ** 2,
    peak=1e11,
)  # fmt: skip
if plan["strategy"] == "fsdp":
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    trained = fully_shard(model)
else:
    trained = DistributedDataParallel(model, bucket_cap_mb=0.2, **plan["ddp"])
    if plan["user_hook"]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        trained.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
if plan["wrap"]:
    monitor.wrap(trained, optimizer)
loader = DataLoader(Numbers(), batch_size=plan["batch"], num_workers=plan["workers"])

batches = iter(monitor.batches(loader))
outside, runnable = [], []
begun = time.monotonic()


def runnable_seconds():
    """How long the training thread and its loader's workers have run, or were ready to and had no core (schedstat of proc(5)).

    Of a kernel that does not count that, how long the thread has run.
    """
    main = os.getpid()
    try:
        workers = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii").split()
        ran = [Path(f"/proc/{one}/schedstat").read_text(encoding="ascii").split() for one in (main, *workers)]
    except OSError:
        return time.thread_time()
    return sum(int(on_core) + int(without) for on_core, without, _ in ran) / 1e9


def goes_on(step):
    """So many steps; or so many minutes, by rank 0's watch."""
    if plan["steps"]:
        return step < plan["steps"]
    if step % 50 == 0:
        left = torch.tensor(float(time.monotonic() - begun < 60 * plan["minutes"]))
        dist.broadcast(left, 0)
        return bool(left)
    return True


step = 0
while goes_on(step):
    for micro in range(plan["micro_batches"]):
        if micro == 0:
            outside.append(time.perf_counter())
            runnable.append(runnable_seconds())
        batch = next(batches)
        last = micro == plan["micro_batches"] - 1
        if not last:
            with trained.no_sync():
                with monitor.phase("forward"):
                    loss = trained(batch)["loss"]
                with monitor.phase("backward"):
                    loss.backward()
            continue
        with monitor.phase("forward"):
            loss = trained(batch)["loss"]
        with monitor.phase("backward"):
            loss.backward()
    with monitor.phase("optimizer"):
        optimizer.step()
        drag("optimizer")
        optimizer.zero_grad()
    monitor.step_done(loss=loss, grad_norm=1.0)
    if plan["checkpoint_every"] and (step + 1) % plan["checkpoint_every"] == 0 and rank == 0:
        with monitor.phase("checkpoint"):
            time.sleep(plan["milliseconds"] / 1000)
    drag("other")
    step += 1

sys.stdout.write(json.dumps({"rank": rank, "stamps": [*outside, time.perf_counter()], "runnable": runnable}) + "\n")
sys.stdout.flush()
if stop := os.environ.get("WORKER_STOP"):
    monitor.flush()
    deadline = time.monotonic() + 60
    while not os.path.exists(stop) and time.monotonic() < deadline:
        time.sleep(0.05)
dist.destroy_process_group()
monitor.close()
