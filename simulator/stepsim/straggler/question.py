"""What the straggler calculator is asked: one type for the command, the page's address and Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MOST_GPUS = 16_384
LONGEST_MS = 600_000.0

Milliseconds = Annotated[float, Field(ge=0, le=LONGEST_MS)]


class StragglerError(ValueError):
    """A question that makes no sense: it says which part, and what would."""


class Straggler(BaseModel):
    """Times are of a healthy GPU; percentages are numbers such as 70."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS, description="GPUs in the job.")] = 64
    load_ms: Annotated[Milliseconds, Field(description="Loading the batch, in milliseconds.")] = 30.0
    compute_ms: Annotated[
        float, Field(gt=0, le=LONGEST_MS, description="Compute of a healthy GPU, in milliseconds.")
    ] = 300.0
    allreduce_ms: Annotated[Milliseconds, Field(description="All-reduce, in milliseconds.")] = 80.0
    slow_gpus: Annotated[int, Field(ge=0, le=MOST_GPUS, description="How many GPUs are slow.")] = 1
    slow_speed: Annotated[float, Field(ge=5, le=100, description="Their speed, in percent of a healthy one's.")] = 70.0
    variability: Annotated[
        float, Field(ge=0, le=30, description="Standard deviation of every GPU's compute time, in percent.")
    ] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32, description="Of the one draw that is shown.")] = 0
    price: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="Per GPU-hour; without it no money is told."),
    ] = None
    currency: Annotated[str, Field(max_length=12, description="What the price is in, such as EUR.")] = ""

    @model_validator(mode="after")
    def _some_are_left(self) -> Self:
        if self.slow_gpus > self.gpus:
            raise ValueError(
                f"slow_gpus is {self.slow_gpus}, and there are {self.gpus} GPUs: at most all of them are slow"
            )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From values, which may be text. Raises ``StragglerError``."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise StragglerError("; ".join(map(_said, error.errors()))) from None


def _said(problem: Any) -> str:
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"there is no {name!r}; there are {', '.join(Straggler.model_fields)}"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    return f"{name}: {problem['msg'][0].lower()}{problem['msg'][1:]}, and got {problem['input']!r}"
