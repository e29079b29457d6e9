"""The Slurm example, run with stand-ins for Slurm, torchrun and stepscope."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/train.sbatch"
NODES = ("gpu-1", "gpu-2")

STAND_INS = {
    "scontrol": f'[ "$*" = "show hostnames gpu-[1-2]" ] && printf "%s\\n" {" ".join(NODES)}',
    # One task per node; the step fails when one of them does.
    "srun": """shift
for id in 0 1; do SLURM_NODEID=$id SLURM_NNODES=2 "$@" & tasks="$tasks $!"; done
trap 'kill $tasks; exit 143' TERM
for task in $tasks; do wait $task || failed=1; done
exit ${failed:-0}""",
    "torchrun": """echo "torchrun $* run=$STEPSCOPE_RUN referee=$STEPSCOPE_REFEREE sd=${STEPSCOPE_SD_DIR-unset}" >>"$LOG"
touch "$STARTED"
while [ ! -e "$FINISH" ]; do sleep 0.05; done
exit "$(cat "$FINISH")\"""",
    "stepscope": 'echo "stepscope $*" >>"$LOG"; echo $$ >>"$PIDS"; exec sleep 600',
}


class Job:
    """A submitted job; ``finish`` lets its training end."""

    def __init__(self, folder):
        programs = folder / "bin"
        programs.mkdir()
        for name, text in STAND_INS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (programs / name).chmod(0o755)
        self.folder, self.file = folder, folder / "sd" / "4711.json"
        self.paths = {name: folder / name.lower() for name in ("LOG", "STARTED", "FINISH", "PIDS")}
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("STEPSCOPE", "SLURM"))},
            **{name: str(path) for name, path in self.paths.items()},
            "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train-gpt",
            "SLURM_JOB_NODELIST": "gpu-[1-2]", "STEPSCOPE_SD_DIR": str(folder / "sd"),
        }  # fmt: skip
        self.said = folder / "stderr.txt"
        with self.said.open("w", encoding="utf-8") as said:
            self.process = subprocess.Popen(["bash", str(SCRIPT)], env=environment, stderr=said)

    def log(self):
        return self.paths["LOG"].read_text(encoding="utf-8").splitlines()

    def finish(self, status):
        self.paths["FINISH"].write_text(str(status), encoding="utf-8")
        ended = self.process.wait(20)
        assert self.said.read_text(encoding="utf-8") == ""
        return ended

    def helpers_running(self):
        pids = map(int, self.paths["PIDS"].read_text().split())
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def job(tmp_path, poll_until):
    made = Job(tmp_path)
    poll_until(lambda: made.paths["STARTED"].exists() and len(made.log()) == 5, "two nodes and the referee run", 20)
    yield made
    made.paths["FINISH"].touch()
    made.process.wait(20)


def test_the_script_parses():
    """By bash itself."""
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, check=False).returncode == 0


def test_a_running_job_is_listed_whole(job):
    """One target per node and the referee's; nothing half written beside it."""
    (group,) = json.loads(job.file.read_text(encoding="utf-8"))
    assert group == {"targets": ["gpu-1:9420", "gpu-2:9420", "gpu-1:9421"], "labels": {}}
    assert [file.name for file in job.file.parent.iterdir()] == ["4711.json"]


def test_every_node_runs_its_ranks_and_one_aggregating_endpoint(job):
    """The run is named by the job, ranks announce nothing themselves, and the referee knows all nodes."""
    ranks = sorted(line for line in job.log() if line.startswith("torchrun"))
    for number, line in enumerate(ranks):
        assert f"--nnodes=2 --node-rank={number} --nproc-per-node=8 --master-addr=gpu-1" in line
        assert line.endswith("run=train-gpt-4711 referee=none sd=unset")
    assert len(ranks) == len(NODES)
    assert job.log().count("stepscope serve --address 0.0.0.0 --port 9420 --ranks 8") == len(NODES)
    assert job.log().count("stepscope referee --address 0.0.0.0 --targets gpu-1:9420,gpu-2:9420 --port 9421") == 1


@pytest.mark.parametrize("status", [0, 1])
def test_after_its_end_nothing_is_left(job, poll_until, status):
    """Neither the file nor a process; a failure of training is the job's."""
    assert job.finish(status) == status
    assert list(job.file.parent.iterdir()) == []
    poll_until(lambda: not job.helpers_running(), "no helper is left", 10)


def test_a_job_that_is_told_to_stop_cleans_up(job, poll_until):
    """Slurm's signal before the time limit."""
    job.process.send_signal(signal.SIGTERM)
    job.paths["FINISH"].write_text("0", encoding="utf-8")
    assert job.process.wait(20) == 128 + signal.SIGTERM  # shells may say that they were ended
    assert list(job.file.parent.iterdir()) == []
    poll_until(lambda: not job.helpers_running(), "no helper is left", 10)


def test_the_scrape_config_reads_what_the_job_writes():
    """The same folder by default, and the name of the file."""
    config = (SCRIPT.parents[1] / "prometheus/file_sd.yml").read_text(encoding="utf-8")
    script = SCRIPT.read_text(encoding="utf-8")
    assert "files: [/shared/stepscope/sd/*.json]" in config
    assert "${STEPSCOPE_SD_DIR:-/shared/stepscope/sd}" in script
    assert "$folder/$SLURM_JOB_ID.json" in script
