"""Reads what a monitor in this process publishes."""

import json
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """A monitor's page at one moment."""

    def __init__(self, monitor):
        deadline = time.monotonic() + 10
        while monitor._publisher.server is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self._address = monitor._publisher.public_address()
        self.samples = [
            sample for family in text_string_to_metric_families(self._get("metrics")) for sample in family.samples
        ]
        self.steps = [row[0] for row in json.loads(self._get("steps"))["steps"]]

    def _get(self, path):
        with urllib.request.urlopen(f"http://{self._address}/{path}", timeout=5) as answer:
            return answer.read().decode()

    def value(self, name, **labels):
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def phase(self, name):
        return self.value("training_phase_seconds_total", phase=name)


def slept(measured, seconds):
    """The phase is these pauses and little else, on a machine that others use as well."""
    return seconds <= measured < 1.5 * seconds + 0.1
