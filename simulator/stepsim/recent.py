"""The last half minute of a job in words and numbers, for the console: no Prometheus needed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from stepscope.culprit import Window, find_culprit
from stepscope.mfu import mfu
from stepscope.phases import DATA_WAIT, PHASES
from stepsim.draws import FloatArray
from stepsim.engine import Engine
from stepsim.job import Job

WINDOW_SECONDS = 30.0
TRACE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    time: float
    steps: int
    """Finished laps."""
    path: FloatArray
    late: FloatArray
    """Seconds, shape (phases, ranks)."""
    late_steps: FloatArray
    """Shape (ranks,)."""
    utilization: float


class Recent:
    """Sampled once a second by the engine's thread; read by the API's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: deque[Sample] = deque(maxlen=int(WINDOW_SECONDS) + 1)
        self._trace: deque[dict[str, float | None]] = deque(maxlen=int(TRACE_SECONDS))
        self._next = engine.now

    def sample(self) -> None:
        """Take note once a second, from the first finished window on: before, nothing is known yet."""
        engine = self._engine
        if engine.now < self._next or engine.telemetry.gpus.utilization.max() == 0:
            return
        self._next = engine.now + 1.0
        with engine.lock:
            referee = engine.referee
            self._samples.append(
                Sample(
                    time=engine.now,
                    steps=referee.outcomes["complete"],
                    path=np.array(referee.path_seconds),
                    late=np.array(referee.late_seconds),
                    late_steps=np.array(referee.late_steps, dtype=float),
                    utilization=float(engine.telemetry.gpus.utilization.mean()),
                )
            )
        report = self.report()
        self._trace.append({key: report[key] for key in ("time", "utilization", "mfu", "data_wait")})

    def report(self) -> dict[str, Any]:
        """Ratios are shares of wall time; values that are not known yet are None."""
        samples = list(self._samples)
        job = self._engine.job
        run = self._engine.totals.run
        first, last = (samples[0], samples[-1]) if samples else (None, None)
        steps = last.steps - first.steps if first and last else 0
        path = last.path - first.path if first and last else np.zeros(len(PHASES))
        wall = float(path.sum())
        known = steps > 0 and wall > 0
        mean = float(np.mean([sample.utilization for sample in samples])) if samples else None
        return {
            "time": last.time if last else None,
            "utilization": mean,
            "mfu": _mfu(job, steps / wall) if known else None,
            "step_seconds": wall / steps if known else None,
            "critical_path": dict(zip(PHASES, (path / wall).tolist(), strict=True)) if known else None,
            "data_wait": float(path[DATA_WAIT] / wall) if known else None,
            "culprit": _culprit(job, first, last, wall) if known and first and last else None,
            "loss": _finite(run.loss),
            "gradient_norm": _finite(run.gradient_norm),
            "nonfinite_steps": run.nonfinite,
        }

    def trace(self) -> list[dict[str, float | None]]:
        return list(self._trace)


def _mfu(job: Job, steps_per_second: float) -> float:
    return mfu(
        tokens_per_second=job.tokens_per_gpu * steps_per_second,
        flops_per_token=job.model.flops_per_token,
        peak_flops=job.gpu.peak_flops,
    )


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or abs(value) < inf else {"nan": "NaN"}.get(str(value), str(value))


def _culprit(job: Job, first: Sample, last: Sample, wall: float) -> dict[str, Any] | None:
    """The rank, or else the node, that holds everyone up."""
    window = Window(
        laps=last.steps - first.steps,
        wall_seconds=wall,
        late_seconds=(last.late - first.late).tolist(),
        late_steps=(last.late_steps - first.late_steps).tolist(),
    )
    found = find_culprit(window, [rank // job.gpus_per_node for rank in range(job.ranks)])
    if found is None:
        return None
    who = {"rank": found.index} if found.kind == "rank" else {"node": job.node_name(found.index)}
    return {**who, "phase": found.phase, "share": found.share}
