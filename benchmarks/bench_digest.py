"""Seconds that the parameter digest of a model of a billion parameters takes, and its data digest against sha256 alone.

Usage: python benchmarks/bench_digest.py   (needs torch: in this interpreter, or in the one that PROVISION_TEST_PYTHON names)
The models lie on the meta device: names and shapes are all that the digest looks at. Reading the data is measured on 256 MiB.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RUNS = 9
ROOT = Path(__file__).resolve().parent.parent
TARGET_S = 1.0


def main() -> None:
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    if "--here" in sys.argv:
        measure()
    elif subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print(
            f"parameter digest: not measured, {python} has no torch (name one that has in PROVISION_TEST_PYTHON)"
        )
    else:
        subprocess.run(
            [python, "-s", __file__, "--here"],
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def measure() -> None:
    import torch
    from torch import nn

    from provision_runtime.facts import ddp_check

    def gpt() -> nn.Module:
        """As wide and as deep as a language model of that size: few and large tensors."""
        width, layers = 2048, 20

        def block() -> nn.Module:
            return nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, device="meta")

        return nn.ModuleList([block() for _ in range(layers)])

    def many() -> nn.Module:
        """As many and as small tensors as mixtures of experts and adapters have at most."""
        return nn.ParameterList(
            [nn.Parameter(torch.empty(100, 100, device="meta")) for _ in range(100_000)]
        )

    print(f"torch {torch.__version__}")
    for name, model in (("layers of a language model", gpt()), ("100,000 small tensors", many())):
        parameters = list(model.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        seconds = median_s(lambda model=model: ddp_check.parameter_digest(model))
        print(
            f"{name}: {count / 1e9:.2f} billion parameters in {len(parameters)} tensors: {seconds:.4f} s (target {TARGET_S:g} s)"
        )


def median_s(action: Callable[[], object]) -> float:
    timings = []
    for _ in range(RUNS):
        start = time.perf_counter()
        action()
        timings.append(time.perf_counter() - start)
    return statistics.median(timings)


if __name__ == "__main__":
    main()
