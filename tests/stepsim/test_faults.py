"""What must be seen of each fault: it follows from the parameters, through the pages that a scrape reads."""

import math

import numpy as np
import pytest

from stepscope.phases import ALLREDUCE, DATA_WAIT, PHASES
from stepsim.board import FaultBoard, FaultError
from stepsim.engine import Engine
from stepsim.job import load_job
from stepsim.pages import Pages

EPOCH = 1_700_000_000.0


class Run:
    """A job that has been healthy for a minute and more."""

    def __init__(self, preset="cluster", **overrides):
        job = load_job(preset, **overrides)
        self.engine = Engine(job, FaultBoard(job), seed=4, now=EPOCH)
        self.pages = Pages(self.engine, lambda: self.engine.now)
        self.wait(80)

    def wait(self, seconds):
        self.engine.advance(self.engine.now + seconds)
        return self

    def start(self, fault, **request):
        self.fault = self.engine.board.start({"fault": fault, **request}, now=self.engine.now)
        return self

    def stop(self):
        self.engine.board.stop(self.fault.id)

    def values(self, source, node, name, *labels):
        """Of every series with that name and these labels, in order."""
        lines = self.pages.text(source, node).splitlines()
        found = [
            line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and all(one in line for one in labels)
        ]
        return [float(line.rpartition(" ")[2]) for line in found]

    def gained(self, seconds, read):
        """By how much what ``read`` returns grows in that time."""
        before = np.array(read())
        self.wait(seconds)
        return np.array(read()) - before

    def path(self, seconds=60):
        """Share of the critical path by phase."""
        gained = self.gained(seconds, lambda: list(self.engine.referee.path_seconds))
        return dict(zip(PHASES, gained / gained.sum(), strict=True))

    def step_seconds(self, seconds=60):
        return seconds / self.gained(seconds, lambda: self.engine.totals.steps)


@pytest.fixture(scope="module")
def healthy_step():
    return Run().step_seconds()


