"""What is asked of the planner, by the command line or over HTTP: the same fields, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from stepsim.accelerators import ACCELERATORS
from stepsim.job import MOST_RANKS, Job, load_job
from stepsim.planner.efficiency import matmul_efficiency
from stepsim.planner.layout import ALIASES, Layout, LayoutError
from stepsim.planner.machine import Machine, MachineError, linked
from stepsim.planner.models import PlannedTransformer, UnknownModel, canonical, changed, find_model

DEFAULT_TOKENS_PER_GPU = 8_192
BITS = 8
GIGA = 1e9
DIMENSIONS = ("parameters", "layers", "heads", "head_dim", "sequence", "vocabulary")


Some = Annotated[int, Field(ge=1, le=10**9)]


class PlanError(ValueError):
    """A request that cannot be answered; says which field is wrong, and how."""


class PlanRequest(BaseModel):
    """A model, machines, a layout. Dimensions that are given replace those of the named model."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=64)] = "Llama 3 8B"
    parameters: Annotated[float, Field(ge=1e6, le=1e14)] | None = None
    layers: Annotated[int, Field(ge=1, le=1024)] | None = None
    heads: Annotated[int, Field(ge=1, le=1024)] | None = None
    head_dim: Annotated[int, Field(ge=1, le=1024)] | None = None
    sequence: Annotated[int, Field(ge=1, le=2**20)] | None = None
    vocabulary: Annotated[int, Field(ge=1, le=2**20)] | None = None

    accelerator: str = "H100 SXM"
    gpus: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 64
    gpus_per_node: Annotated[int, Field(ge=1, le=16)] = 8
    topology: Literal["nvswitch", "pcie"] | None = None
    """None: as the accelerator is sold."""
    nics_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """None: one for every GPU."""
    nic_gbps: Annotated[float, Field(ge=0.1, le=100_000)] = 400.0
    """Gigabits per second."""
    matmul_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the peak at the actual clock. None: as measured for the accelerator."""

    strategy: Annotated[
        Literal["ddp", "zero1", "zero2", "zero3"], BeforeValidator(lambda name: ALIASES.get(name, name))
    ] = "zero3"
    tp: Some = 1
    pp: Some = 1
    interleave: Some = 1
    microbatch: Some | None = None
    """Sequences. None: one in a pipeline, else all of a replica at once."""
    global_batch: Some | None = None
    """Sequences of the job in a step."""
    tokens_per_gpu: Some | None = None
    """A replica has tp × pp times as many."""
    recompute: Literal["none", "selective", "full"] = "none"
    sequence_parallel: bool = False
    fused_attention: bool = True
    overlap: bool = True
    gradient_bytes: Literal[2, 4] = 2
    max_gpus: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 1024
    """Up to where the scaling curve goes."""

    @model_validator(mode="after")
    def _one_batch(self) -> PlanRequest:
        if self.global_batch is not None and self.tokens_per_gpu is not None:
            raise ValueError("global_batch and tokens_per_gpu say the same thing: give one")
        if self.accelerator not in ACCELERATORS:
            raise ValueError(f"accelerator: unknown {self.accelerator!r}; there are {', '.join(ACCELERATORS)}")
        return self

    @field_validator("model")
    @classmethod
    def _known_by(cls, name: str) -> str:
        """As the model itself is written; one of one's own keeps its name."""
        return canonical(name)

    @classmethod
    def of(cls, given: Mapping[str, Any], job: Job | None = None) -> PlanRequest:
        """What is given, and the job's for what is not. Raises ``PlanError``."""
        settings = {**(_of_job(job, given) if job else {}), **{k: v for k, v in given.items() if v is not None}}
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise PlanError("; ".join(map(_explain, error.errors()))) from None


