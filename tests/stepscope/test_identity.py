"""Who a process is, from what launchers leave in the environment."""

import pytest

from stepscope.identity import Identity, IdentityError

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "llm-7b", "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "gpu-03", "SLURM_NNODES": "2",
}  # fmt: skip


def test_torchruns_variables():
    """Rank, world, local rank and run."""
    who = Identity.from_env({**TORCHRUN, "STEPSCOPE_NODE": "host-1"})
    assert (who.rank, who.world_size, who.local_rank, who.local_world_size) == (5, 16, 1, 4)
    assert (who.run, who.node) == ("llm-7b", "host-1")
    assert not who.one_node


def test_slurms_variables():
    """The run is named after the job, the node as Slurm calls it."""
    who = Identity.from_env(SLURM)
    assert (who.rank, who.world_size, who.local_rank, who.local_world_size) == (9, 16, 1, 8)
    assert (who.run, who.node) == ("slurm-4711", "gpu-03")


def test_in_a_batch_script_it_is_one_process():
    """``python train.py`` without ``srun``: Slurm says how many tasks the job may have, and only one is running."""
    batch = {name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP")}
    who = Identity.from_env({**batch, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert (who.rank, who.world_size, who.one_node) == (0, 1, True)


def test_torchrun_under_slurm_is_torchruns():
    """srun starts one torchrun per node, which starts the ranks."""
    who = Identity.from_env({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert (who.rank, who.world_size, who.run) == (5, 16, "slurm-4711")


def test_without_a_launcher_it_is_one_process():
    """Rank 0 of 1."""
    who = Identity.from_env({})
    assert (who.rank, who.world_size, who.one_node) == (0, 1, True)
    assert who.run
    assert who.node


def test_without_local_ranks_they_follow_from_the_machine():
    """``mp.spawn`` on one machine; one GPU a pod, where nobody says how many are local."""
    spawned = Identity.from_env({}, rank=3, world_size=4)
    assert (spawned.local_rank, spawned.one_node) == (3, True)
    pod = Identity.from_env({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "job-master-0"})
    assert (pod.local_rank, pod.one_node) == (0, False)


def test_an_id_that_torchrun_drew_is_shortened(monkeypatch):
    """The script's name says more."""
    monkeypatch.setattr("sys.argv", ["/home/me/train_gpt.py"])
    drawn = "67a2f293-fdc4-40ab-8aea-8be2a15660c7"
    assert Identity.from_env({**TORCHRUN, "TORCHELASTIC_RUN_ID": drawn}).run == "train_gpt-67a2f293"


def test_arguments_and_stepscopes_own_variables_come_first():
    """For launchers that leave nothing."""
    who = Identity.from_env({**TORCHRUN, "STEPSCOPE_RUN": "mine"}, rank=0, world_size=2, local_rank=0)
    assert (who.run, who.rank, who.world_size, who.local_rank) == ("mine", 0, 2, 0)
    assert Identity.from_env(TORCHRUN, run="given").run == "given"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "first"}, "RANK='first' is no whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "rank 4 does not exist: a world of 4 has ranks 0 to 3"),
        ({"LOCAL_RANK": "-1"}, "local rank -1"),
    ],
)
def test_what_cannot_be_is_said(environment, said):
    """Before training starts."""
    with pytest.raises(IdentityError, match=said):
        Identity.from_env(environment)
