"""Whether one GPU computes and copies as fast as its data sheet lets expect. Pure, except for
reading device_rates.json, which is shipped.

Other ranks are the better measure of a slow GPU. But where all are slow, or there is only one, the
data sheet is the only one.
"""

from __future__ import annotations

import functools
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

SHIPPED = Path(__file__).with_name("device_rates.json")
# Of the data sheet's rates. Matrix multiplication reaches 0.5 to 0.9 of them (github.com/fanghostt/
# transformers-benchmarks: 0.51 on an RTX 3090 Ti, 0.63 on an A6000, 0.76 on a V100).
LEAST_SHARE = 0.4
# What a GPU copies from and to the host, of its PCIe link; through pageable memory it is less.
LEAST_PCIE_SHARE = 0.5
UNITS = {"bfloat16": "TFLOP/s", "float32": "TFLOP/s", "copy": "GB/s"}


@functools.lru_cache(maxsize=None)
def _devices() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(SHIPPED.read_text())["devices"])


def device_rates(device: str) -> dict[str, Any] | None:
    """The data sheet's rates of a GPU: TFLOP/s without sparsity by type, and GB/s of its memory."""
    for entry in _devices():
        if fnmatchcase(device, entry["device"]):
            return entry
    return None


def slow_operations(device: str, rates: Mapping[str, float], rank: int) -> list[Finding]:
    """rates: `matmul_bfloat16`, `matmul_float32` in TFLOP/s and `copy` in GB/s."""
    reference = device_rates(device)
    if reference is None:
        return []
    findings = []
    for operation, unit in UNITS.items():
        rate = rates.get(operation, rates.get(f"matmul_{operation}"))
        expected = reference.get(operation)
        if rate is None or expected is None or rate >= expected * LEAST_SHARE:
            continue
        message = (
            f"{operation} runs at {rate:.4g} {unit}, {rate / expected:.0%} of what {device} has"
            f" ({expected:g}; {reference['source']})"
        )
        findings.append(Finding("compute-slow", message, (rank,)))
    return findings


def slow_host_copies(
    rates: Mapping[str, float], pcie: Mapping[str, Any] | None, rank: int
) -> list[Finding]:
    """rates: `host_to_device` and `device_to_host` in GB/s; pcie: the GPU's link (facts.wires)."""
    if pcie is None:
        return []
    findings = []
    for operation in ("host_to_device", "device_to_host"):
        rate = rates.get(operation)
        if rate is None or rate >= pcie["gb_s"] * LEAST_PCIE_SHARE:
            continue
        message = (
            f"{operation.replace('_', ' ')} runs at {rate:.4g} GB/s, {rate / pcie['gb_s']:.0%} of"
            f" PCIe {pcie['generation']} x{pcie['lanes']} ({pcie['gb_s']:.4g} GB/s)"
        )
        findings.append(Finding("host-copy-slow", message, (rank,)))
    return findings