def _of_job(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """A model that is named replaces the job's, and a batch that is given its tokens."""
    own = {
        "accelerator": job.accelerator, "gpus": job.ranks, "gpus_per_node": job.gpus_per_node, "strategy": "ddp",
        "nic_gbps": job.network.nic_bytes_per_second * BITS / GIGA, "gradient_bytes": job.network.gradient_bytes,
        "matmul_efficiency": job.kernels.matmul_efficiency,
    }  # fmt: skip
    if given.get("model") is None:
        own |= {"model": job.model.name, **{name: getattr(job.model, name) for name in DIMENSIONS}}
    if given.get("global_batch") is None:
        own["tokens_per_gpu"] = job.tokens_per_gpu
    return own


def _explain(problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown field {where!r}; there are {', '.join(PlanRequest.model_fields)}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}, got {problem['input']!r}" if where else message


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A request, resolved: what ``predict`` takes."""

    job: Job
    model: PlannedTransformer
    layout: Layout
    machine: Machine


def resolve(request: PlanRequest, job: Job | None = None) -> Planned:
    """``job``: whose kernels, loader, optimizer and host are taken. Without one a preset's are, and data is always ready.

    Raises ``PlanError``.
    """
    try:
        base = job or _fed()
        model, machine = _whole(_model(request)), _machine(request)
        layout = _layout(request, model)
        layout.check(model, request.gpus_per_node)
    except (UnknownModel, MachineError, LayoutError) as error:
        raise PlanError(str(error)) from None
    efficiency = request.matmul_efficiency or matmul_efficiency(machine.gpu, base.kernels)
    kernels = base.kernels.model_copy(update={"matmul_efficiency": efficiency})
    network = base.network.model_copy(update={"gradient_bytes": float(request.gradient_bytes)})
    return Planned(job=base.model_copy(update={"kernels": kernels, "network": network}), model=model, layout=layout,
                   machine=machine)  # fmt: skip


@cache
def _fed() -> Job:
    """A preset whose data is always ready."""
    job = load_job()
    loader = job.loader.model_copy(update={"read_seconds": 1e-9, "decode_seconds": 0.0})
    return job.model_copy(update={"loader": loader})


def _model(request: PlanRequest) -> PlannedTransformer:
    given = {name: value for name in DIMENSIONS if (value := getattr(request, name)) is not None}
    if given.keys() == set(DIMENSIONS):
        return PlannedTransformer(name=request.model, **given)
    named = find_model(request.model)
    if given.keys() & {"heads", "head_dim"} and "parameters" not in given:
        raise PlanError("parameters: needed beside heads and head_dim, which change them")
    if given.keys() & {"layers", "vocabulary"} and "parameters" not in given:
        resized = changed(named, **given)
        embeddings = (1 + named.untied) * resized.vocabulary * resized.hidden
        given["parameters"] = named.layer_parameters * resized.layers + embeddings
    return changed(named, **given)


def _whole(model: PlannedTransformer) -> PlannedTransformer:
    if model.layer_parameters <= 0:
        embeddings = model.parameters - model.layer_parameters * model.layers
        raise PlanError(
            f"parameters: {model.parameters:g} are fewer than the embeddings' {embeddings:g}; nothing is left for layers"
        )
    return model


def _machine(request: PlanRequest) -> Machine:
    nics = request.nics_per_node or request.gpus_per_node
    return Machine(
        gpu=linked(ACCELERATORS[request.accelerator], request.topology),
        gpus_per_node=request.gpus_per_node,
        nic_bytes_per_second=nics / request.gpus_per_node * request.nic_gbps * GIGA / BITS,
    )


def _layout(request: PlanRequest, model: PlannedTransformer) -> Layout:
    tokens = _replica_tokens(request, model)
    return Layout(
        gpus=request.gpus, tp=request.tp, pp=request.pp, interleave=request.interleave,
        strategy=request.strategy,
        microbatches=_microbatches(request, model, tokens), tokens=tokens, recompute=request.recompute,
        sequence_parallel=request.sequence_parallel, fused_attention=request.fused_attention, overlap=request.overlap,
    )  # fmt: skip


def _replica_tokens(request: PlanRequest, model: PlannedTransformer) -> int:
    shards = request.tp * request.pp
    if request.global_batch is None:
        tokens = (request.tokens_per_gpu or max(DEFAULT_TOKENS_PER_GPU, model.sequence)) * shards
        if tokens < model.sequence:
            raise PlanError(f"tokens_per_gpu: a replica has {tokens}, less than one sequence of {model.sequence}")
        return tokens
    replicas = max(1, request.gpus // shards)
    if request.global_batch % replicas:
        raise PlanError(f"global_batch: {request.global_batch} sequences are not a multiple of the {replicas} replicas")
    return request.global_batch // replicas * model.sequence


def _microbatches(request: PlanRequest, model: PlannedTransformer, tokens: int) -> int:
    if request.microbatch is None and request.pp == 1:
        return 1
    size = request.microbatch or 1
    if tokens % (size * model.sequence):
        raise PlanError(
            f"microbatch: {size} sequences of {model.sequence} tokens do not divide the {tokens} tokens of a replica"
        )
    return tokens // (size * model.sequence)
