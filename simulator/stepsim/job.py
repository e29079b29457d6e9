"""What is simulated: a training job as its user would describe it, and the presets.

To add a preset: add a row to ``PRESETS``. Any field can be overridden by a YAML file of the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stepscope.mfu import transformer_flops_per_token
from stepsim.accelerators import ACCELERATORS, GIB, Accelerator

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


MOST_RANKS = 16_384


class JobError(ValueError):
    """A preset, file or override that does not describe a job."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Transformer(Part):
    """A decoder transformer."""

    name: str = "MPT-1B"
    parameters: Annotated[float, Field(ge=1e6)] = 1_315_950_592
    layers: Count = 24
    heads: Count = 16
    head_dim: Count = 128
    sequence: Count = 2048
    vocabulary: Count = 50_368

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    @property
    def flops_per_token(self) -> float:
        """PaLM's convention, all parameters, attention not halved."""
        return transformer_flops_per_token(
            parameters=self.parameters, layers=self.layers, heads=self.heads, head_dim=self.head_dim,
            sequence=self.sequence,
        )  # fmt: skip


class Kernels(Part):
    """How well the model's kernels use the GPU."""

    matmul_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.86
    """Of the peak at the actual clock."""
    hidden_passes: Positive = 198
    """How often a layer moves the hidden vector of a token through HBM outside matmuls, forward and backward."""
    hbm_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.85
    matmul_dram: Annotated[float, Field(ge=0, le=1)] = 0.4
    """DRAM activity while matmuls run."""
    launch_seconds: NotNegative = 0.006
    sm_active: Annotated[float, Field(gt=0, le=1)] = 0.95
    occupancy: Annotated[float, Field(gt=0, le=1)] = 0.14
    jitter: Annotated[float, Field(ge=0, le=0.15)] = 0.015
    """Standard deviation of a rank's compute time from step to step, relative."""


class Loader(Part):
    """The data loader of a rank, and the storage that it reads."""

    workers: Count = 4
    prefetch: Count = 2
    """Batches that each worker keeps ready."""
    read_seconds: Positive = 0.60
    read_sigma: NotNegative = 0.25
    """Of the logarithm of a read's time."""
    decode_seconds: NotNegative = 0.30
    bytes_per_token: Positive = 8
    worker_memory_bytes: Positive = 2 * GIB
    stall_probability: Annotated[float, Field(ge=0, le=1)] = 1e-5
    """Healthy storage hiccups now and then."""
    stall_seconds: NotNegative = 1.0


class Network(Part):
    nic_bytes_per_second: Positive = 50e9
    """Line rate of the NIC of one GPU: 400 Gb/s."""
    gradient_bytes: Positive = 2
    """Per parameter: bf16 gradients."""


class Schedule(Part):
    """What happens beside the steps."""

    checkpoint_every_steps: Annotated[int, Field(ge=0)] = 2000
    checkpoint_bytes_per_parameter: Positive = 14
    """bf16 weights, fp32 master weights and two Adam moments."""
    checkpoint_bytes_per_second: Positive = 5e9
    evaluation_every_steps: Annotated[int, Field(ge=0)] = 500
    evaluation_batches: Count = 8


DECAY_SHARE = 0.2


class Optimization(Part):
    """The optimizer and the catapult model of its loss (``stepsim.learning``)."""

    learning_rate: Positive = 3e-4
    clip: Positive | None = 1.0
    """Gradient norm above which the gradient is scaled down; null never clips."""
    band: Positive = 0.6
    """Upper end of the gradient norm's healthy band."""
    optimizer_seconds: NotNegative = 0.018
    schedule_steps: Annotated[int, Field(ge=0)] = 0
    """After so many steps the learning rate is 0; it falls to it over the last fifth (warmup-stable-decay, Hu et al., arXiv
    2404.06395, without the warmup). 0: it stays as it is."""

    def learning_rate_share(self, step: int) -> float:
        """Of the configured learning rate, what the schedule gives at a step."""
        if not self.schedule_steps:
            return 1.0
        return min(1.0, max(0.0, (self.schedule_steps - step) / (DECAY_SHARE * self.schedule_steps)))


