"""A drill: what happens to a job, what is asked of the rules, and how good and bad rules for it look.

To add a drill: add a YAML file to ``drills/``, or give ``stepscope practice`` the path of one. ``stepscope practice schema``
prints the format as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from stepsim.board import FaultBoard, FaultError
from stepsim.durations import parse_duration
from stepsim.job import Job, JobError, load_job

PRESET = "cluster"
RUN = "practice"
"""The label ``run`` of every drill's series."""
GPUS_PER_NODE = 8
ACCELERATOR = "A100 SXM"
"""Its steps take a second: a day of them is simulated in a third of the time that an H100's would take."""


def _seconds(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


Duration = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=str | float),
    Field(ge=0, description="Such as 30s, 5m or 1h; a number is seconds."),
]
Positive = Annotated[Duration, Field(gt=0)]


class DrillError(ValueError):
    """A drill that does not exist, or a file that does not describe one."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Seeds(Part):
    practice: list[Annotated[int, Field(ge=0)]] = Field(
        default=[1, 2, 3], min_length=1, description="What a preview is judged on."
    )
    sealed: int = Field(
        default=3, ge=1, le=20, description="How many further ones a submission is judged on; they are not told."
    )


class Flaps(Part):
    """The fault comes and goes while its incident lasts."""

    lasts: Positive
    pause: Positive


class Incident(Part):
    """One fault of the catalogue, struck once per seed, at a time and on a target that the seed draws."""

    fault: str = Field(description="Its name in the catalogue.")
    target: Literal["rank", "node", "run"] | None = Field(
        default=None, description="What it strikes; by default the fault's first kind."
    )
    severity: float | None = Field(default=None, description="By default the fault's plain one.")
    ramp: Duration = 0.0
    lasts: Positive = 1200.0
    flaps: Flaps | None = None
    overlaps: bool = Field(default=False, description="It begins half-way through the incident before it.")
    expect: Literal["page", "ticket", "silence"] = Field(
        default="page", description="What a good rule does. Silence: whatever fires is a false alarm."
    )
    detect_within: Positive = 300.0
    reset_within: Positive = 300.0


class AlertRule(Part):
    """As in a Prometheus rule file."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    alert: str
    expr: str
    for_: str | None = Field(default=None, alias="for")
    keep_firing_for: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Tempting(Part):
    """Rules that many would write, and why they fail."""

    why: str
    rules: list[AlertRule] = Field(min_length=1)


