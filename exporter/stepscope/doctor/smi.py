"""What ``nvidia-smi -q -x`` says, read once: whether there are GPUs, and their XML elements.

To read a field: ask a ``Gpu`` for it by its path. The format is documented by its DTD, nvsmi_device_v11 to v13 so far;
names that a version replaced are given as alternatives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

from stepscope.doctor.machine import Machine, Output

TIMEOUT_SECONDS = 60.0
"""Without persistence mode the driver initializes each GPU anew for every call, some seconds on a node of eight."""
ABSENT = frozenset({"", "N/A", "[N/A]", "None", "Requested functionality has been deprecated"})
"""What nvidia-smi writes where the device or the driver has no such value."""
DISPLAY_CLASSES = ("30000", "30200")
"""VGA and 3D controllers in sysfs's PCI_CLASS: GPUs, and not their NVSwitches, audio or USB functions."""


class Unreadable(ValueError):
    """Something is not in the form that was expected; says what."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One ``<gpu>`` of the log."""

    index: int
    element: ElementTree.Element

    @property
    def name(self) -> str:
        return self.text("product_name") or "GPU without a name"

    @property
    def bus_id(self) -> str:
        """As sysfs writes it: nvidia-smi's domain has eight digits, the kernel's four."""
        return self.element.get("id", "").lower()[-12:]

    def text(self, *paths: str) -> str | None:
        """The first of the alternatives that exists; None where it has no value."""
        for path in paths:
            if (found := self.element.find(path)) is not None:
                value = (found.text or "").strip()
                return None if value in ABSENT else value
        raise Unreadable(f"nvidia-smi's XML has no <{paths[0]}> for GPU {self.index}")

    def number(self, *paths: str) -> float | None:
        """Without its unit, as in ``700.00 W`` and ``16x``."""
        value = self.text(*paths)
        if value is None:
            return None
        if not (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*[A-Za-z%/]*", value)):
            raise Unreadable(f"<{paths[0]}> of GPU {self.index} is {value!r}, which is no number")
        return float(match[1])

    def has(self, path: str) -> bool:
        return self.element.find(path) is not None

    @property
    def in_mig_mode(self) -> bool:
        return self.has("mig_mode") and self.text("mig_mode/current_mig") == "Enabled"

    @property
    def mig_instances(self) -> int:
        return len(self.element.findall("mig_devices/mig_device"))


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The node's GPUs as its driver lists them."""

    gpus: tuple[Gpu, ...] = ()
    on_bus: int = 0
    """NVIDIA GPUs on the PCI bus, but those handed to virtual machines."""
    answer: Output
    unreadable: str = ""
    """What is wrong with the answer."""
    driver_version: str = ""
    cuda_version: str = ""
    """The latest that this driver offers."""

    @property
    def expected(self) -> bool:
        """Whether this is a machine with GPUs: whoever installed nvidia-smi meant it to have some."""
        return self.on_bus > 0 or self.answer.ended != "missing"

    @property
    def all_in_mig_mode(self) -> bool:
        return all(gpu.in_mig_mode for gpu in self.gpus)


def take_inventory(machine: Machine) -> Inventory:
    answer = machine.run(("nvidia-smi", "-q", "-x"), TIMEOUT_SECONDS)
    on_bus = sum(_is_gpu(machine.read(path) or "") for path in machine.glob("/sys/bus/pci/devices/*/uevent"))
    if answer.ended != "exited":
        return Inventory(answer=answer, on_bus=on_bus)
    try:
        log = _log(answer.text)
    except Unreadable as error:
        return Inventory(answer=answer, on_bus=on_bus, unreadable=str(error))
    return Inventory(
        gpus=tuple(Gpu(index=index, element=gpu) for index, gpu in enumerate(log.findall("gpu"))),
        on_bus=on_bus,
        answer=answer,
        driver_version=(log.findtext("driver_version") or "").strip(),
        cuda_version=(log.findtext("cuda_version") or "").strip(),
    )


def _log(text: str) -> ElementTree.Element:
    """Warnings, such as one about a corrupt infoROM, may stand before and after the XML."""
    if not (match := re.search(r"<nvidia_smi_log>.*</nvidia_smi_log>", text, re.DOTALL)):
        raise Unreadable("nvidia-smi -q -x wrote no whole <nvidia_smi_log>")
    try:
        return ElementTree.fromstring(match[0])
    except ElementTree.ParseError as error:
        raise Unreadable(f"nvidia-smi -q -x wrote XML that does not parse: {error}") from error


def _is_gpu(uevent: str) -> bool:
    fields = dict(line.split("=", 1) for line in uevent.splitlines() if "=" in line)
    ours = fields.get("DRIVER") != "vfio-pci"
    return ours and fields.get("PCI_ID", "").startswith("10DE:") and fields.get("PCI_CLASS") in DISPLAY_CLASSES
