"""The NVIDIA GPUs on the PCI bus, as the kernel shows them, and whether an IOMMU is between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path("/")
NVIDIA = "0x10de"
# PCI classes: VGA controller and 3D controller.
GPU_CLASSES = ("0x0300", "0x0302")


def gpus(root: Path = ROOT) -> list[dict[str, Any]]:
    """The address of each GPU, and in `iommu` the type of its IOMMU group.

    DMA or DMA-FQ: addresses are translated; identity: they pass unchanged; None: no IOMMU.
    """
    result = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        pci_class = _read(folder / "class") or ""
        if _read(folder / "vendor") == NVIDIA and pci_class.startswith(GPU_CLASSES):
            result.append({"address": folder.name, "iommu": _read(folder / "iommu_group/type")})
    return result


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