def test_a_hot_gpu_climbs_for_a_minute_then_slows_down_alone():
    """87 °C and no more, bit 0x20, and a lower clock; its neighbours keep theirs."""
    run = Run().start("thermal_throttle", target={"rank": 5})
    seen = [run.wait(1).values("dcgm", "node-0", "DCGM_FI_DEV_GPU_TEMP")[5] for _ in range(90)]
    assert seen[0] < 80
    assert max(seen) == 87
    reasons = run.values("dcgm", "node-0", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    assert reasons[5] == 0x20
    assert set(reasons[:5] + reasons[6:]) == {0x4}
    clocks = run.values("dcgm", "node-0", "DCGM_FI_DEV_SM_CLOCK")
    assert clocks[5] < 0.8 * clocks[4]


def test_a_capped_gpu_draws_its_limit_and_only_the_limit_tells(healthy_step):
    """The throttle reason is that of its healthy peers; a clock at 70 % costs 16 to 21 % of the step, not 36."""
    run = Run().start("power_cap", target={"rank": 5}).wait(10)
    assert run.values("dcgm", "node-0", "DCGM_FI_DEV_POWER_MGMT_LIMIT")[5] == 0.55 * 700
    assert set(run.values("dcgm", "node-0", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")) == {0x4}
    assert run.values("dcgm", "node-0", "DCGM_FI_DEV_POWER_USAGE")[5] == pytest.approx(385, rel=0.06)
    assert 1.14 < run.step_seconds() / healthy_step < 1.21


def test_unfused_kernels_keep_every_gpu_busy_with_memory():
    """DRAM rises, tensor cores fall, nobody waits."""
    run = Run()
    before = run.engine.telemetry.gpus.activity("tensor").mean(), run.engine.telemetry.gpus.activity("dram").mean()
    run.start("memory_bound").wait(20)
    activity = run.engine.telemetry.gpus.activity
    assert activity("tensor").mean() < 0.75 * before[0]
    assert activity("dram").mean() > 1.2 * before[1]
    assert run.engine.telemetry.gpus.utilization.mean() > 0.97
    assert run.path()["allreduce"] < 0.01


def test_a_small_batch_is_mostly_what_a_step_costs_anyway():
    """Fewer tokens, a shorter step, and the optimizer a third of it."""
    run = Run().start("small_batch").wait(10)
    assert run.values("training", "node-0", "training_run_info") == [1]
    assert 'tokens_per_step="1024"' in run.pages.text("training", "node-0")
    assert run.path()["optimizer"] > 0.3
    assert run.step_seconds() < 0.06


def test_unequal_sequences_give_ranks_unequal_tokens_and_no_culprit():
    """The same ranks have more in one step and fewer in the next; MFU counts what was really done."""
    run = Run().start("sequence_imbalance").wait(5)
    tokens = run.gained(60, lambda: run.values("training", "node-0", "training_tokens_total"))
    assert 0.005 < tokens.std() / tokens.mean() < 0.1
    late = run.gained(60, lambda: list(run.engine.referee.late_steps))
    assert late.max() / late.sum() < 0.15


def test_jitter_makes_every_step_wait_at_equal_work(healthy_step):
    """Tokens are the same everywhere."""
    run = Run().start("jitter").wait(5)
    tokens = run.gained(60, lambda: run.values("training", "node-0", "training_tokens_total"))
    assert tokens.std() == 0
    assert run.step_seconds() > 1.1 * healthy_step


def test_starved_cpus_are_busy_and_do_not_wait_for_storage():
    """User time up, iowait down, on that node; its governor tells why."""
    run = Run().start("cpu_starvation", target={"node": "node-1"}).wait(60)
    modes = {
        mode: run.gained(
            30, lambda mode=mode: run.values("node", "node-1", "node_cpu_seconds_total", f'mode="{mode}"')
        ).mean()
        / 30
        for mode in ("user", "iowait")
    }
    assert modes["user"] > 0.75
    assert modes["iowait"] < 0.15
    assert 'governor="powersave"' in run.pages.text("node", "node-1")
    assert 'governor="performance"' in run.pages.text("node", "node-0")
    assert run.path()["data_wait"] > 0.25


def test_a_downgraded_link_shows_and_costs_only_where_batches_are_large(healthy_step):
    """Generation 3 with 8 lanes: nothing with tokens, a quarter of the step with images."""
    tokens = Run().start("pcie_downgrade", target={"rank": 3}).wait(5)
    assert tokens.step_seconds() == pytest.approx(healthy_step, rel=0.02)
    images = Run("vision").start("pcie_downgrade", target={"rank": 3}).wait(5)
    assert images.values("dcgm", "node-0", "DCGM_FI_DEV_PCIE_LINK_GEN")[3] == 3
    assert images.values("dcgm", "node-0", "DCGM_FI_DEV_PCIE_LINK_WIDTH")[3] == 8
    assert images.values("dcgm", "node-0", "DCGM_FI_DEV_PCIE_MAX_LINK_GEN")[3] == 5
    assert images.path()["h2d"] > 0.2


def test_a_slow_network_raises_everyones_floor_and_nobody_lags():
    """Transfer, not waiting; below eight times slower the backward hides it."""
    hidden = Run().start("network_degradation", severity=7).wait(5)
    assert hidden.path()["allreduce"] < 0.03
    run = Run().start("network_degradation").wait(60)
    floors = np.concatenate([run.values("training", f"node-{n}", "training_allreduce_floor_seconds") for n in range(4)])
    assert floors.min() > 0.08
    waits = run.gained(30, lambda: list(run.engine.referee.wait_seconds))
    assert waits.max() / 30 < 0.06


def test_one_slow_rail_slows_the_same_collective(healthy_step):
    """And its port says at which rate it runs."""
    run = Run().start("network_degradation", target={"rank": 6}).wait(30)
    rates = run.values("node", "node-0", "node_infiniband_rate_bytes_per_second")
    assert rates[6] == pytest.approx(50e9 / 24)
    assert set(rates[:6]) == {50e9}
    assert run.step_seconds() > 1.2 * healthy_step


def test_a_fallback_moves_the_bytes_elsewhere():
    """From InfiniBand to Ethernet; in a job of one node from NVLink to PCIe."""
    run = Run().start("nccl_fallback").wait(5)
    ports = run.gained(30, lambda: run.values("node", "node-0", "node_infiniband_port_data_transmitted_bytes_total"))
    assert ports.sum() == 0
    assert run.gained(30, lambda: run.values("node", "node-0", "node_network_transmit_bytes_total"))[0] > 30e9
    node = Run("node").start("nccl_fallback").wait(20)
    assert max(node.values("dcgm", "node-0", "DCGM_FI_PROF_NVLINK_TX_BYTES")) == 0
    assert max(node.engine.telemetry.gpus.pcie_sent_bytes_per_second()) > 1e9


@pytest.mark.parametrize(("fault", "preset"), [("network_degradation", "node"), ("nccl_fallback", "laptop")])
def test_a_job_without_the_part_cannot_have_the_fault(fault, preset):
    """And is told why."""
    job = load_job(preset)
    with pytest.raises(FaultError, match=f"{fault} needs a") as error:
        FaultBoard(job).check({"fault": fault}, 0.0)
    assert error.value.field == "fault"
    assert fault not in FaultBoard(job).faults


def test_a_stalled_checkpoint_is_long_and_all_is_well_between():
    """Once in so many steps."""
    run = Run(schedule={"checkpoint_every_steps": 300}).start("checkpoint_stall")
    path = run.path(200)
    assert path["checkpoint"] > 0.2
    assert path["data_wait"] < 0.05


def test_pauses_are_in_other_on_one_rank_at_a_time():
    """The mean rank hardly pauses; the critical path does."""
    run = Run().start("gc_pause").wait(5)
    own = run.gained(60, lambda: run.engine.totals.phase_seconds[PHASES.index("other")].copy()) / 60
    assert own.mean() < 0.04
    assert run.path()["other"] > 0.2


@pytest.fixture(scope="module")
def hung():
    """Two minutes into a hang of rank 5, and how many steps there were before."""
    run = Run()
    steps = run.engine.totals.steps
    return run.start("hang", target={"rank": 5}).wait(120), steps


def test_in_a_hang_all_others_read_busy_and_only_one_is_not_in_allreduce(hung):
    """No step ends; the culprit's phase tells, power falls."""
    run, steps = hung
    assert run.engine.totals.steps <= steps + 1
    phases, since = run.engine.current_phase(run.engine.now)
    assert phases[5] == DATA_WAIT
    assert set(np.delete(phases, 5)) == {ALLREDUCE}
    assert run.engine.now - since.max() > 110
    utilization = run.engine.telemetry.gpus.utilization
    assert np.delete(utilization, 5).min() == 1.0
    assert utilization[5] == 0
    assert run.engine.telemetry.gpus.watts.mean() < 100


def test_a_hang_that_ends_costs_its_time_and_nothing_is_lost(hung):
    """The step goes on where it was; the phases still add up to the wall time."""
    run, steps = hung
    run.stop()
    run.wait(30)
    totals = run.engine.totals
    assert totals.steps > steps + 80
    assert totals.phase_seconds.sum(axis=0) == pytest.approx(run.engine.now - EPOCH, abs=1.0)
    assert totals.phase_seconds[DATA_WAIT][5] > 119
    assert totals.phase_seconds[ALLREDUCE][6] > 119


def test_what_happens_during_a_hang_changes_nothing_that_was_before():
    """Ranks that wait in all-reduce went in when they did, whatever slows them down in later steps."""
    run = Run().start("hang", target={"rank": 5}).wait(60)
    before = run.engine.current_phase(run.engine.now)
    run.start("straggler", target={"rank": 3}, severity=20).wait(1)
    np.testing.assert_array_equal(run.engine.current_phase(run.engine.now), before)


def test_a_gpu_that_is_lost_during_a_hang_is_waited_for_after_it():
    """In the all-reduce, with the others: the step ends when it is back, and not before."""
    run = Run().start("hang", target={"rank": 5}).wait(60)
    hang, steps = run.fault, run.engine.totals.steps
    run.start("gpu_lost", target={"rank": 9}).wait(10)
    run.engine.board.stop(hang.id)
    assert run.wait(30).engine.totals.steps == steps
    run.stop()
    totals = run.wait(30).engine.totals
    assert totals.steps > steps + 80
    assert totals.phase_seconds[DATA_WAIT][5] == pytest.approx(70, abs=5)
    assert totals.phase_seconds[ALLREDUCE][6] == pytest.approx(100, abs=5)
    assert totals.phase_seconds.sum(axis=0) == pytest.approx(run.engine.now - EPOCH, abs=1.0)


def test_a_lost_gpu_has_no_series_but_its_xid_and_its_rank_has_none():
    """Absent, not 0; with the fault's end they are back."""
    run = Run().start("gpu_lost", target={"rank": 9}).wait(30)
    assert run.values("dcgm", "node-1", "DCGM_FI_DEV_XID_ERRORS")[1] == 79
    assert len(run.values("dcgm", "node-1", "DCGM_FI_DEV_GPU_TEMP")) == 7
    assert 'rank="9"' not in run.pages.text("training", "node-1")
    assert 'rank="10"' in run.pages.text("training", "node-1")
    run.stop()
    run.wait(30)
    assert len(run.values("dcgm", "node-1", "DCGM_FI_DEV_GPU_TEMP")) == 8
    assert run.values("training", "node-1", "training_steps_total", 'rank="9"')[0] > 200


def test_with_rank_0_goes_what_it_publishes_of_the_run():
    """The loss is its own."""
    run = Run("laptop").start("gpu_lost", target={"rank": 0}).wait(5)
    assert run.values("training", "node-0", "training_loss") == []
    assert run.values("training", "node-0", "training_steps_total") == [run.engine.totals.steps] * 3


def test_frozen_weights_stop_the_loss_at_full_speed(healthy_step):
    """And at full learning rate."""
    run = Run().start("loss_plateau").wait(5)
    before = run.values("training", "node-0", "training_loss")[0]
    assert run.step_seconds() == pytest.approx(healthy_step, rel=0.02)
    assert run.values("training", "node-0", "training_loss")[0] == pytest.approx(before, abs=0.005)
    assert run.values("training", "node-0", "training_learning_rate") == [3e-4]


def test_a_corrupt_gradient_departs_from_its_peers_and_reaches_the_reduced_one():
    """Four times its own; a little of it in the mean of 32."""
    run = Run()
    before = run.values("training", "node-0", "training_gradient_norm")[0]
    run.start("silent_corruption", target={"rank": 5}).wait(5)
    norms = run.values("training", "node-0", "training_local_gradient_norm")
    assert norms[5] / np.median(norms) == pytest.approx(4, rel=0.15)
    assert all(math.isclose(one, np.median(norms), rel_tol=0.2) for one in norms[:5])
    assert run.values("training", "node-0", "training_gradient_norm")[0] != before


def test_at_the_end_of_its_schedule_a_job_learns_nothing_more():
    """The learning rate falls to 0 over the last fifth, and the loss stands still."""
    run = Run("laptop", optimization={"schedule_steps": 600})
    assert run.wait(110).values("training", "node-0", "training_learning_rate") == [0.0]
    before = run.values("training", "node-0", "training_loss")[0]
    assert run.wait(60).values("training", "node-0", "training_loss")[0] == pytest.approx(before, abs=0.002)
