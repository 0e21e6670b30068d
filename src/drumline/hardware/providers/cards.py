"""The cards that can be simulated, with the vendors' published numbers."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """One model of card. NVLink or xGMI by number of links and generation; 0 means PCIe only."""

    name: str
    family: str
    memory_gib: int
    architecture: tuple[int, int] | str
    cores: int
    max_sm_clock_mhz: int
    max_memory_clock_mhz: int
    power_limit_w: float
    pcie_generation: int
    nvlinks: int = 0


CARDS = {
    "B200": Card("NVIDIA B200", "cuda", 180, (10, 0), 18944, 1965, 3996, 1000, 5, 18),
    "H200": Card("NVIDIA H200", "cuda", 141, (9, 0), 16896, 1980, 3201, 700, 5, 18),
    "H100": Card("NVIDIA H100 80GB HBM3", "cuda", 80, (9, 0), 16896, 1980, 2619, 700, 5, 18),
    "H100-PCIE": Card("NVIDIA H100 PCIe", "cuda", 80, (9, 0), 14592, 1755, 1593, 350, 5),
    "A100": Card("NVIDIA A100-SXM4-80GB", "cuda", 80, (8, 0), 6912, 1410, 1593, 400, 4, 12),
    "A100-40GB": Card("NVIDIA A100-SXM4-40GB", "cuda", 40, (8, 0), 6912, 1410, 1215, 400, 4, 12),
    "L40S": Card("NVIDIA L40S", "cuda", 48, (8, 9), 18176, 2520, 9001, 350, 4),
    "L4": Card("NVIDIA L4", "cuda", 24, (8, 9), 7424, 2040, 6251, 72, 4),
    "A10": Card("NVIDIA A10", "cuda", 24, (8, 6), 9216, 1695, 6251, 150, 4),
    "T4": Card("Tesla T4", "cuda", 16, (7, 5), 2560, 1590, 5001, 70, 3),
    "V100": Card("Tesla V100-SXM2-32GB", "cuda", 32, (7, 0), 5120, 1530, 877, 300, 3, 6),
    "RTX4090": Card("NVIDIA GeForce RTX 4090", "cuda", 24, (8, 9), 16384, 3105, 10501, 450, 4),
    "RTX3090": Card("NVIDIA GeForce RTX 3090", "cuda", 24, (8, 6), 10496, 2100, 9751, 350, 4),
    "MI300X": Card("AMD Instinct MI300X", "rocm", 192, "gfx942", 304, 2100, 1300, 750, 5, 7),
}
