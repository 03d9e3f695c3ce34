"""GPUs on the PCI bus, from a made-up /sys."""

from __future__ import annotations

from pathlib import Path

from provision_runtime.facts import libraries


def device(root: Path, address: str, vendor: str, kind: str, iommu: str | None) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")
    if iommu:
        (folder / "iommu_group").mkdir()
        (folder / "iommu_group/type").write_text(iommu + "\n")


def test_pci_gpus_and_their_iommu(tmp_path: Path) -> None:
    assert libraries.pci_gpus(tmp_path) == []
    device(tmp_path, "0000:65:00.0", "0x10de", "0x030200", None)
    device(tmp_path, "0000:17:00.0", "0x10de", "0x030200", "DMA-FQ")
    device(tmp_path, "0000:17:00.1", "0x10de", "0x040300", "DMA-FQ")  # the GPU's sound
    device(tmp_path, "0000:02:00.0", "0x1a03", "0x030000", "DMA-FQ")  # the board's own graphics
    assert libraries.pci_gpus(tmp_path) == [
        {"address": "0000:17:00.0", "iommu": "DMA-FQ"},
        {"address": "0000:65:00.0", "iommu": None},
    ]
