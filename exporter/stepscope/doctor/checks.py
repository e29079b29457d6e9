"""THE table of checks, in the order of the report. To add one: its function beside its kin, and a row here and in
``docs/doctor.md``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.doctor import dataset, gpu, host, links, nccl, versions, xid
from stepscope.doctor.finding import STATUSES, Check, Node, Result, Status, examine
from stepscope.doctor.machine import Machine
from stepscope.doctor.smi import take_inventory

CHECKS: tuple[Check, ...] = (
    Check(name="gpu", needs="a GPU", run=gpu.answers,
          expected="every GPU on the PCI bus answers the driver, or as many as --gpus says",
          next_step="drain the node; look for NVRM and Xid lines in dmesg. In a container that was given fewer, say --gpus N"),
    Check(name="versions", of="job", needs="a GPU that answers", run=versions.versions,
          expected="a driver that runs torch's CUDA, and an NCCL for the same CUDA",
          next_step="update the driver, or install a torch built for the CUDA that it offers"),
    Check(name="pcie", needs="a GPU that answers", run=gpu.pcie,
          expected="generation and width at their maximum",
          next_step="when idle, measure again under load; else reseat the GPU or riser, and check the BIOS's link settings"),
    Check(name="throttle", needs="a GPU that answers", run=gpu.throttle,
          expected="no hardware slowdown, thermal slowdown or power brake",
          next_step="check fans, inlet temperature and power supplies"),
    Check(name="power_limit", needs="a GPU that answers", run=gpu.power_limit,
          expected="the default limit, and the same one on all GPUs of a kind",
          next_step="nvidia-smi -pl with the default limit, unless the cap is meant"),
    Check(name="ecc", needs="a GPU that answers", run=gpu.ecc,
          expected="no uncorrectable error, no remap that waits or failed, no reset asked for",
          next_step="drain the node and reset the GPU (nvidia-smi -r); replace it if a remap failed"),
    Check(name="nvlink", needs="a GPU that answers", run=links.nvlink,
          expected="all links up, at one speed, the fabric ready",
          next_step="systemctl status nvidia-fabricmanager; nvidia-smi nvlink -e; then reset the GPUs or reboot"),
    Check(name="topology", needs="a GPU that answers", run=links.topology,
          expected="no pair of GPUs crosses a host bridge or NUMA nodes",
          next_step="keep ranks that talk most on one side; with NVLinks, see nvlink"),
    Check(name="xid", needs="a GPU", run=xid.xid,
          expected="no Xid since boot but applications' own",
          next_step="act as NVIDIA's Xid catalog says; run as root to read the log; reboot to begin a new one"),
    Check(name="governor", run=host.governor,
          expected="performance on every CPU",
          next_step="cpupower frequency-set -g performance"),
    Check(name="cpu_quota", of="job", run=host.cpu_quota,
          expected="6 CPUs or more per GPU, 2 at least",
          next_step="ask for more: --cpus-per-gpu (Slurm), resources.limits.cpu (Kubernetes)"),
    Check(name="numa", needs="a GPU that answers", run=host.numa,
          expected="CPUs on every GPU's own NUMA node",
          next_step="bind each rank to its GPU's node (srun --gpu-bind=closest, numactl), or ask for CPUs on all nodes"),
    Check(name="memory", run=host.memory,
          expected="half of the memory available, a tenth at least",
          next_step="look for what another job left behind (ps, ipcs, tmpfs)"),
    Check(name="hugepages", run=host.hugepages,
          expected="no compaction at every page fault, no large unused reserve",
          next_step="echo madvise into /sys/kernel/mm/transparent_hugepage/defrag; lower vm.nr_hugepages"),
    Check(name="shm", of="job", run=host.shm,
          expected="1 GiB or more per GPU free, 1 GiB in all at least, no left-overs of other jobs",
          next_step="--shm-size or --ipc=host (Docker), an emptyDir of medium Memory at /dev/shm (Kubernetes); clean it up"),
    Check(name="dataset", of="job", run=dataset.dataset,
          expected="reads of 128 KiB below 20 ms, none of 0.3 s; large files",
          next_step="look at the mount and its server; pack small files into shards; cache on local disks"),
    Check(name="nccl", needs="a GPU that answers", run=nccl.nccl,
          expected="90 % of the bus bandwidth published for such a node",
          next_step="NCCL_DEBUG=INFO shows the path taken; see nvlink and topology"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Report:
    """All results of one node."""

    node: str
    results: tuple[Result, ...]

    @property
    def status(self) -> Status:
        """The worst; what does not apply is no fault."""
        found = {result.status for result in self.results}
        return next((status for status in reversed(STATUSES[:-1]) if status in found), "pass")

    def names(self, status: Status) -> list[str]:
        return [result.name for result in self.results if result.status == status]


def acceptance(
    machine: Machine,
    *,
    name: str,
    gpus_expected: int | None = None,
    data: str | None = None,
    nccl: bool = False,
    progress: Callable[[str], None],
) -> Report:
    """Make every check of ``CHECKS``."""
    node = Node(
        name=name,
        machine=machine,
        inventory=take_inventory(machine),
        gpus_expected=gpus_expected,
        data=data,
        nccl=nccl,
        progress=progress,
    )
    return Report(node=name, results=tuple(examine(check, node) for check in CHECKS))
