"""The host read from /proc and /sys, under node_exporter's names and labels, where no node_exporter runs.

To add a reading: add a row to ``HOST`` and what it reads to ``Reading``. A file that is not there, or that the kernel
does not let itself be read, leaves its series absent.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from stepscope.exposition import Labels, Page
from stepscope.metrics import Metric, Values

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The columns of /proc/stat, proc(5). The guest columns are counted in user and nice already."""
IDLE = CPU_MODES.index("idle")
IDLE_RESET_SECONDS = 3.0
"""node_exporter's bound: an idle counter that went back further than this belongs to a CPU that was offline."""
SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the disk's own sectors are (Documentation/admin-guide/iostats.rst)."""
LANE_BYTES = 4
"""InfiniBand counts data in 32-bit words (PortXmitData, InfiniBand specification, volume 1)."""
IGNORED_DISKS = re.compile(r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+")
"""node_exporter's default device-exclude: no memory, loop or floppy devices, and no partitions."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The columns of one line of /proc/diskstats that are used."""

    reads: int
    sectors_read: int
    read_milliseconds: int
    busy_milliseconds: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the files said; what is not known is empty or None."""

    cpu_seconds: Mapping[str, list[float]] = field(default_factory=dict)
    """By CPU, in the order of ``CPU_MODES``."""
    governors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By CPU and governor: 1 for the current one, 0 for the others that it could have."""
    io_waiting_seconds: float | None = None
    disks: Mapping[str, Disk] = field(default_factory=dict)
    port_bytes: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """By device and port, then by the name of the counter's file."""
    transmitted_bytes: Mapping[str, int] = field(default_factory=dict)
    available_bytes: int | None = None

    def cpus(self) -> list[str]:
        return list({**self.cpu_seconds, **self.governors})

    def shape(self) -> tuple[object, ...]:
        """Everything that is a label."""
        return (self.cpus(), list(self.disks), list(self.port_bytes), list(self.transmitted_bytes))


def _cpu(reading: Reading) -> Values:
    for index, mode in enumerate(CPU_MODES):
        known = (reading.cpu_seconds.get(cpu) for cpu in reading.cpus())
        yield (mode,), [seconds[index] if seconds and index < len(seconds) else None for seconds in known]


def _governors(reading: Reading) -> Values:
    for governor in sorted({name for names in reading.governors.values() for name in names}):
        yield (governor,), [reading.governors.get(cpu, {}).get(governor) for cpu in reading.cpus()]


def _one(value: Callable[[Reading], float | None]) -> Callable[[Reading], Values]:
    return lambda reading: [((), [value(reading)])]


def _disks(value: Callable[[Disk], float]) -> Callable[[Reading], Values]:
    return lambda reading: [((device,), [value(disk)]) for device, disk in reading.disks.items()]


def _ports(counter: str) -> Callable[[Reading], Values]:
    return lambda reading: [(port, [known.get(counter)]) for port, known in reading.port_bytes.items()]


HOST: tuple[Metric, ...] = (
    Metric(name="node_cpu_seconds_total", kind="counter", scope="cpu", labels=("mode",),
           help="Seconds the CPUs spent in each mode.", values=_cpu),
    Metric(name="node_pressure_io_waiting_seconds_total", kind="counter", scope="host",
           help="Total time in seconds that processes have waited due to IO congestion",
           values=_one(lambda r: r.io_waiting_seconds)),
    Metric(name="node_disk_read_bytes_total", kind="counter", scope="host", labels=("device",),
           help="The total number of bytes read successfully.", values=_disks(lambda d: d.sectors_read * SECTOR_BYTES)),
    Metric(name="node_disk_reads_completed_total", kind="counter", scope="host", labels=("device",),
           help="The total number of reads completed successfully.", values=_disks(lambda d: d.reads)),
    Metric(name="node_disk_read_time_seconds_total", kind="counter", scope="host", labels=("device",),
           help="The total number of seconds spent by all reads.", values=_disks(lambda d: d.read_milliseconds / 1000)),
    Metric(name="node_disk_io_time_seconds_total", kind="counter", scope="host", labels=("device",),
           help="Total seconds spent doing I/Os.", values=_disks(lambda d: d.busy_milliseconds / 1000)),
    Metric(name="node_infiniband_port_data_transmitted_bytes_total", kind="counter", scope="host",
           labels=("device", "port"), help="Number of data octets transmitted on all links", values=_ports("port_xmit_data")),
    Metric(name="node_infiniband_port_data_received_bytes_total", kind="counter", scope="host",
           labels=("device", "port"), help="Number of data octets received on all links", values=_ports("port_rcv_data")),
    Metric(name="node_infiniband_rate_bytes_per_second", kind="gauge", scope="host",
           labels=("device", "port"), help="Maximum signal transfer rate", values=_ports("rate")),
    Metric(name="node_network_transmit_bytes_total", kind="counter", scope="host", labels=("device",),
           help="Network device statistic transmit_bytes.",
           values=lambda r: [((device,), [sent]) for device, sent in r.transmitted_bytes.items()]),
    Metric(name="node_memory_MemAvailable_bytes", kind="gauge", scope="host",
           help="Memory information field MemAvailable_bytes.", values=_one(lambda r: r.available_bytes)),
    Metric(name="node_cpu_scaling_governor", kind="gauge", scope="cpu", labels=("governor",),
           help="Current enabled CPU frequency governor.", values=_governors),
)  # fmt: skip
"""Read from a ``Reading``."""


class HostMetrics:
    """This machine as a ``/metrics`` page."""

    name = "host"

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._sys = proc, sys
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._cpu_seconds: dict[str, list[float]] = {}
        self._shape: tuple[object, ...] | None = None
        self._page = Page(HOST, {})
        self._lock = Lock()  # two servers may scrape at once; no training thread ever takes it

    def text(self) -> str:
        """Disks, interfaces and CPUs come and go, and with them the page's series."""
        with self._lock:
            reading = self._read()
            if reading.shape() != self._shape:
                cpus: list[Labels] = [{"cpu": cpu} for cpu in reading.cpus()]
                self._page, self._shape = Page(HOST, {"host": [{}], "cpu": cpus}), reading.shape()
            return self._page.text(reading)

    def _read(self) -> Reading:
        self._cpu_seconds = {cpu: self._steady(cpu, now) for cpu, now in self._cpu_times()}
        return Reading(
            cpu_seconds=self._cpu_seconds,
            governors=dict(_read_governors(self._sys / "devices/system/cpu")),
            io_waiting_seconds=_read_io_waiting(self._proc / "pressure/io"),
            disks=dict(_read_disks(self._proc / "diskstats")),
            port_bytes=dict(_read_ports(self._sys / "class/infiniband")),
            transmitted_bytes=dict(_read_transmitted(self._proc / "net/dev")),
            available_bytes=_read_available(self._proc / "meminfo"),
        )

    def _cpu_times(self) -> Iterator[tuple[str, list[float]]]:
        for name, *ticks in _rows(self._proc / "stat"):
            if re.fullmatch(r"cpu\d+", name):
                yield name[3:], [int(each) / self._ticks_per_second for each in ticks[: len(CPU_MODES)]]

    def _steady(self, cpu: str, now: list[float]) -> list[float]:
        """The kernel's idle and iowait run backwards at times, which Prometheus would take for a restart from 0."""
        before = self._cpu_seconds.get(cpu)
        if before is None or now[IDLE] < before[IDLE] - IDLE_RESET_SECONDS:
            return now
        return list(map(max, before, now))


def _text(file: Path) -> str:
    """A file that the kernel does not have, or refuses to have read, is empty: pressure that was not enabled, say."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _rows(file: Path) -> Iterator[list[str]]:
    return (columns for line in _text(file).splitlines() if (columns := line.split()))


def _read_io_waiting(file: Path) -> float | None:
    """``some avg10=0.00 avg60=0.00 avg300=0.00 total=15140``, in microseconds."""
    found = re.search(r"^some .*total=(\d+)", _text(file), re.MULTILINE)
    return int(found[1]) / 1e6 if found else None


def _read_disks(file: Path) -> Iterator[tuple[str, Disk]]:
    """Major, minor, name, reads, merged, sectors, ms; the same for writes; in flight, busy ms, weighted ms."""
    for row in _rows(file):
        if len(row) >= 14 and not IGNORED_DISKS.fullmatch(row[2]):
            reads, _, sectors, milliseconds = map(int, row[3:7])
            yield (
                row[2],
                Disk(reads=reads, sectors_read=sectors, read_milliseconds=milliseconds, busy_milliseconds=int(row[12])),
            )


def _read_transmitted(file: Path) -> Iterator[tuple[str, int]]:
    """Two lines of headings, then ``eth0: `` and eight columns received, eight transmitted."""
    for line in _text(file).splitlines()[2:]:
        name, _, columns = line.rpartition(":")
        yield name.strip(), int(columns.split()[8])


def _read_available(file: Path) -> int | None:
    """``MemAvailable:   12345 kB``, where kB means 1024 bytes."""
    return next((int(row[1]) * 1024 for row in _rows(file) if row[0] == "MemAvailable:"), None)


def _read_governors(cpus: Path) -> Iterator[tuple[str, dict[str, int]]]:
    for cpu in _numbered(cpus, "cpu"):
        frequency = cpus / f"cpu{cpu}" / "cpufreq"
        if current := _text(frequency / "scaling_governor"):
            every = {current, *_text(frequency / "scaling_available_governors").split()}
            yield cpu, {governor: int(governor == current) for governor in sorted(every)}


def _read_ports(devices: Path) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
    """A port without counters says ``N/A (no PMA)``."""
    for device in _names(devices):
        for port in _names(devices / device / "ports"):
            counters = devices / device / "ports" / port / "counters"
            words = {name: _text(counters / name) for name in ("port_xmit_data", "port_rcv_data")}
            known = {name: int(word) * LANE_BYTES for name, word in words.items() if word.isdecimal()}
            yield (device, port), known | _read_rate(devices / device / "ports" / port / "rate")


def _read_rate(file: Path) -> dict[str, int]:
    """Such as ``400 Gb/sec (4X NDR)``: in bytes per second."""
    gigabits = re.match(r"(\d+(?:\.\d+)?) Gb/sec", _text(file))
    return {"rate": round(float(gigabits[1]) * 1e9 / 8)} if gigabits else {}


def _names(folder: Path) -> Iterable[str]:
    with suppress(OSError):
        return sorted(entry.name for entry in folder.iterdir())
    return ()


def _numbered(folder: Path, prefix: str) -> list[str]:
    """The numbers of ``prefix0``, ``prefix1``, … in their order."""
    numbers = (name.removeprefix(prefix) for name in _names(folder) if name.startswith(prefix))
    return sorted((number for number in numbers if number.isdecimal()), key=int)


def node_exporter_runs(port: int = 9100) -> bool:
    """Whether something accepts connections on node_exporter's port on this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False