class Job(Part):
    """A data-parallel training job."""

    run: Annotated[str, Field(min_length=1, max_length=64)] = "cluster"
    nodes: Annotated[int, Field(ge=1, le=4096)] = 4
    gpus_per_node: Annotated[int, Field(ge=1, le=16)] = 8
    accelerator: str = "H100 SXM"
    cpus_per_node: Count = 32
    host_memory_bytes_per_gpu: Positive = 256 * GIB
    model: Transformer = Transformer()
    tokens_per_gpu: Count = 16_384
    host_gap_seconds: NotNegative = 0.004
    kernels: Kernels = Kernels()
    loader: Loader = Loader()
    network: Network = Network()
    schedule: Schedule = Schedule()
    optimization: Optimization = Optimization()

    @field_validator("accelerator")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ACCELERATORS:
            raise ValueError(f"unknown accelerator {name!r}; known are {', '.join(ACCELERATORS)}")
        return name

    @model_validator(mode="after")
    def _fits(self) -> Job:
        if self.ranks > MOST_RANKS:
            raise ValueError(f"{self.ranks:,} ranks are more than the {MOST_RANKS:,} that are simulated in real time")
        needed, there = self.memory_bytes()["reserved"], self.gpu.memory_bytes
        if needed > there:
            raise ValueError(
                f"{self.model.name} with {self.tokens_per_gpu} tokens per GPU needs {needed / GIB:.0f} GiB, "
                f"and a {self.accelerator} has {there / GIB:.0f}: choose a smaller model or fewer tokens"
            )
        return self

    @property
    def gpu(self) -> Accelerator:
        return ACCELERATORS[self.accelerator]

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one rank."""
        return self.model.flops_per_token * self.tokens_per_gpu

    def node_name(self, node: int) -> str:
        return f"node-{node}"

    def memory_bytes(self) -> dict[str, float]:
        """Device memory of one rank under DDP, by kind.

        Sixteen bytes per parameter: bf16 weights and gradients, fp32 master weights and two Adam moments.
        Activations: 34 bytes per token, layer and hidden unit (Korthikanti et al., arXiv 2205.05198, eq. 2 without its
        attention term, which fused attention removes), and the logits in bf16 and fp32.
        """
        n = self.model.parameters
        activations = self.tokens_per_gpu * (34 * self.model.layers * self.model.hidden + 6 * self.model.vocabulary)
        parts = {"parameters": 2.0 * n, "gradients": 2.0 * n, "optimizer": 12.0 * n}
        allocated = sum(parts.values())
        peak = allocated + activations
        return {"allocated": allocated, "reserved": 1.02 * peak, "peak": peak, **parts}


LAPTOP = {
    "run": "laptop",
    "nodes": 1,
    "gpus_per_node": 4,
    "accelerator": "RTX 4090",
    "cpus_per_node": 16,
    "host_memory_bytes_per_gpu": 32 * GIB,
    "tokens_per_gpu": 8192,
    "model": {
        "name": "GPT-2 medium", "parameters": 354_823_168, "layers": 24, "heads": 16, "head_dim": 64,
        "sequence": 1024, "vocabulary": 50_257,
    },
    "schedule": {"checkpoint_bytes_per_second": 1.5e9},
}  # fmt: skip

VISION = {
    "run": "vision",
    "nodes": 1,
    "cpus_per_node": 128,
    # 512 images of 14 × 14 patches and a class token, copied to the GPU as 3 × 224 × 224 numbers of fp32.
    "tokens_per_gpu": 512 * 197,
    "model": {
        "name": "ViT-B/16", "parameters": 86_567_656, "layers": 12, "heads": 12, "head_dim": 64, "sequence": 197,
        "vocabulary": 1000,
    },
    "kernels": {"hidden_passes": 80},
    "loader": {"bytes_per_token": 3 * 224 * 224 * 4 / 197, "workers": 12},
    "optimization": {"optimizer_seconds": 0.002},
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "laptop": LAPTOP,
    "node": {"run": "node", "nodes": 1},
    "vision": VISION,
    "cluster": {"run": "cluster", "nodes": 4},
    # The storage of larger clusters is larger, too: a job meets a hiccup every few minutes at any size.
    "pod": {"run": "pod", "nodes": 32, "loader": {"stall_probability": 1e-6}},
    "large": {"run": "large", "nodes": 128, "loader": {"stall_probability": 3e-7}},
}


def load_job(preset: str = "cluster", file: Path | None = None, **overrides: Any) -> Job:
    """A preset, overridden by a YAML file, overridden by keyword arguments that are not None."""
    if preset not in PRESETS:
        raise JobError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    given = {key: value for key, value in overrides.items() if value is not None}
    settings = _merged(_merged(PRESETS[preset], _read(file) if file else {}), given)
    try:
        return Job.model_validate(settings)
    except ValidationError as error:
        raise JobError(_explain(error, file)) from None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError(f"{file} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise JobError(f"{file} must hold a mapping of settings, such as 'nodes: 8'")
    return content


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if nested else value
    return merged


def _explain(error: ValidationError, file: Path | None) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {where!r}; here there are {', '.join(_fields(problem['loc'][:-1]))}")
        else:
            ours = problem["type"] == "value_error"
            got = "" if ours else f", got {problem['input']!r}"
            lines.append(f"{where}: {problem['msg']}{got}".removeprefix(": ").replace("Value error, ", ""))
    return f"{file or 'job'}: " + "; ".join(lines)


def _fields(path: tuple[int | str, ...]) -> list[str]:
    part: type[BaseModel] = Job
    for key in path:
        annotation = part.model_fields[str(key)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            part = annotation
    return list(part.model_fields)
