"""The fault catalogue as data: what there is, what its severity means, and the JSON Schema of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepsim.board import Job, default_target
from stepsim.durations import LONGEST_SECONDS
from stepsim.faults import Fault

DURATION = {
    "description": "seconds, or written like 90s, 10m or 1h30m; a fault's duration is longer than 0",
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": LONGEST_SECONDS},
        {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|d|h|m|s))+$"},
    ],
}


def catalogue(job: Job, faults: Mapping[str, Fault]) -> dict[str, Any]:
    return {
        "faults": [
            {
                "name": fault.name,
                "description": fault.description,
                "targets": list(fault.targets),
                "default_target": default_target(fault, job),
                "severity": asdict(fault.severity),
            }
            for fault in faults.values()
        ],
        "request_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "POST /faults",
            "oneOf": [_schema(fault, job) for fault in faults.values()],
        },
    }


def _schema(fault: Fault, job: Job) -> dict[str, Any]:
    scale = fault.severity
    targets: dict[str, Any] = {
        "rank": {"type": "integer", "minimum": 0, "maximum": job.ranks - 1},
        "node": {"enum": [job.node_name(node) for node in range(job.nodes)]},
        "run": {"const": True},
    }
    target = {
        "oneOf": [{"type": "object", "properties": {kind: targets[kind]}, "required": [kind], "additionalProperties": False}
                  for kind in fault.targets],
        "default": default_target(fault, job),
    }  # fmt: skip
    severity = {"type": "number", "description": scale.meaning, "minimum": scale.low, "maximum": scale.high,
                "default": scale.plain, "examples": [scale.mild, scale.plain, scale.severe]}  # fmt: skip
    return {
        "type": "object",
        "description": fault.description,
        "properties": {"fault": {"const": fault.name}, "target": target, "severity": severity, "ramp": DURATION,
                       "duration": DURATION},
        "required": ["fault"],
        "additionalProperties": False,
    }  # fmt: skip