class Drill(Part):
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    goal: str
    seeds: Seeds = Seeds.model_validate({})
    quiet_hours: float = Field(default=12.0, gt=0, le=168, description="Healthy hours over all sealed seeds together.")
    ranks: int = Field(default=16, ge=2, le=256, description="GPUs; a node has eight.")
    scrape: Positive = 15.0
    eval: Positive = 30.0
    incidents: list[Incident] = Field(min_length=1)
    distractors: list[Literal["checkpoint", "evaluation", "job_restart"]] = ["checkpoint", "evaluation"]
    job: dict[str, Any] = Field(default={}, description="What differs from the preset, as in a job file.")
    rules_budget: int = Field(default=4, ge=1, description="So many alert rules may be submitted.")
    look_at: list[str] = Field(default=[], description="Dashboards and queries to begin with.")
    hints: list[str] = []
    debrief: str
    reference: list[AlertRule] = Field(min_length=1)
    tempting: list[Tempting] = Field(min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> Drill:
        """Every incident can be drawn for this job."""
        try:
            job = self.make_job()
        except JobError as error:
            raise ValueError(str(error)) from None
        board = FaultBoard(job)
        for number, incident in enumerate(self.incidents, 1):
            request = {"fault": incident.fault, "severity": incident.severity, "target": example_target(incident, job)}
            try:
                board.check({key: value for key, value in request.items() if value is not None}, 0.0)
            except FaultError as error:
                raise ValueError(f"incidents[{number}].{error.field}: {error}") from None
        if self.incidents[0].overlaps:
            raise ValueError("incidents[1].overlaps: there is none before it")
        if all(incident.expect == "silence" for incident in self.incidents):
            raise ValueError("incidents: at least one must expect a page or a ticket")
        if self.eval % self.scrape and self.scrape % self.eval:
            raise ValueError("eval: must be a multiple of scrape, or its divisor")
        return self

    def make_job(self) -> Job:
        """What trains. Raises ``JobError``."""
        overrides: dict[str, Any] = {"accelerator": ACCELERATOR, **self.job, "run": RUN}
        nodes, rest = divmod(self.ranks, GPUS_PER_NODE)
        shape = (
            {"nodes": nodes, "gpus_per_node": GPUS_PER_NODE} if not rest else {"nodes": 1, "gpus_per_node": self.ranks}
        )
        schedule = dict(overrides.pop("schedule", {}))
        for name in ("checkpoint", "evaluation"):
            if name not in self.distractors:
                schedule[f"{name}_every_steps"] = 0
        return load_job(PRESET, **{**shape, **overrides, "schedule": schedule or None})

    @property
    def seed_seconds(self) -> float:
        """Healthy time of one seed."""
        return 3600 * self.quiet_hours / self.seeds.sealed


def example_target(incident: Incident, job: Job) -> dict[str, Any] | None:
    """The last of its kind; None leaves it to the fault."""
    targets: dict[str, dict[str, Any]] = {
        "rank": {"rank": job.ranks - 1},
        "node": {"node": job.node_name(job.nodes - 1)},
        "run": {"run": True},
    }
    return targets[incident.target] if incident.target else None


def rule_text(rules: list[AlertRule], group: str) -> str:
    """A rule file of them."""
    written = [rule.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True) for rule in rules]
    text: str = yaml.dump({"groups": [{"name": group, "rules": written}]}, Dumper=_Dumper, sort_keys=False, width=120,
                          allow_unicode=True)  # fmt: skip
    return text


class _Dumper(yaml.SafeDumper):
    """Writes what has several lines as people do."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def drills() -> dict[str, Drill]:
    """Those that come along, in their order."""
    folder = files("stepsim.practice") / "drills"
    paths = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yml")), key=lambda entry: entry.name)
    found = [read_drill(entry.read_text(encoding="utf-8"), entry.name) for entry in paths]
    return {drill.id: drill for drill in found}


def find_drill(name: str) -> Drill:
    """By id, or from a file. Raises ``DrillError``."""
    if name.endswith((".yml", ".yaml")):
        try:
            return read_drill(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise DrillError(f"cannot read {name}: {getattr(error, 'strerror', error)}") from None
    known = drills()
    if name not in known:
        raise DrillError(f"no drill {name!r}; there are {', '.join(known)}. A file of your own ends in .yml")
    return known[name]


def read_drill(text: str, name: str) -> Drill:
    """Raises ``DrillError``, which names the key and what it may be."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DrillError(f"{name} is not YAML: {error}") from None
    if not isinstance(content, Mapping):
        raise DrillError(
            f"{name} must hold a mapping, with id, title, goal and incidents; see 'stepscope practice schema'"
        )
    try:
        return Drill.model_validate(content)
    except ValidationError as error:
        raise DrillError("; ".join(f"{name}: {_explained(problem)}" for problem in error.errors())) from None


def _explained(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(key + 1) if isinstance(key, int) else key for key in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = ", ".join(_fields(problem["loc"][:-1]))
        return f"unknown key {where!r}; here there are {known}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("value_error", "missing"):
        return f"{where}: {message}".removeprefix(": ")
    return f"{where}: {message}, got {problem['input']!r}"


_PARTS: dict[str, type[Part]] = {
    "seeds": Seeds, "incidents": Incident, "flaps": Flaps, "reference": AlertRule, "rules": AlertRule, "tempting": Tempting,
}  # fmt: skip


def _fields(path: tuple[int | str, ...]) -> list[str]:
    named = [key for key in path if key in _PARTS]
    part = _PARTS[str(named[-1])] if named else Drill
    return [field.alias or name for name, field in part.model_fields.items()]
