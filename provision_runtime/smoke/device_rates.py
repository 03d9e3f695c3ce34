"""Whether one GPU computes and copies as fast as its data sheet lets expect (device_models.json).

Other ranks are the better measure of a slow GPU. But where all are slow, or there is only one, the
data sheet is the only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..checks.device_models import model_of
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

# A healthy GPU's share of the data sheet's rates. Matrix multiplication reaches 0.5 to 0.9 of them (github.com/fanghostt/
# transformers-benchmarks: 0.51 on an RTX 3090 Ti, 0.63 on an A6000, 0.76 on a V100).
LEAST_SHARE = 0.4
UNITS = {"bfloat16": "TFLOP/s", "float32": "TFLOP/s", "copy": "GB/s"}


def slow_operations(device: str, rates: Mapping[str, float], rank: int) -> list[Finding]:
    """rates: `matmul_bfloat16`, `matmul_float32` in TFLOP/s and `copy` in GB/s."""
    reference = model_of(device)
    findings = []
    for operation, unit in UNITS.items():
        rate = rates.get(operation, rates.get(f"matmul_{operation}"))
        expected = cast("Mapping[str, float]", reference).get(operation)
        if rate is None or expected is None or rate >= expected * LEAST_SHARE:
            continue
        message = (
            f"{operation} runs at {rate:.4g} {unit}, {rate / expected:.0%} of what {device} has"
            f" ({expected:g}; {reference['source']})"
        )
        findings.append(Finding("compute-slow", message, (rank,)))
    return findings
