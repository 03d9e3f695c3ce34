"""Probes with --deep: the environment's Python imports torch, and what was loaded is
judged as the smoke test does."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..checks import expectation, surroundings
from ..facts import environment
from .probe import Probe, judged, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..facts.model import EnvironmentFacts
    from ..report.diagnosis import ObservedFinding
    from .machine import Machine


def import_torch(machine: Machine) -> Iterator[ObservedFinding]:
    assert machine.prefix is not None
    python = os.path.join(machine.prefix, "bin", "python")
    if not os.path.exists(python):
        return
    facts = environment.collect_in_child(python, machine.environment)
    findings = surroundings.foreign_libraries(facts)
    if facts["error"]:
        findings.insert(0, expectation.broken(facts["error"]))
    else:
        findings = [*expectation.differences(facts, expectation.Expectation()), *findings]
        yield from _unsupported_gpus(machine, facts)
    for finding in findings:
        yield from judged(finding, f"import torch by {python}", finding)


def _unsupported_gpus(machine: Machine, facts: EnvironmentFacts) -> Iterator[ObservedFinding]:
    """Also GPUs that torch does not see; nvidia-smi knows their architecture."""
    torch = facts["torch"]
    output = machine.run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if output is None or output.status != 0 or torch is None or torch["cuda"] is None:
        return
    built = torch["arch_list"]
    for capability in sorted(set(re.findall(r"^\d+\.\d$", output.text, re.MULTILINE))):
        architecture = "sm_" + capability.replace(".", "")
        if expectation.runs_on(architecture, built) is False:
            message = f"this host has {architecture}; torch has code for {', '.join(built)}"
            source = "nvidia-smi --query-gpu=compute_cap"
            yield observation("arch-unsupported", message, source, capability)


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
        deep_deadline_s=environment.IMPORT_TIMEOUT_S + 10,
        needs_prefix=True,
        deep=True,
    ),
)
