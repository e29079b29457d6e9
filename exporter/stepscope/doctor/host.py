"""What the host gives the ranks: CPUs and their clocks, memory near them, huge pages and shared memory.

To add a reading: a function ``Node → Finding`` here, and its row in ``checks.CHECKS``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from stepscope.doctor.finding import Finding, Node, Status, by_gpu, judged, not_applicable
from stepscope.doctor.machine import Machine
from stepscope.doctor.smi import Gpu, Unreadable

GIB = 2**30
MIN_CPUS_PER_RANK = 2
"""A rank's main thread launches kernels, and NCCL's proxy thread moves data: each keeps a CPU busy."""
GOOD_CPUS_PER_RANK = 6
"""The same, and four loader workers, as many as the presets' jobs have."""
SELF_SCALING_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Their governor named powersave follows the load (Documentation/admin-guide/pm/intel_pstate.rst, amd-pstate.rst);
everywhere else it pins the lowest clock (cpufreq.rst)."""
FREE_MEMORY_RATIO = 0.5
"""Before a job starts, what other processes and leaks hold is less than what is left."""
LOW_MEMORY_RATIO = 0.1
RESERVED_PAGES_RATIO = 0.25
MIN_SHARED_BYTES = GIB
"""Docker and Kubernetes give 64 MiB; NVIDIA's PyTorch containers ask for --shm-size=1g at least."""


def governor(node: Node) -> Finding:
    folder = "/sys/devices/system/cpu/"
    files = node.machine.glob(folder + "cpu[0-9]*/cpufreq/scaling_governor")
    governors = Counter((node.machine.read(file) or "unreadable").strip() for file in files)
    if not governors:
        return not_applicable("the kernel does not set the clock here, as in a virtual machine")
    driver = (node.machine.read(folder + "cpu0/cpufreq/scaling_driver") or "").strip()
    found = ", ".join(f"{name} on {count} CPUs" for name, count in sorted(governors.items()))
    found += f" ({driver})" if driver else ""
    if set(governors) == {"performance"}:
        return Finding(status="pass", found=found)
    pinned = "powersave" in governors and driver not in SELF_SCALING_DRIVERS
    return Finding(status="fail" if pinned else "warn", found=found)


def cpu_quota(node: Node) -> Finding:
    """CPUs that this process may use: what a job gets when the check runs in the job's own cgroup."""
    allowed = len(allowed_cpus(node.machine))
    quota = min(_quotas(node.machine), default=None)
    cpus = allowed if quota is None else min(allowed, quota)
    source = f"{allowed} allowed, no quota" if quota is None else f"{allowed} allowed, quota of {quota:g}"
    found = f"{cpus:g} CPUs for {node.ranks} rank{'s' if node.ranks > 1 else ''} ({source})"
    status = judged(
        fails=[found] if cpus < MIN_CPUS_PER_RANK * node.ranks else [],
        warns=[found] if cpus < GOOD_CPUS_PER_RANK * node.ranks else [],
        fine=found,
    ).status
    expected = f"{GOOD_CPUS_PER_RANK * node.ranks} CPUs or more, {MIN_CPUS_PER_RANK * node.ranks} at least"
    return Finding(status=status, found=found, expected=expected)


def allowed_cpus(machine: Machine) -> set[int]:
    status = machine.read("/proc/self/status") or ""
    if not (match := re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)):
        raise Unreadable("/proc/self/status has no Cpus_allowed_list")
    return _cpu_list(match[1])


