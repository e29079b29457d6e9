"""A machine that replays what programs wrote and files contained; by default a healthy node of eight H100."""

import copy
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

from stepscope.doctor.machine import Disk, Output

RECORDED = Path(__file__).parents[1] / "stepscope/recorded/doctor"
GIB = 2**30
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")

SHM = Disk(total_bytes=1000 * GIB, free_bytes=990 * GIB)
MISSING = Output(ended="missing")
TIMEOUT = Output(ended="timeout")


def recorded(name):
    return (RECORDED / name).read_text(encoding="utf-8")


def smi_log(changes=None, gpus=8, head=("560.35.03", "12.6")):
    """``nvidia-smi -q -x`` of H100s. ``changes``: by GPU, the text of elements by their path; None removes them."""
    template = ElementTree.fromstring(recorded("h100-gpu.xml"))
    blocks = []
    for index in range(gpus):
        gpu = copy.deepcopy(template)
        gpu.set("id", f"00000000:{BUSES[index].upper()}:00.0")
        for path, value in (changes or {}).get(index, {}).items():
            parent, _, tag = path.rpartition("/")
            found = gpu.find(path)
            if found is None:
                found = ElementTree.SubElement(gpu.find(parent) if parent else gpu, tag)
            if value is None:
                (gpu.find(parent) if parent else gpu).remove(found)
            else:
                found.text = value
        blocks.append(ElementTree.tostring(gpu, encoding="unicode"))
    driver, cuda = head
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<driver_version>{driver}</driver_version>\n<cuda_version>{cuda}</cuda_version>\n"
        f"<attached_gpus>{gpus}</attached_gpus>\n{''.join(blocks)}</nvidia_smi_log>\n"
    )


def nvlink_status(changes=None, gpus=8):
    """``changes``: by GPU and link, what stands behind the colon."""
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-1111-2222-3333-44444444444{gpu})")
        lines += [f"\t Link {link}: {(changes or {}).get((gpu, link), '26.562 GB/s')}" for link in range(18)]
    return "\n".join(lines) + "\n"


def h100_outputs():
    return {
        "nvidia-smi -q -x": Output(text=smi_log()),
        "nvidia-smi nvlink --status": Output(text=nvlink_status()),
        "nvidia-smi topo -m": Output(text=recorded("topo-h100.txt")),
        "dmesg": Output(text=recorded("dmesg-xid.txt").split("[86400")[0]),
    }


def h100_files():
    """Two sockets of 56 cores, as in a DGX H100."""
    cpus = {0: "0-55,112-167", 1: "56-111,168-223"}
    pci = "/sys/bus/pci/devices/0000"
    return {
        "/proc/self/cgroup": "0::/system.slice/slurmd.service\n",
        "/proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-223\nMems_allowed_list:\t0-1\n",
        "/sys/fs/cgroup/system.slice/cpu.max": "max 100000\n",
        "/proc/meminfo": "MemTotal:       2113477548 kB\nMemAvailable:   2080000000 kB\nHugePages_Total:       0\n"
        "HugePages_Free:        0\nHugepagesize:       2048 kB\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        **{f"/sys/devices/system/node/node{home}/cpulist": f"{span}\n" for home, span in cpus.items()},
        **{f"{pci}:{bus}:00.0/numa_node": f"{index // 4}\n" for index, bus in enumerate(BUSES)},
        **{f"{pci}:{bus}:00.0/uevent": uevent("2330", "30200") for bus in BUSES},
        f"{pci}:05:00.0/uevent": uevent("22A3", "68000"),  # an NVSwitch
        **{f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(224)},
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
    }


def uevent(device, pci_class, driver="nvidia"):
    return f"DRIVER={driver}\nPCI_CLASS={pci_class}\nPCI_ID=10DE:{device}\nPCI_SLOT_NAME=0000:00:00.0\n"


class RecordedMachine:
    """Programs that are not in ``outputs`` are not installed; files that are not in ``files`` are not there."""

    def __init__(self, outputs=None, files=None, packages=None, shm=SHM):
        self.outputs = {**h100_outputs(), **(outputs or {})}
        self.files = {**h100_files(), **(files or {})}
        self.packages = packages or {}
        self.shm = shm
        self.ran = []

    def run(self, command, timeout_seconds):
        line = " ".join(command)
        self.ran.append(line)
        assert 0 < timeout_seconds <= 600
        return next((output for key, output in self.outputs.items() if key in line), MISSING)

    def read(self, path):
        return self.files.get(path)

    def glob(self, pattern):
        """Files, and the folders that they are in."""
        wanted = pattern.split("/")
        there = {"/".join(path.split("/")[: len(wanted)]) for path, text in self.files.items() if text is not None}
        return sorted(
            path
            for path in there
            if len(path.split("/")) == len(wanted) and all(map(fnmatchcase, path.split("/"), wanted))
        )

    def disk(self, path):
        return self.shm if path == "/dev/shm" else None

    def package(self, name):
        return self.packages.get(name)
