"""The planner's answer, ready for JSON: seconds, bytes and ratios, with the unit in every name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from stepsim.job import Job
from stepsim.planner.predict import Prediction, predict
from stepsim.planner.remedies import remedies
from stepsim.planner.request import Planned, PlanRequest, resolve
from stepsim.planner.scaling import PAYS, Point, curve, knee, sizes, strong, weak


def predict_from(query: Mapping[str, str]) -> dict[str, Any]:
    """The answer to a query string's fields, those of ``PlanRequest``. Raises ``PlanError``."""
    return answer(PlanRequest.of(query))


def answer(request: PlanRequest, job: Job | None = None) -> dict[str, Any]:
    """``job``: whose kernels, loader, optimizer and host are taken. Raises ``PlanError``."""
    planned = resolve(request, job)
    predicted = cache(lambda layout: predict(planned.job, planned.model, layout, planned.machine))
    prediction = predicted(planned.layout)
    counts = sizes(planned.layout, planned.machine, request.max_gpus)
    by_batch = (strong(planned.layout, gpus, planned.model.sequence) for gpus in counts)
    curves = {
        "weak": curve([weak(planned.layout, gpus) for gpus in counts], predicted),
        "strong": curve([layout for layout in by_batch if layout], predicted),
    }
    available = planned.machine.gpu.memory_bytes
    fits = prediction.memory.total <= available
    return {
        "request": request.model_dump(),
        "model": {**planned.model.model_dump(), "flops_per_token": planned.model.flops_per_token},
        "machine": _machine(planned),
        "prediction": {**_prediction(prediction), "fits": fits, "memory_available_bytes": available},
        "remedies": [] if fits else remedies(request, job),
        "scaling": {name: _curve(points, available) for name, points in curves.items()},
    }


def _machine(planned: Planned) -> dict[str, Any]:
    machine = planned.machine
    return {
        "accelerator": machine.gpu.name,
        "topology": "nvswitch" if machine.gpu.nvlink else "pcie",
        "gpus_per_node": machine.gpus_per_node,
        "nic_bytes_per_second": machine.nic_bytes_per_second,
        "busbw_bytes_per_second": machine.gpu.busbw_bytes_per_second,
        "matmul_efficiency_ratio": planned.job.kernels.matmul_efficiency,
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    layout, memory = prediction.layout, prediction.memory
    traffic = {"tensor": prediction.tensor, "pipeline": prediction.pipeline, "data": prediction.data}
    return {
        "gpus": layout.gpus, "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "microbatches": layout.microbatches,
        "tokens_per_step": layout.tokens * layout.dp,
        "step_seconds": prediction.step_seconds,
        "tokens_per_second": prediction.tokens_per_second,
        "mfu_ratio": prediction.mfu,
        "clock_mhz": prediction.mhz,
        "bubble_ratio": layout.bubble_ratio,
        "seconds": vars(prediction.parts).copy(),
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "communication": {
            name: {"sent_bytes_per_gpu": one.bytes_sent, "seconds": one.seconds} for name, one in traffic.items()
        },
    }  # fmt: skip


def _curve(points: Sequence[Point], available: float) -> dict[str, Any]:
    turn = knee(points)
    return {
        "knee_gpus": turn.gpus,
        "knee_is_last": turn is points[-1],
        "pays_ratio": PAYS,
        "points": [_point(point, available) for point in points],
    }


def _point(point: Point, available: float) -> dict[str, Any]:
    prediction = point.prediction
    return {
        "gpus": point.gpus,
        "tokens_per_step": prediction.layout.tokens * prediction.layout.dp,
        "step_seconds": prediction.step_seconds,
        "tokens_per_second": prediction.tokens_per_second,
        "efficiency_ratio": point.efficiency,
        "marginal_ratio": point.marginal,
        "memory_bytes": prediction.memory.total,
        "fits": prediction.memory.total <= available,
        "largest_loss": point.largest_loss,
        "seconds": vars(prediction.parts).copy(),
    }
