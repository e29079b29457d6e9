"""What the NVIDIA driver has complained of since boot: Xid and SXid lines of the kernel log.

To classify an Xid: a row of ``HARDWARE`` or ``APPLICATION``; what is in neither is a warning.
"""

from __future__ import annotations

import re
from collections import Counter

from stepscope.doctor.finding import Finding, Node, judged
from stepscope.doctor.machine import Machine, Output
from stepscope.doctor.smi import Unreadable

TIMEOUT_SECONDS = 30.0
LOGS = (("dmesg",), ("journalctl", "-k", "-b", "-q", "--no-pager"))
"""The first that may be read. Both begin with the last boot."""

HARDWARE = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remap failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
    154: "the driver asks for a recovery action",
}
"""NVIDIA's Xid catalog: the GPU needs a reset, a reboot or more before it can be trusted."""
APPLICATION = frozenset({13, 31, 43, 45})
"""The same: an exception, a page fault or the end of some program's own work on a sound GPU."""

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
FATAL_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), Fatal")
"""An NVSwitch's own (NVIDIA Fabric Manager User Guide)."""


def xid(node: Node) -> Finding:
    log = _kernel_log(node.machine)
    counts = Counter((bus, int(code)) for bus, code in XID.findall(log))
    fails = [f"{_said(*key, counts[key])}: {HARDWARE[key[1]]}" for key in counts if key[1] in HARDWARE]
    fails += [f"SXid {code} on NVSwitch {bus}: fatal" for bus, code in dict.fromkeys(FATAL_SXID.findall(log))]
    known = HARDWARE.keys() | APPLICATION
    warns = [_said(*key, counts[key]) for key in counts if key[1] not in known]
    harmless = sum(count for (_, code), count in counts.items() if code in APPLICATION)
    fine = f"only {harmless} Xids of applications' own" if harmless else "no Xid since boot"
    return judged(fails=fails, warns=warns, fine=fine)


def _said(bus: str, code: int, count: int) -> str:
    return f"Xid {code} on {bus}" + (f", {count} times" if count > 1 else "")


def _kernel_log(machine: Machine) -> str:
    refusals = []
    for command in LOGS:
        output = machine.run(command, TIMEOUT_SECONDS)
        if output.succeeded and _is_log(output):
            return output.text
        refusals.append(f"{command[0]} {output.why() if not output.succeeded else 'shows nothing'}")
    raise Unreadable("the kernel log cannot be read: " + ", ".join(refusals))


def _is_log(output: Output) -> bool:
    """A journal that may not be read is empty and a success."""
    return bool(output.text.strip())
