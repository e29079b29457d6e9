"""Starting, stopping and surviving."""

import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest
import requests

pytestmark = pytest.mark.prometheus


def children(lab):
    return alive(psutil.Process(lab.process.pid).children(recursive=True))


def alive(processes):
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_cleanly(start_lab, sign):
    """Exit status 0, and nothing is left running."""
    lab = start_lab("--no-history", "--preset", "laptop")
    lab.wait_ready()
    running = children(lab)
    assert len(running) == 3
    assert lab.stop(sign) == 0
    assert alive(running) == []
    assert "stopping" in lab.said()


def test_a_lab_stopped_while_it_loads_the_past_leaves_nothing_and_loads_it_the_next_time(start_lab, poll_until):
    """No helper goes on, and an interrupted load begins anew."""
    first = start_lab("--preset", "laptop")
    poll_until(lambda: len(children(first)) > 1, "the past is being loaded", 60)  # a shell and a helper Prometheus
    running = children(first)
    assert first.stop(signal.SIGTERM) == 0
    poll_until(lambda: not alive(running), "nothing is left running", 10)
    again = start_lab("--preset", "laptop")
    again.wait_ready()
    assert "loaded the past" in again.said()
    assert again.value("max(count_over_time(run:training_mfu:ratio_rate1m[2h]))") > 400


def test_two_labs_never_share_a_folder(start_lab):
    """They would write into the same database."""
    first = start_lab("--no-history", "--preset", "laptop")
    first.wait_ready()
    second = start_lab("--no-history", "--preset", "laptop")
    assert second.process.wait(20) == 2
    assert "another lab uses" in second.said()


def test_a_second_lab_is_told_of_the_folder_before_the_ports(start_lab):
    """Both are taken; it says at once what a second lab needs."""
    first = start_lab("--no-history", "--preset", "laptop")
    first.wait_ready()
    ports = {name: url.rpartition(":")[2] for name, url in
             (("STEPSCOPE_PORT", first.simulator), ("PROMETHEUS_PORT", first.prometheus))}  # fmt: skip
    second = start_lab("--no-history", "--preset", "laptop", **ports)
    assert second.process.wait(20) == 2
    assert "give this one other ports (STEPSCOPE_PORT, PROMETHEUS_PORT, ALERTMANAGER_PORT)" in second.said()
    assert "--data DIR" in second.said()


def test_the_lab_stops_when_a_part_dies(start_lab):
    """Exit status 1, with the name of the part and the end of its log; the others are stopped."""
    lab = start_lab("--no-history", "--preset", "laptop")
    lab.wait_ready()
    running = children(lab)
    victim = next(process for process in running if "prometheus.yml" in " ".join(process.cmdline()))
    victim.kill()
    assert lab.process.wait(20) == 1
    assert "prometheus ended with status -9" in lab.said()
    assert alive(running) == []


def test_a_port_in_use_is_named_before_anything_starts(start_lab):
    """Exit status 2, and the variable to set."""
    first = start_lab("--no-history", "--preset", "laptop")
    first.wait_ready()
    port = first.prometheus.rpartition(":")[2]
    done = subprocess.run(
        [*first.process.args[:4], "--data", str(first.folder / "other"), "--no-history"],
        env={**os.environ, "PROMETHEUS_PORT": port, "STEPSCOPE_PORT": "0", "COLUMNS": "300"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "PROMETHEUS_PORT" in done.stderr
    assert not (first.folder / "other").exists()


def test_without_prometheus_the_simulator_runs_and_says_what_is_missing(start_lab, tmp_path):
    """The console shows the essentials."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to(shutil.which("sh"))
    lab = start_lab("--preset", "laptop", path=str(bare))
    lab.wait_ready()
    said = lab.said()
    assert "absent prometheus" in said
    assert "apt-get install prometheus-alertmanager" in said
    assert "GPU utilization" in requests.get(lab.simulator, timeout=5).text
    assert len(children(lab)) == 1


def test_prometheus_outlives_a_killed_simulator_and_a_restart_of_itself(start_lab, poll_until):
    """Counters reset as Prometheus expects, faults come back, and stored data is kept."""
    lab = start_lab("--no-history")
    lab.wait_ready()
    ask = "sum(training_steps_total{rank='0'})"
    poll_until(lambda: (lab.value(ask) or 0) > 40, "steps are counted", 60)
    lab.start_fault(fault="straggler", target={"rank": 3})
    simulator = next(process for process in children(lab) if "simulate" in process.cmdline())
    command = simulator.cmdline()
    lab.process.send_signal(signal.SIGSTOP)  # so that the lab does not end because a part died
    simulator.kill()
    again = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        poll_until(
            lambda: lab.value("max(resets(training_steps_total{rank='0'}[5m]))") == 1,
            "the counter is seen to reset",
            60,
        )
        poll_until(
            lambda: (lab.value("sum(rate(training_steps_total{rank='0'}[20s]))") or 0) > 1, "steps are made again", 60
        )
        assert lab.value("min(rate(training_steps_total[5m]))") >= 0
        faults = requests.get(lab.simulator + "/faults", timeout=5).json()
        assert [fault["target"] for fault in faults] == [{"rank": 3}]

        prometheus = next(process for process in children(lab) if "prometheus.yml" in " ".join(process.cmdline()))
        command = prometheus.cmdline()
        prometheus.terminate()
        time.sleep(3)
        speed = requests.get(lab.simulator + "/metrics/truth", timeout=5).text
        assert "lab_speed_ratio" in speed
        restarted = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            poll_until(lambda: answers(lab.prometheus + "/-/ready"), "Prometheus answers again", 30)
            assert lab.value("max(resets(training_steps_total{rank='0'}[5m]))") == 1
            poll_until(lambda: lab.query("up{job='training'} == 1"), "targets are up again", 30)
        finally:
            restarted.terminate()
            restarted.wait(10)
    finally:
        again.terminate()
        again.wait(10)
        lab.process.send_signal(signal.SIGCONT)
        lab.process.wait(20)


def answers(url):
    try:
        return requests.get(url, timeout=1).status_code == 200
    except requests.RequestException:
        return False
