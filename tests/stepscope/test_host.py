"""Host metrics from recorded /proc and /sys trees, and from this machine's own."""

import os
import re
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepscope.host import HOST, HostMetrics, node_exporter_runs
from stepsim.probes import NODE_EXPORTER

TICKS = os.sysconf("SC_CLK_TCK")

STAT = """\
cpu  400 30 200 9000 600 1 20 4 50 0
cpu0 {user} 10 100 {idle} {iowait} 0 10 2 50 0
cpu3 200 20 100 4500 300 1 10 2 0 0
intr 12345 0 0
ctxt 987654
btime 1700000000
"""
DISKSTATS = """\
   7       0 loop0 11 0 22 33 0 0 0 0 0 0 0
   1       0 ram0 11 0 22 33 0 0 0 0 0 0 0
 253       0 zram0 11 0 22 33 0 0 0 0 0 0 0
   8       0 sda 500 3 8000 1250 70 2 900 88 1 2500 4000 0 0 0 0 9 10
   8       1 sda1 400 3 7000 1000 70 2 900 88 0 2000 3000 0 0 0 0 9 10
 259       0 nvme0n1 427861 36736 20185234 714988 344544 305769 30634096 188838 0 76200 924508 125047 71 263 151 703 554
 259       1 nvme0n1p1 1 0 8 1 0 0 0 0 0 1 1
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1213843945  373124    0    0    0     0          0         0 1213843945  373124    0    0    0     0       0          0
  eth0:1269804791   37138    0    0    0     0          0         0  3002768   25879    0    0    0     0       0          0
"""
MEMINFO = "MemTotal:       32615152 kB\nMemFree:        20000000 kB\nMemAvailable:   24179764 kB\nBuffers: 1 kB\n"
PRESSURE = """\
some avg10=1.53 avg60=0.87 avg300=0.30 total=38704031
full avg10=1.20 avg60=0.70 avg300=0.20 total=21000000
"""

FILES = {
    "proc/stat": STAT.format(user=200, idle=4500, iowait=300),
    "proc/diskstats": DISKSTATS,
    "proc/net/dev": NET,
    "proc/meminfo": MEMINFO,
    "proc/pressure/io": PRESSURE,
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors": "performance powersave\n",
    "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "1000000\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "2000000\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_1/ports/2/rate": "2.5 Gb/sec (1X SDR)\n",
    "sys/class/infiniband/mlx5_1/ports/2/counters/port_xmit_data": "18446744073709551615\n",
    "sys/class/infiniband/mlx5_1/ports/2/counters/port_rcv_data": "N/A (no PMA)\n",
}


@pytest.fixture
def machine(tmp_path):
    """A machine of two CPUs, two disks and two InfiniBand ports."""
    for name, text in FILES.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root, name, text):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="ascii")


def host(root):
    return HostMetrics(root / "proc", root / "sys")


def samples(text):
    """Values by name and the values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def family(text, name):
    return {key[1:]: value for key, value in samples(text).items() if key[0] == name}


def test_every_family_is_read_from_a_whole_machine(machine):
    """Names, types, help and labels are the simulator's, which are node_exporter's."""
    families = list(text_string_to_metric_families(host(machine).text()))
    found = {re.sub("_total$", "", metric.name) for metric in HOST}
    assert {family.name for family in families} == found
    simulated = {m.name: (m.kind, m.help, m.scope, m.labels) for m in NODE_EXPORTER}
    assert {m.name: (m.kind, m.help, m.scope, m.labels) for m in HOST} == simulated


def test_cpu_seconds_are_ticks_by_cpu_and_mode(machine):
    """Eight modes of each CPU that is online, the guest's time not counted twice, and no sum over CPUs."""
    seconds = family(host(machine).text(), "node_cpu_seconds_total")
    modes = {"user": 200, "nice": 20, "system": 100, "idle": 4500, "iowait": 300, "irq": 1, "softirq": 10, "steal": 2}
    assert {mode: value for (cpu, mode), value in seconds.items() if cpu == "3"} == {
        mode: ticks / TICKS for mode, ticks in modes.items()
    }
    assert {cpu for cpu, _ in seconds} == {"0", "3"}


def test_cpu_counters_never_run_backwards(machine):
    """iowait may shrink in the kernel; to Prometheus that would be a restart, and a rate of years per second."""
    reader = host(machine)
    reader.text()
    write(machine, "proc/stat", STAT.format(user=201, idle=4499, iowait=150))
    seconds = family(reader.text(), "node_cpu_seconds_total")
    assert (seconds["0", "iowait"], seconds["0", "idle"]) == (300 / TICKS, 4500 / TICKS)
    assert seconds["0", "user"] == 201 / TICKS


def test_a_cpu_that_was_offline_starts_anew(machine):
    """An idle counter that falls by seconds is a real reset and passes through."""
    reader = host(machine)
    reader.text()
    write(machine, "proc/stat", STAT.format(user=1, idle=4500 - 4 * TICKS, iowait=2))
    seconds = family(reader.text(), "node_cpu_seconds_total")
    assert (seconds["0", "user"], seconds["0", "iowait"]) == (1 / TICKS, 2 / TICKS)


def test_io_pressure_is_the_time_in_which_some_process_waited(machine):
    """Microseconds become seconds, and the line is 'some'."""
    assert family(host(machine).text(), "node_pressure_io_waiting_seconds_total") == {(): 38.704031}


