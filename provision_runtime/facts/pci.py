"""The NVIDIA GPUs on the PCI bus, as the kernel shows them, and whether an IOMMU stands between them. Asks only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path("/")
NVIDIA = "0x10de"
# PCI classes: VGA controller and 3D controller.
GPU_CLASSES = ("0x0300", "0x0302")


def gpus(root: Path = ROOT) -> list[dict[str, Any]]:
    """`iommu` is the type of the GPU's group: DMA or DMA-FQ where addresses are translated, identity where they pass, else None."""
    folders = sorted((root / "sys/bus/pci/devices").glob("*"))
    found = [
        folder
        for folder in folders
        if _read(folder / "vendor") == NVIDIA
        and (_read(folder / "class") or "").startswith(GPU_CLASSES)
    ]
    return [
        {"address": folder.name, "iommu": _read(folder / "iommu_group/type")} for folder in found
    ]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
