"""Mild and severe, with another seed: the same alert, in time, and no other that the fault does not explain."""

import pytest

from stepsim.faults import FAULTS
from stepsim.job import load_job

pytestmark = pytest.mark.prometheus

HEALTHY, DURING, AFTER = 120, 240, 330
CASES = [
    # fault, grade, alert, seconds within which it must fire, alerts that are symptoms of it
    ("straggler", "mild", "TrainingRankStraggling", 90, set()),
    ("thermal_throttle", "mild", "TrainingGpuThermalThrottling", 90, {"TrainingRankStraggling"}),
    ("power_cap", "mild", "TrainingGpuPowerCapped", 60, {"TrainingRankStraggling"}),
    ("memory_bound", "mild", "TrainingMemoryBound", 120, set()),
    ("small_batch", "mild", "TrainingBatchSmall", 150, set()),
    ("sequence_imbalance", "mild", "TrainingSequencesImbalanced", 120, set()),
    ("jitter", "mild", "TrainingComputeJitter", 150, set()),
    ("data_starvation", "mild", "TrainingDataStarved", 120, set()),
    ("data_starvation", "severe", "TrainingDataStarved", 90, set()),
    ("storage_node_slow", "severe", "TrainingNodeStorageSlow", 90, set()),
    ("storage_outage", "severe", "TrainingStorageOutage", 150, {"GpuUtilizationLow"}),
    ("cpu_starvation", "mild", "TrainingCpuStarved", 120, set()),
    ("network_degradation", "mild", "TrainingNetworkDegraded", 120, set()),
    ("nccl_fallback", "mild", "TrainingNcclFallback", 120, set()),
    ("gc_pause", "mild", "TrainingHostPauses", 150, set()),
    ("silent_corruption", "mild", "TrainingGradientCorrupt", 90, set()),
]


@pytest.mark.parametrize(("name", "grade", "alert", "within", "explained"), CASES, ids=lambda value: str(value))
def test_a_fault_of_another_grade_fires_its_alert_and_no_other(tmp_path, replay, name, grade, alert, within, explained):
    """From its start to five minutes and a half after its end: what drains or tails off accuses nobody either."""
    job = replay(load_job("cluster"), step=5, seed=12).run(HEALTHY)
    request = {"fault": name, "severity": getattr(FAULTS[name].severity, grade)}
    fault = job.engine.board.start(request, now=job.engine.now)
    job.run(DURING)
    job.engine.board.stop(fault.id)
    firings = job.run(AFTER).firings(tmp_path)
    assert {found for found, _ in firings} - explained == {alert}
    (seconds,) = [at for (found, _), at in firings.items() if found == alert]
    assert 0 <= seconds[0] - HEALTHY <= within
    assert seconds[-1] < HEALTHY + DURING + AFTER - 5
