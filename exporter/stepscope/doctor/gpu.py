"""What each GPU says of itself: that it answers, its link, clocks, power limit and memory.

To add a reading: a function ``Node → Finding`` here, and its row in ``checks.CHECKS``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from stepscope.doctor.finding import Finding, Node, by_gpu, judged, not_applicable
from stepscope.doctor.smi import Gpu, Inventory, Unreadable

EXITS = {
    6: ("it finds no GPU", "look for the GPU in lspci and for NVRM lines in dmesg; reseat it or reboot the node"),
    8: ("a GPU's external power is not connected", "connect the GPU's power cables"),
    9: ("the NVIDIA driver is not loaded", "modprobe nvidia; after a kernel update, build the module anew (dkms)"),
    10: ("the kernel has an interrupt problem with a GPU", "reboot the node; then check its BIOS and PCIe settings"),
    12: ("libnvidia-ml.so.1 is missing", "install the driver; in a container, use the NVIDIA container toolkit"),
    14: ("a GPU's infoROM is corrupt", "update the GPU's firmware, or have the GPU replaced"),
    15: (
        "a GPU has fallen off the bus",
        "drain the node and power-cycle it; have the GPU replaced if it happens again",
    ),
    18: ("the driver's library and kernel module differ in version", "reload the nvidia module, or reboot the node"),
}
"""nvidia-smi(1), RETURN VALUE; 18 is NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h)."""
SICK = re.compile(r"lost|error|err!", re.IGNORECASE)
"""What stands in place of a value when a GPU no longer answers."""

BAD_REASONS = {
    "hw_slowdown": "hardware slowdown (0x8)",
    "sw_thermal_slowdown": "software thermal slowdown (0x20)",
    "hw_thermal_slowdown": "hardware thermal slowdown (0x40)",
    "hw_power_brake_slowdown": "power brake (0x80)",
}
"""Of nvmlClocksEventReasons (nvml.h). Idle (0x1) and the power cap (0x4) are what a healthy GPU shows."""

POWER_TOLERANCE_WATTS = 1.0
"""Limits are set in whole watts."""

PROMISES = {
    "remapped_rows/remapped_row_failure": "a row of its memory could not be remapped",
    "remapped_rows/remapped_row_pending": "a row remap waits for a reset of the GPU",
    "ecc_errors/aggregate/sram_threshold_exceeded": "its SRAM error threshold is exceeded",
    "ecc_errors/unrepairable_memory": "its memory cannot be repaired",
    "gpu_reset_status/reset_required": "it asks for a reset",
}
"""Fields that must not say Yes (nvidia-smi(1); NVIDIA GPU Memory Error Management)."""


def answers(node: Node) -> Finding:
    """That there are GPUs, as many as there should be, and that the driver can talk to each."""
    inventory = node.inventory
    if inventory.answer.ended != "exited":
        return _no_answer(node)
    if inventory.unreadable and inventory.answer.exit_status == 0:
        return Finding(status="fail", found=inventory.unreadable)
    if not inventory.gpus:
        meaning, next_step = EXITS.get(inventory.answer.exit_status, ("it lists no GPU", ""))
        return Finding(status="fail", found=f"nvidia-smi: {meaning} ({inventory.answer.why()})", next_step=next_step)
    wanted = node.gpus_expected or max(inventory.on_bus, len(inventory.gpus))
    fails = by_gpu((gpu.index, _sick(gpu)) for gpu in inventory.gpus)
    if len(inventory.gpus) != wanted:
        source = "were asked for" if node.gpus_expected else "are on the PCI bus"
        fails.insert(0, f"{len(inventory.gpus)} GPUs answer, {wanted} {source}")
    warns = [f"nvidia-smi {inventory.answer.why()}"] if inventory.answer.exit_status else []
    return judged(fails=fails, warns=warns, fine=_kinds(inventory))


def _no_answer(node: Node) -> Finding:
    inventory = node.inventory
    if inventory.answer.ended == "timeout":
        next_step = "look for NVRM and Xid lines in dmesg; drain and reboot the node: the driver hangs"
        return Finding(status="fail", found="nvidia-smi did not answer in time", next_step=next_step)
    return Finding(
        status="fail",
        found=f"no nvidia-smi; {inventory.on_bus} NVIDIA GPUs on the PCI bus",
        next_step=EXITS[12][1],
    )


def _sick(gpu: Gpu) -> str | None:
    said = [gpu.text(path) or "" for path in ("product_name", "uuid", "performance_state")]
    return next((f"says {value!r}" for value in said if SICK.search(value)), None)


def _kinds(inventory: Inventory) -> str:
    names = Counter(gpu.name for gpu in inventory.gpus)
    kinds = ", ".join(f"{count} × {name}" for name, count in names.items())
    mig = [gpu for gpu in inventory.gpus if gpu.in_mig_mode]
    return kinds + (f" ({len(mig)} in MIG mode, {sum(g.mig_instances for g in mig)} instances)" if mig else "")


LINK = "pci/pci_gpu_link_info/"


def pcie(node: Node) -> Finding:
    """A narrow link is a fault at any time. A slow one may be asleep: idle GPUs lower its generation to save power."""
    fails, warns = [], []
    fastest = _fastest(node.inventory.gpus)
    for gpu in node.inventory.gpus:
        width, widest = (
            gpu.number(LINK + "link_widths/current_link_width"),
            gpu.number(LINK + "link_widths/max_link_width"),
        )
        now, most = gpu.number(LINK + "pcie_gen/current_link_gen"), gpu.number(LINK + "pcie_gen/max_link_gen")
        if width is None or widest is None or now is None or most is None:
            return not_applicable(f"GPU {gpu.index} does not say: its link is not PCIe, or a virtual machine hides it")
        link = f"gen {now:g} of {most:g}, ×{width:g} of ×{widest:g}"
        awake = (gpu.number("utilization/gpu_util") or 0) > 0 or now < fastest[_alike(gpu)]
        if width < widest or (now < most and awake):
            fails.append((gpu.index, link))
        elif now < most:
            warns.append((gpu.index, f"{link} while idle"))
        elif slot := _slower_slot(gpu):
            warns.append((gpu.index, slot))
    return judged(fails=by_gpu(fails), warns=by_gpu(warns), fine=f"every link at its maximum ({link})")


def _alike(gpu: Gpu) -> tuple[str, str | None]:
    """GPUs that sleep alike: of one kind, in one performance state."""
    return gpu.name, gpu.text("performance_state")


def _fastest(gpus: tuple[Gpu, ...]) -> dict[tuple[str, str | None], float]:
    fastest: dict[tuple[str, str | None], float] = {}
    for gpu in gpus:
        now = gpu.number(LINK + "pcie_gen/current_link_gen") or 0.0
        fastest[_alike(gpu)] = max(now, fastest.get(_alike(gpu), 0.0))
    return fastest


def _slower_slot(gpu: Gpu) -> str | None:
    """The maximum is that of the GPU and its slot together."""
    paths = (LINK + "pcie_gen/max_device_link_gen", LINK + "pcie_gen/max_host_link_gen")
    if not all(map(gpu.has, paths)):  # drivers before 525
        return None
    device, host = (gpu.number(path) for path in paths)
    return f"a gen {device:g} GPU in a gen {host:g} slot" if device and host and device > host else None


def throttle(node: Node) -> Finding:
    """Before a job, nothing gives a reason for slowing down."""
    fails = [
        (gpu.index, words)
        for gpu in node.inventory.gpus
        for reason, words in BAD_REASONS.items()
        if _active(gpu, reason)
    ]
    return judged(fails=by_gpu(fails), fine="no GPU slows down")


def _active(gpu: Gpu, reason: str) -> bool:
    names = (f"clocks_{word}_reasons/clocks_{word}_reason_{reason}" for word in ("event", "throttle"))
    said = gpu.text(*names)
    if said not in (None, "Active", "Not Active"):
        raise Unreadable(f"{reason} of GPU {gpu.index} is {said!r}, neither Active nor Not Active")
    return said == "Active"


def power_limit(node: Node) -> Finding:
    """All GPUs below their default may be a decision; one below its like is a straggler."""
    limits = dict(_limits(node.inventory.gpus))
    if not limits:
        return not_applicable("the driver does not report power limits")
    capped = {
        gpu: f"limited to {limit:g} W of {default:g} W"
        for gpu, (limit, default) in limits.items()
        if limit < default - POWER_TOLERANCE_WATTS
    }
    uneven = [gpu for gpu in capped if limits[gpu][0] < _highest(limits, node, gpu) - POWER_TOLERANCE_WATTS]
    return judged(
        fails=by_gpu((gpu, capped[gpu]) for gpu in uneven),
        warns=by_gpu((gpu, words) for gpu, words in capped.items() if gpu not in uneven),
        fine=f"{min(limit for limit, _ in limits.values()):g} W or more on every GPU",
    )


def _limits(gpus: tuple[Gpu, ...]) -> Iterator[tuple[int, tuple[float, float]]]:
    for gpu in gpus:
        limit = gpu.number("gpu_power_readings/current_power_limit", "power_readings/power_limit")
        default = gpu.number("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")
        if limit is not None and default is not None:
            yield gpu.index, (limit, default)


def _highest(limits: dict[int, tuple[float, float]], node: Node, gpu: int) -> float:
    names = {each.index: each.name for each in node.inventory.gpus}
    return max(limit for each, (limit, _) in limits.items() if names[each] == names[gpu])


def ecc(node: Node) -> Finding:
    """Memory that is broken, or repaired only after a reset: before a job is the moment for one."""
    gpus = node.inventory.gpus
    broken = [(gpu.index, words) for gpu in gpus for path, words in PROMISES.items() if _says_yes(gpu, path)]
    broken += [(gpu.index, f"asks for: {action}") for gpu in gpus if (action := _recovery(gpu))]
    errors = [
        (gpu.index, f"{count} uncorrectable errors since the driver started") for gpu in gpus if (count := _errors(gpu))
    ]
    off = [(gpu.index, "ECC is off") for gpu in gpus if gpu.text("ecc_mode/current_ecc") == "Disabled"]
    if all(gpu.text("ecc_mode/current_ecc") is None for gpu in gpus) and not broken:
        return not_applicable("these GPUs have no ECC")
    return judged(fails=by_gpu(broken), warns=by_gpu(errors + off), fine="no uncorrectable error, no remap that waits")


def _says_yes(gpu: Gpu, path: str) -> bool:
    return gpu.has(path) and gpu.text(path) == "Yes"


def _recovery(gpu: Gpu) -> str | None:
    return gpu.text("gpu_recovery_action") if gpu.has("gpu_recovery_action") else None


def _errors(gpu: Gpu) -> int:
    kinds = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
    paths = [f"ecc_errors/volatile/{kind}" for kind in kinds]
    return int(sum(gpu.number(path) or 0 for path in paths if gpu.has(path)))
