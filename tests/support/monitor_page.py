"""Reads what a monitor in this process publishes."""

import json
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def samples(text):
    """Of a page in Prometheus's format."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def total(found, name, labels):
    """The sum of the samples of that name that carry these labels; None without any."""
    values = [s.value for s in found if s.name == name and labels.items() <= s.labels.items()]
    return sum(values) if values else None


def fail(*args, **kwargs):
    """What a test puts in the place of something that shall break."""
    raise RuntimeError("broken on purpose")


class Scrape:
    """A monitor's page at one moment."""

    def __init__(self, monitor):
        deadline = time.monotonic() + 10
        while monitor._publisher.server is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self._address = monitor._publisher.public_address()
        self.samples = samples(self._get("metrics"))
        self.steps = [row[0] for row in json.loads(self._get("steps"))["steps"]]

    def _get(self, path):
        with urllib.request.urlopen(f"http://{self._address}/{path}", timeout=5) as answer:
            return answer.read().decode()

    def value(self, name, **labels):
        return total(self.samples, name, labels)

    def phase(self, name):
        return self.value("training_phase_seconds_total", phase=name)


def slept(measured, seconds):
    """The phase is these pauses and little else, on a machine that others use as well."""
    return seconds <= measured < 1.5 * seconds + 0.1
