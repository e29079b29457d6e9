"""Trains a small GPT on Python's own standard library, byte by byte, with DDP or FSDP, on CPUs or GPUs.

    torchrun --nproc-per-node 4 examples/train_gpt.py --strategy ddp

Every rank serves its metrics on port 9401 + local rank. With ``--lab http://127.0.0.1:8000`` the ranks suffer, for real,
from the faults that are started there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sysconfig
import threading
import time
import urllib.request
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from stepscope import StepMonitor

log = logging.getLogger("train_gpt")

LOG_EVERY = 100
"""So many steps."""
STALLED_SHARE = 1 / 200
"""Of the samples, under data starvation."""
PAUSED_SHARE = 1 / 100
"""Of a rank's steps, when hosts pause."""
CYCLES_PER_SECOND = 1.5e9
"""Of a GPU, roughly: for ``torch.cuda._sleep``."""
NEUTRAL = {
    "straggler": 1.0,
    "jitter": 0.0,
    "data_starvation": 0.0,
    "gradient_explosion": 1.0,
    "loss_plateau": 1.0,
    "checkpoint_stall": 0.0,
    "gc_pause": 0.0,
    "hang": 0.0,
}
"""The severity that changes nothing, of every fault that this job can suffer from."""
AGREED = ("gradient_explosion", "loss_plateau")
"""These must change on all ranks in the same step, or the ranks' weights would differ from then on."""


