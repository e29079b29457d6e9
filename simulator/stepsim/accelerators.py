"""The accelerators that the simulator knows, with their datasheet figures and power model.

To add one: add a row, and its peak to ``stepscope.mfu.PEAK_FLOPS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.mfu import PEAK_FLOPS


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One GPU. Figures are the maker's unless said otherwise (collected in stas00/ml-engineering, accelerators)."""

    name: str
    model_name: str
    """As NVML reports it."""
    memory_bytes: float
    hbm_bytes_per_second: float
    busbw_bytes_per_second: float
    """Measured bus bandwidth of a large all-reduce inside one node."""
    hop_seconds: float
    """Latency of one hop of an intra-node ring (NCCL src/graph/tuning.cc, LL128: NVLink 1.9 µs, PCIe 2.5 µs)."""
    nvlink: bool = False
    nvls: bool = False
    """Whether NVSwitch reduces inside a full node (NVLink SHARP)."""
    pcie_generation: int
    power_limit_watts: float
    idle_watts: float
    spec_mhz: float
    """The clock at which the peak FLOP/s hold."""
    max_mhz: float
    memory_mhz: float
    sms: int
    profiling: bool = True
    """Whether it is a data-center part: only for those does DCGM have profiling metrics."""
    thermal_resistance: float
    """°C per watt, coolant to die."""

    @property
    def peak_flops(self) -> float:
        """Dense bf16 FLOP/s."""
        return PEAK_FLOPS[self.name]


THROTTLE_CELSIUS = 87.0
"""H100's maximum operating temperature; above it the driver lowers clocks."""
INLET_CELSIUS = 25.0
THERMAL_SECONDS = 18.0
"""Time constant of the die with its cold plate: 15–20 s."""

TENSOR_WATTS, DRAM_WATTS, SM_WATTS = 1060.0, 250.0, 160.0
"""Dynamic power of an H100 at 1,980 MHz for full tensor, DRAM and SM activity (derived in docs/physics.md); other
accelerators scale with their power limit."""
REFERENCE_LIMIT_WATTS = 700.0
POWER_EXPONENT = 2.4
"""Dynamic power grows with clock to this power: voltage falls with frequency."""

PCIE_BYTES_PER_SECOND = {3: 12e9, 4: 25e9, 5: 55e9}
"""Pinned host-to-device copy, ×16: gen 5 measured, gen 3 and 4 typical."""

GIB = 2.0**30

ACCELERATORS = {
    gpu.name: gpu
    for gpu in (
        Accelerator(
            name="A100 SXM", model_name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB, hbm_bytes_per_second=2.04e12,
            busbw_bytes_per_second=235e9, hop_seconds=1.9e-6, nvlink=True, pcie_generation=4, power_limit_watts=400, idle_watts=62,
            spec_mhz=1410, max_mhz=1410, memory_mhz=1593, sms=108, thermal_resistance=0.105,
        ),
        Accelerator(
            name="A100 PCIe", model_name="NVIDIA A100 80GB PCIe", memory_bytes=80 * GIB, hbm_bytes_per_second=1.94e12,
            busbw_bytes_per_second=14e9, hop_seconds=2.5e-6, pcie_generation=4, power_limit_watts=300, idle_watts=62,
            spec_mhz=1410, max_mhz=1410, memory_mhz=1512, sms=108, thermal_resistance=0.13,
        ),
        Accelerator(
            name="H100 SXM", nvls=True, model_name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, hbm_bytes_per_second=3.35e12,
            busbw_bytes_per_second=367e9, hop_seconds=1.9e-6, nvlink=True, pcie_generation=5, power_limit_watts=700, idle_watts=64,
            spec_mhz=1830, max_mhz=1980, memory_mhz=2619, sms=132, thermal_resistance=0.065,
        ),
        Accelerator(
            name="H100 PCIe", model_name="NVIDIA H100 PCIe", memory_bytes=80 * GIB, hbm_bytes_per_second=2.0e12,
            busbw_bytes_per_second=28e9, hop_seconds=2.5e-6, pcie_generation=5, power_limit_watts=350, idle_watts=64,
            spec_mhz=1755, max_mhz=1755, memory_mhz=1593, sms=114, thermal_resistance=0.12,
        ),
        Accelerator(
            name="H200 SXM", nvls=True, model_name="NVIDIA H200", memory_bytes=141 * GIB, hbm_bytes_per_second=4.8e12,
            busbw_bytes_per_second=367e9, hop_seconds=1.9e-6, nvlink=True, pcie_generation=5, power_limit_watts=700, idle_watts=66,
            spec_mhz=1830, max_mhz=1980, memory_mhz=3201, sms=132, thermal_resistance=0.065,
        ),
        Accelerator(
            name="B200", model_name="NVIDIA B200", memory_bytes=180 * GIB, hbm_bytes_per_second=8.0e12,
            busbw_bytes_per_second=682e9, hop_seconds=1.9e-6, nvlink=True, pcie_generation=5, power_limit_watts=1000, idle_watts=90,
            spec_mhz=1965, max_mhz=1965, memory_mhz=3996, sms=148, thermal_resistance=0.045,
        ),
        Accelerator(
            name="L40S", model_name="NVIDIA L40S", memory_bytes=48 * GIB, hbm_bytes_per_second=0.864e12,
            busbw_bytes_per_second=14e9, hop_seconds=2.5e-6, pcie_generation=4, power_limit_watts=350, idle_watts=35,
            spec_mhz=2520, max_mhz=2520, memory_mhz=9001, sms=142, thermal_resistance=0.12,
        ),
        Accelerator(
            name="RTX 4090", model_name="NVIDIA GeForce RTX 4090", memory_bytes=24 * GIB,
            hbm_bytes_per_second=1.008e12, busbw_bytes_per_second=14e9, hop_seconds=2.5e-6, pcie_generation=4,
            power_limit_watts=450, idle_watts=25, spec_mhz=2520, max_mhz=2520, memory_mhz=10501, sms=128,
            profiling=False, thermal_resistance=0.095,
        ),
        Accelerator(
            name="RTX 3090", model_name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB,
            hbm_bytes_per_second=0.936e12, busbw_bytes_per_second=14e9, hop_seconds=2.5e-6, pcie_generation=4,
            power_limit_watts=350, idle_watts=25, spec_mhz=1695, max_mhz=1695, memory_mhz=9751, sms=82,
            profiling=False, thermal_resistance=0.12,
        ),
    )
}  # fmt: skip