def _cpu_list(text: str) -> set[int]:
    """``0-3,8`` (cpuset(7), Formats)."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text.strip()):
        raise Unreadable(f"{text.strip()!r} is no list of CPUs")
    spans = (part.partition("-") for part in text.strip().split(","))
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def _quotas(machine: Machine) -> Iterator[float]:
    """CPUs by each quota on the way up: a container sees its own cgroup as the root, a job on the host does not."""
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        for folder in _upwards(path):
            if number == "0":
                yield from _quota(machine.read(f"/sys/fs/cgroup{folder}/cpu.max"))
            elif "cpu" in controllers.split(","):
                base = f"/sys/fs/cgroup/cpu{folder}/cpu.cfs_"
                files = [machine.read(f"{base}{name}") for name in ("quota_us", "period_us")]
                yield from _quota(" ".join(filter(None, files)))


def _upwards(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    return ("".join(f"/{part}" for part in parts[:length]) for length in range(len(parts), -1, -1))


def _quota(text: str | None) -> Iterator[float]:
    """``200000 100000`` microseconds; ``max`` or -1 is none (cgroup-v2.rst; sched-bwc.rst for version 1)."""
    words = (text or "").split()
    if not words or words[0] in ("max", "-1"):
        return
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise Unreadable(f"a cgroup's CPU quota is {' '.join(words)!r}")
    yield int(words[0]) / int(words[1])


def numa(node: Node) -> Finding:
    nodes = node.machine.glob("/sys/devices/system/node/node[0-9]*")
    if len(nodes) < 2:
        return Finding(status="pass", found="one NUMA node")
    allowed = allowed_cpus(node.machine)
    gpus = node.inventory.gpus
    homes = {gpu.index: _home(node.machine, gpu) for gpu in gpus}
    unknown = [(gpu, "its NUMA node is not known") for gpu, home in homes.items() if home is None]
    far = [
        (gpu, f"no CPU of its NUMA node {home} may be used")
        for gpu, home in homes.items()
        if home is not None and not allowed & _cpus_of(node.machine, home)
    ]
    counts = Counter(home for home in homes.values() if home is not None)
    found = ", ".join(f"{count} GPUs on node {home}" for home, count in sorted(counts.items()))
    return judged(warns=by_gpu(far + unknown), fine=found)


def _home(machine: Machine, gpu: Gpu) -> int | None:
    """The kernel writes -1 where the BIOS does not say."""
    text = (machine.read(f"/sys/bus/pci/devices/{gpu.bus_id}/numa_node") or "").strip()
    return int(text) if text.isdecimal() else None


def _cpus_of(machine: Machine, home: int) -> set[int]:
    text = (machine.read(f"/sys/devices/system/node/node{home}/cpulist") or "").strip()
    return _cpu_list(text) if text else set()  # a node that has memory only


def _meminfo(machine: Machine) -> dict[str, int]:
    lines = (line.split() for line in (machine.read("/proc/meminfo") or "").splitlines())
    found = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
    if not found.get("MemTotal") or "MemAvailable" not in found:
        raise Unreadable("/proc/meminfo has no MemTotal and MemAvailable")
    return found


KIB = 2**10
"""What /proc/meminfo calls kB."""


def memory(node: Node) -> Finding:
    info = _meminfo(node.machine)
    ratio = info["MemAvailable"] / info["MemTotal"]
    available, total = (info[key] * KIB / GIB for key in ("MemAvailable", "MemTotal"))
    found = f"{available:.1f} of {total:.1f} GiB available ({ratio:.0%})"
    status: Status = "fail" if ratio < LOW_MEMORY_RATIO else "warn" if ratio < FREE_MEMORY_RATIO else "pass"
    return Finding(status=status, found=found)


def hugepages(node: Node) -> Finding:
    """Transparent huge pages may be always or madvise; what costs is compaction at every page fault, and a reserve."""
    info = _meminfo(node.machine)
    folder = "/sys/kernel/mm/transparent_hugepage/"
    enabled, defrag = (_chosen(node.machine.read(folder + name)) for name in ("enabled", "defrag"))
    reserved = info.get("HugePages_Free", 0) * info.get("Hugepagesize", 0) / info["MemTotal"]
    stalls = enabled == defrag == "always"
    warns = ["any page fault may stop to compact memory (defrag: always)"] if stalls else []
    warns += (
        [f"{reserved:.0%} of memory reserved as huge pages that nothing uses"]
        if reserved > RESERVED_PAGES_RATIO
        else []
    )
    return judged(warns=warns, fine=f"transparent: {enabled or 'none'}; reserved and unused: {reserved:.0%}")


def _chosen(text: str | None) -> str | None:
    """``always [madvise] never``."""
    if text is None:
        return None
    if not (match := re.search(r"\[(\S+)\]", text)):
        raise Unreadable(f"transparent_hugepage is {text.strip()!r}, without a choice in brackets")
    return match[1]


def shm(node: Node) -> Finding:
    """Loader workers hand batches over in /dev/shm, and NCCL's ranks talk through it where they have no faster path."""
    disk = node.machine.disk("/dev/shm")
    if disk is None:
        return Finding(status="fail", found="no /dev/shm")
    total, free = disk.total_bytes / GIB, disk.free_bytes / GIB
    found = f"{free:.1f} of {total:.1f} GiB free"
    fails = [found] if disk.total_bytes < MIN_SHARED_BYTES else []
    warns = [found] if disk.free_bytes < max(MIN_SHARED_BYTES * node.ranks, disk.total_bytes / 2) else []
    expected = f"{node.ranks} GiB or more free, 1 GiB in all at least, no left-overs of other jobs"
    return Finding(status=judged(fails=fails, warns=warns, fine=found).status, found=found, expected=expected)