def test_disks_are_whole_disks_in_bytes_and_seconds(machine):
    """512-byte sectors and milliseconds; memory and loop devices and partitions are left out."""
    text = host(machine).text()
    assert family(text, "node_disk_read_bytes_total") == {("sda",): 8000 * 512, ("nvme0n1",): 20185234 * 512}
    assert family(text, "node_disk_reads_completed_total") == {("sda",): 500, ("nvme0n1",): 427861}
    assert family(text, "node_disk_read_time_seconds_total") == {("sda",): 1.25, ("nvme0n1",): 714.988}
    assert family(text, "node_disk_io_time_seconds_total") == {("sda",): 2.5, ("nvme0n1",): 76.2}


def test_infiniband_words_become_bytes(machine):
    """Four bytes to a word; a port that has no counter has no series."""
    text = host(machine).text()
    assert family(text, "node_infiniband_port_data_transmitted_bytes_total") == {
        ("mlx5_0", "1"): 4_000_000,
        ("mlx5_1", "2"): 4 * (2**64 - 1),
    }
    assert family(text, "node_infiniband_port_data_received_bytes_total") == {("mlx5_0", "1"): 8_000_000}


def test_a_ports_rate_is_in_bytes_per_second(machine):
    """The kernel writes gigabits, and what kind of link it is."""
    rates = family(host(machine).text(), "node_infiniband_rate_bytes_per_second")
    assert rates == {("mlx5_0", "1"): 50e9, ("mlx5_1", "2"): 312_500_000}


def test_network_counts_what_each_interface_sent(machine):
    """The ninth column, whether or not a space follows the colon."""
    sent = family(host(machine).text(), "node_network_transmit_bytes_total")
    assert sent == {("lo",): 1213843945, ("eth0",): 3002768}


def test_available_memory_is_in_bytes(machine):
    """kB means 1024 bytes there."""
    assert family(host(machine).text(), "node_memory_MemAvailable_bytes") == {(): 24179764 * 1024}


def test_the_governor_is_1_among_those_a_cpu_could_have(machine):
    """As node_exporter: 0 for the others; a CPU whose choices are not listed has its current one."""
    assert family(host(machine).text(), "node_cpu_scaling_governor") == {
        ("0", "performance"): 0,
        ("0", "powersave"): 1,
        ("3", "schedutil"): 1,
    }


@pytest.mark.parametrize("absent", ["proc/stat", "proc/diskstats", "proc/net/dev", "proc/meminfo", "proc/pressure/io"])
def test_a_file_that_is_not_there_costs_its_own_series_only(machine, absent):
    """Missing is absent, never 0, and everything else reads as before."""
    whole = samples(host(machine).text())
    (machine / absent).unlink()
    found = samples(host(machine).text())
    assert found.items() < whole.items()
    gone = {key[0] for key in whole.keys() - found.keys()}
    assert gone == {
        "proc/stat": {"node_cpu_seconds_total"},
        "proc/diskstats": {key[0] for key in whole if key[0].startswith("node_disk")},
        "proc/net/dev": {"node_network_transmit_bytes_total"},
        "proc/meminfo": {"node_memory_MemAvailable_bytes"},
        "proc/pressure/io": {"node_pressure_io_waiting_seconds_total"},
    }[absent]  # fmt: skip


def test_a_file_that_refuses_to_be_read_is_like_one_that_is_not_there(machine):
    """Pressure that the kernel was not told to account is there and cannot be read."""
    (machine / "proc/pressure/io").unlink()
    (machine / "proc/pressure/io").mkdir()
    assert family(host(machine).text(), "node_pressure_io_waiting_seconds_total") == {}
    assert family(host(machine).text(), "node_disk_read_bytes_total")


def test_a_machine_without_any_of_it_has_an_empty_page(tmp_path):
    """Not Linux, for instance."""
    assert host(tmp_path).text() == ""


def test_disks_interfaces_and_cpus_come_and_go(machine):
    """The page follows what is there now and keeps nothing of what was."""
    reader = host(machine)
    reader.text()
    write(machine, "proc/diskstats", DISKSTATS.replace(" sda ", " sdb "))
    write(machine, "proc/stat", FILES["proc/stat"].replace("cpu3", "cpu4"))
    write(machine, "proc/net/dev", NET.replace("eth0", "ib0"))
    text = reader.text()
    assert text == host(machine).text()
    assert set(family(text, "node_disk_read_bytes_total")) == {("sdb",), ("nvme0n1",)}
    assert {cpu for cpu, _ in family(text, "node_cpu_seconds_total")} == {"0", "4"}


def test_this_machine_reads_true():
    """The real /proc: memory, one series per CPU and mode, and counters that only grow."""
    reader = HostMetrics()
    first, second = samples(reader.text()), samples(reader.text())
    assert 0 < first["node_memory_MemAvailable_bytes",] < 2**60
    cpus = {key[1] for key in first if key[0] == "node_cpu_seconds_total"}
    assert len(cpus) >= len(os.sched_getaffinity(0))
    assert first["node_cpu_seconds_total", min(cpus), "idle"] > 0
    counters = [key for key in first.keys() & second.keys() if key[0].endswith("_total")]
    assert [key for key in counters if second[key] < first[key]] == []
    assert any(key[0] == "node_network_transmit_bytes_total" for key in counters)


def test_node_exporter_is_found_by_its_port():
    """Something that accepts connections runs; a port that was just closed does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert node_exporter_runs(port) is True
    assert node_exporter_runs(port) is False
