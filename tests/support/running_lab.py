"""A running lab, and what waiting for one takes."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests

ROOT = Path(__file__).parents[2]
ACTION = {"X-Stepscope-Action": "test"}


def free_ports(count):
    """Ports of the loopback that nobody uses at this moment, one after the other."""
    while True:
        with contextlib.ExitStack() as taken:
            try:
                first = _bind(taken, random.randrange(20_000, 30_000))  # nobody is given one of these by chance
                for further in range(1, count):
                    _bind(taken, first + further)
            except OSError:
                continue
        return list(range(first, first + count))


def _bind(taken, port):
    one = taken.enter_context(socket.socket())
    one.bind(("127.0.0.1", port))
    return one.getsockname()[1]


def poll_until(ask, what, timeout):
    """What ``ask`` returns once it is true; fails with the last answer after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}; last answer: {answer}"
        time.sleep(0.5)


class Lab:
    """``stepscope lab``, or ``lab-real``, in a process of its own, on free ports, with its data in a folder of its own."""

    def __init__(self, folder, *arguments, path=None, command="lab", **variables):
        self.folder = folder
        simulator, prometheus, alertmanager = free_ports(3)
        self.simulator, self.prometheus, self.alertmanager = (
            f"http://127.0.0.1:{port}" for port in (simulator, prometheus, alertmanager)
        )
        environment = {
            **os.environ, "STEPSCOPE_PORT": str(simulator), "PROMETHEUS_PORT": str(prometheus),
            "ALERTMANAGER_PORT": str(alertmanager), "COLUMNS": "300", **({"PATH": path} if path else {}), **variables,
        }  # fmt: skip
        self.output = folder / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stepsim", command, "--data", str(folder / "data"), *arguments],
                cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def said(self):
        return self.output.read_text()

    def wait_ready(self, timeout=90):
        poll_until(lambda: "Ctrl-C" in self.said() or self.process.poll() is not None, "the lab is up", timeout)
        assert self.process.poll() is None, self.said()

    def stop(self, sign=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(20)

    def query(self, expr, at=None):
        """Labels and values of an instant query."""
        answer = requests.post(
            self.prometheus + "/api/v1/query", data={"query": expr, **({"time": at} if at else {})}, timeout=10
        ).json()
        assert answer["status"] == "success", answer
        return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]

    def value(self, expr):
        """The value of the only series; None without one."""
        found = self.query(expr)
        return found[0][1] if found else None

    def firing(self):
        """Names of the alerts that Alertmanager has, with their labels."""
        alerts = requests.get(self.alertmanager + "/api/v2/alerts", timeout=10).json()
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts}

    def received(self):
        """What the webhook got, by name: the last status."""
        received = requests.get(self.simulator + "/alerts", timeout=10).json()["received"]
        return {alert["labels"]["alertname"]: alert["status"] for alert in received}

    def start_fault(self, **request):
        answer = requests.post(self.simulator + "/faults", json=request, headers=ACTION, timeout=10)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def stop_fault(self, fault_id):
        assert requests.delete(f"{self.simulator}/faults/{fault_id}", headers=ACTION, timeout=10).status_code == 204
