"""Probes with --deep: the environment's Python imports torch, and what was loaded is
judged as the smoke test does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import expectation, surroundings
from ..report.diagnosis import Evidence
from ..report.findings import Finding
from .probe import Observation, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine

# A cold import from a network file system was seen to take minutes.
IMPORT_S = 300.0


@dataclass(frozen=True)
class NoExpectation:
    """Judges only what is wrong in any context."""

    expect_torch: str | None = None
    expect_cuda: str | None = None
    expect_nccl: str | None = None
    require_gpu: bool = False


def import_torch(machine: Machine) -> Iterator[Observation]:
    assert machine.prefix is not None
    python = os.path.join(machine.prefix, "bin", "python")
    if not os.path.exists(python):
        return
    facts = _facts(python, machine)
    if facts["error"]:
        yield _observed(expectation.broken(facts["error"]), python)
    else:
        for finding in expectation.differences(facts, NoExpectation()):
            yield _observed(finding, python)
        yield from _unsupported_gpus(machine, facts, python)
    for finding in surroundings.foreign_libraries(facts):
        yield _observed(finding, python)


def _facts(python: str, machine: Machine) -> dict[str, Any]:
    command = [python, "-B", *_runtime()]
    child = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=IMPORT_S,
        env=dict(machine.environment),
    )
    try:
        facts: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        text = child.stderr.decode(errors="replace").strip()
        raise ValueError(f"{python}: {text[-500:] or child.returncode}") from None
    return facts


def _runtime() -> list[str]:
    """How the environment's Python starts this package. Where it was sent over standard input it
    has no files, and the environment's own copy must do."""
    file = globals().get("__file__")
    if file is None:
        return ["-m", "provision_runtime", "facts"]
    return [str(Path(file).resolve().parent.parent), "facts"]


def _unsupported_gpus(
    machine: Machine, facts: dict[str, Any], python: str
) -> Iterator[Observation]:
    """Also GPUs that torch does not see; nvidia-smi knows their architecture."""
    output = machine.run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if output is None or facts["torch"]["cuda"] is None or output.status != 0:
        return
    built = facts["torch"]["arch_list"]
    for capability in sorted(set(output.text.split())):
        if not re.fullmatch(r"\d+\.\d", capability):
            continue
        architecture = "sm_" + capability.replace(".", "")
        if expectation.runs_on(architecture, built) is False:
            message = f"this host has {architecture}; torch has code for {', '.join(built)}"
            finding = Finding("arch-unsupported", message)
            yield Observation(
                finding, (Evidence("nvidia-smi --query-gpu=compute_cap", capability),)
            )


def _observed(finding: Finding, python: str) -> Observation:
    return Observation(finding, (Evidence(f"import torch by {python}", finding.message),))


PROBES = (
    Probe(
        "import torch",
        (
            "arch-unsupported",
            "cpu-build",
            "foreign-library",
            "gpu-lost",
            "nccl-older",
            "nccl-shadowed",
            "torch-broken",
        ),
        import_torch,
        deep_deadline_s=IMPORT_S + 10,
        needs_prefix=True,
        deep=True,
    ),
)
