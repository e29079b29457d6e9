"""A simulator in a process of its own."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import requests

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "stepsim"]


class Simulator:
    """A simulator in a process of its own."""

    def __init__(self, port, *arguments):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [*COMMAND, "simulate", "--port", str(port), *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                requests.get(self.url + "/healthz", timeout=1)
                return
            except requests.RequestException:
                time.sleep(0.05)
        raise AssertionError(self.process.communicate()[1])

    def stop(self, sign=signal.SIGTERM):
        self.process.send_signal(sign)
        self.process.communicate(timeout=10)
        return self.process.returncode