@dataclass
class Config:
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    sequence: int = 128
    vocabulary: int = 256


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.n_embd
        self.heads = config.n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.n_embd)
        self.positions = nn.Parameter(0.02 * torch.randn(config.sequence, config.n_embd))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm, self.head = nn.LayerNorm(config.n_embd), nn.Linear(config.n_embd, config.vocabulary, bias=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(inputs) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class StandardLibrary(Dataset):
    """Sequences of bytes from the .py files of Python's standard library, drawn at random, differently on each rank.

    ``stall`` is shared with the loader's workers: under data starvation a sample may stall for so many seconds.
    """

    def __init__(self, sequence: int, samples: int, seed: int, stall: torch.Tensor) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
        self.sequence, self.samples, self.seed, self.stall = sequence, samples, seed, stall

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = random.Random(self.seed * 1_000_003 + index)
        if (shortest := float(self.stall)) > 0 and draw.random() < STALLED_SHARE:
            time.sleep(min(shortest * draw.paretovariate(1.5), 20 * shortest))
        start = draw.randrange(len(self.text) - self.sequence - 1)
        piece = self.text[start : start + self.sequence + 1].long()
        return piece[:-1], piece[1:]


class Faults:
    """Asks the lab once a second what this rank suffers from. A lab that does not answer changes nothing.

    What must change on all ranks in the same step, rank 0 announces through the job's store.
    """

    def __init__(self, lab: str | None, rank: int, stall: torch.Tensor) -> None:
        self._lab, self._rank, self._stall = lab, rank, stall
        self._levels = dict(NEUTRAL)
        self._agreed: list[list[float]] = [[0, *(NEUTRAL[fault] for fault in AGREED)]]
        self._store = dist.distributed_c10d._get_default_store()
        self._draw = random.Random(rank)
        self._steps_per_second = 0.0
        self.step = 0
        self.compute_factor = 1.0
        """By how much forward and backward are lengthened in this step."""
        if lab:
            threading.Thread(target=self._ask, daemon=True).start()

    def level(self, fault: str) -> float:
        return self._levels[fault]

    def agreed(self, fault: str) -> float:
        """The level that all ranks have in this step."""
        known = self._agreed
        levels = next((levels for step, *levels in reversed(known) if step <= self.step), known[0][1:])
        return levels[AGREED.index(fault)]

    def begin(self, step: int) -> None:
        """Between two steps: a rank that hangs does not come back before the fault is stopped."""
        self.step = step
        while self.level("hang") > 0:
            time.sleep(0.1)
        if (mean := self.level("gc_pause")) > 0 and self._draw.random() < PAUSED_SHARE:
            time.sleep(self._draw.uniform(0.5, 1.5) * mean)
        spread = self.level("jitter")
        extra = self._draw.expovariate(1 / spread) if spread > 0 else 0.0
        self.compute_factor = self.level("straggler") * (1 + extra)

    def _ask(self) -> None:
        while True:
            began, step = time.monotonic(), self.step
            try:
                with urllib.request.urlopen(f"{self._lab}/faults", timeout=2) as answer:
                    self._take(json.load(answer), time.time())
            except (OSError, ValueError, KeyError) as error:
                log.debug("the lab does not answer: %s", error)
            time.sleep(1)
            if self.step > step:  # in a hang the last speed holds
                self._steps_per_second = (self.step - step) / (time.monotonic() - began)
            self._agree()

    def _take(self, active: list[dict], now: float) -> None:
        levels = dict(NEUTRAL)
        for fault in active:
            name, neutral = fault["fault"], NEUTRAL.get(fault["fault"])
            if neutral is not None and fault["target"].get("rank", self._rank) == self._rank:
                ramp = fault["ramp_seconds"]
                reached = min(1.0, (now - fault["started"]) / ramp) if ramp else 1.0
                levels[name] = neutral + reached * (fault["severity"] - neutral)
        self._stall.fill_(levels["data_starvation"])
        self._levels = levels

    def _agree(self) -> None:
        """Rank 0 announces a change four seconds ahead, with those before it; by then everybody has read it."""
        wanted = [self._levels[fault] for fault in AGREED]
        if self._rank == 0 and wanted != self._agreed[-1][1:]:
            step = self.step + int(4 * self._steps_per_second) + 4
            self._agreed = [*self._agreed[-8:], [step, *wanted]]
            self._store.set("agreed levels", json.dumps(self._agreed))
        elif self._rank and self._store.check(["agreed levels"]):
            self._agreed = json.loads(self._store.get("agreed levels"))


class Drag:
    """Lengthens this rank's forward and backward. ``seconds`` is what they take by themselves."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._device, self._seconds = device, seconds

    def pull(self, factor: float) -> None:
        extra = (factor - 1) * self._seconds
        if extra <= 0:
            return
        if self._device.type == "cuda":
            torch.cuda._sleep(int(extra * CYCLES_PER_SECOND))
        else:  # work would take the other ranks' cores
            time.sleep(extra)


class Dragged(torch.autograd.Function):
    """Lengthens the backward of what it is applied to, while this rank's gradients are still to come."""

    @staticmethod
    def forward(context, x, drag, faults):
        context.drag, context.faults = drag, faults
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        context.drag.pull(context.faults.compute_factor)
        return gradient, None, None


def pass_seconds(model: GPT, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """What a forward and a backward take on this device without anybody else."""

    def now() -> float:
        if inputs.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    times = []
    for _ in range(3):
        began = now()
        loss = model(inputs, targets)
        turned = now()
        loss.backward()
        times.append((turned - began, now() - turned))
        model.zero_grad()
    return min(forward for forward, _ in times), min(backward for _, backward in times)


class Saver:
    """Keeps one checkpoint: under DDP rank 0's, under FSDP each rank its own shard."""

    def __init__(self, folder: Path, strategy: str, rank: int) -> None:
        self._writes = strategy == "fsdp" or rank == 0
        self._path = folder / f"{strategy}-{rank if strategy == 'fsdp' else 0}.pt"

    def save(self, model: nn.Module, stall_seconds: float) -> None:
        """Atomic: a reader finds the old one or the new one."""
        if not self._writes:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        torch.save({name: local(value) for name, value in model.state_dict().items()}, draft)
        time.sleep(stall_seconds)
        draft.replace(self._path)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Back to the last checkpoint of this run, with a fresh optimizer; all ranks must call it in the same step."""
        state = torch.load(self._path, map_location="cpu")
        with torch.no_grad():
            for name, value in model.state_dict().items():
                local(value).copy_(state[name])
        optimizer.state.clear()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shard(model: GPT) -> GPT:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
    """One update, of which this share reaches the weights."""
    before = [local(parameter).detach().clone() for parameter in model.parameters()] if share < 1 else []
    optimizer.step()
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), before, strict=False):
            local(parameter).lerp_(old, 1 - share)


def accumulating(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Gradients are reduced with the last micro-batch only."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
        return nullcontext()
    return nullcontext() if last else model.no_sync()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--steps", type=int, default=0, help="0: until stopped")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--workers", type=int, default=2, help="loader workers per rank")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    parser.add_argument("--checkpoints", type=Path, default=Path("build/train_gpt"), help="folder for checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps")
    parser.add_argument("--lab", help="the lab whose faults this job suffers from, such as http://127.0.0.1:8000")
    return parser.parse_args()


def main() -> None:
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    train(args, device, dist.get_rank())
    dist.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device, rank: int) -> None:
    torch.manual_seed(0)
    config = Config(n_layer=args.layers, n_head=args.heads, n_embd=args.width, sequence=args.sequence)
    model = GPT(config).to(device)
    stall = torch.zeros(1).share_memory_()
    faults = Faults(args.lab, rank, stall)
    data = StandardLibrary(args.sequence, samples=1 << 30, seed=rank, stall=stall)
    loader = DataLoader(data, batch_size=args.batch, num_workers=args.workers, pin_memory=device.type == "cuda")
    sample = [torch.stack([part] * args.batch).to(device) for part in data[0]]
    drag_forward, drag_backward = (Drag(device, seconds) for seconds in pass_seconds(model, *sample))
    model.norm.register_forward_hook(lambda module, inputs, x: Dragged.apply(x, drag_backward, faults))

    monitor = StepMonitor.from_env(
        model=model,
        model_name=f"GPT {args.layers}×{args.width}",
        tokens_per_step=args.batch * args.accumulate * args.sequence,
        sequence_length=args.sequence,
        peak=None if device.type == "cuda" else "measured",
        clip_norm=args.clip,
        gradient_band=(0.0, 20 * args.clip),
    )
    model = shard(model) if args.strategy == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    monitor.wrap(model, optimizer)

    saver = Saver(args.checkpoints, args.strategy, rank)
    saver.save(model, 0.0)  # so that there is something to go back to
    batches = iter(monitor.batches(loader))
    exploding, began = False, time.monotonic()
    if rank == 0:
        log.info(
            "training %s parameters on %d ranks",
            f"{sum(p.numel() for p in model.parameters()):,}",
            dist.get_world_size(),
        )
    for step in range(args.steps) if args.steps else count():
        faults.begin(step)
        scale = faults.agreed("gradient_explosion")
        if exploding and scale == 1:
            saver.load(model, optimizer)
            log.info("step %d: back to the last checkpoint", step)
        exploding = scale != 1
        for micro in range(args.accumulate):
            batch = next(batches)
            with monitor.phase("h2d"):
                inputs, targets = (part.to(device, non_blocking=True) for part in batch)
            with accumulating(model, last=micro == args.accumulate - 1):
                with monitor.phase("forward"):
                    loss = model(inputs, targets)
                    drag_forward.pull(faults.compute_factor)
                with monitor.phase("backward"):
                    (loss / args.accumulate).backward()
        with monitor.phase("optimizer"):
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * scale
            norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf") if exploding else args.clip)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            update(model, optimizer, faults.agreed("loss_plateau"))
            optimizer.zero_grad()
        monitor.step_done(loss=loss, grad_norm=norm, clipped=False if exploding else None, step=step)
        if step % args.checkpoint_every == args.checkpoint_every - 1 and not exploding:
            with monitor.phase("checkpoint"):
                saver.save(model, faults.level("checkpoint_stall") if rank == 0 else 0.0)
        if rank == 0 and step % LOG_EVERY == 0:
            log.info(
                "step %d: loss %.3f, %.1f steps a second", step, loss.item(), (step + 1) / (time.monotonic() - began)
            )
    monitor.close()


if __name__ == "__main__":
    main()
