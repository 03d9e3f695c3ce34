"""A candidate and what goes with it -> the pins of environment.yml, each with its reason and
source; the channels they come from."""

from __future__ import annotations

from collections.abc import Iterator

from provision.catalog import Rule
from provision.core.spec_fields import Spec
from provision.core.types import Pin
from provision.resolver import python_versions
from provision.sources.base import ASKED_FOR, NO_SOURCE, Candidate
from provision.sources.pypi_wheels import PIP

DEFAULT_CHANNELS = ("conda-forge",)
# The same reason for a requested and a default Python: the first build writes the default into
# spec.yml, and must then render the same again.
PYTHON_REASON = "one minor version per environment, and this build supports it"
JUPYTER_REASON, JUPYTER_SOURCE = "Jupyter starts this environment through it", "provision kernel"
XXHASH_REASON = (
    "provision_runtime.checkpoint loads, and saves again, several times as fast with its XXH128, "
    "which came with 2.0"
)
XXHASH_SOURCE = "provision_runtime.checkpoint; ifduyue/python-xxhash@v2.0.0:CHANGELOG.rst"
RDMA_REASON = (
    "several hosts over InfiniBand or RoCE: NCCL loads libibverbs when it starts, and without it "
    "falls back to TCP"
)
RDMA_SOURCE = "NVIDIA/nccl@d97a32fac84f69cbd022ffdc57d5687c760742c7:src/misc/ibvsymbols.cc"


def pins(spec: Spec, candidate: Candidate, rules: tuple[Rule, ...]) -> Iterator[Pin]:
    """Every requirement, in the order in which it is rendered.

    The spec is settled: its Python is chosen.
    """
    assert spec.python is not None
    manager = candidate.source.manager
    yield Pin(
        manager="conda",
        requirement=f"python={spec.python}",
        reason=PYTHON_REASON,
        source=python_versions.source_of(candidate, spec.platforms[0]) or NO_SOURCE,
    )
    yield from candidate.source.torch_pins(candidate, spec)
    if spec.pip and manager != "pip":
        yield PIP
    for rule in rules:
        if rule.consequence == "pin" and rule.requirement:
            yield Pin(
                manager=manager,
                requirement=rule.requirement,
                reason=rule.reason,
                source=rule.source,
            )
    if spec.infiniband:
        yield Pin(manager="conda", requirement="rdma-core", reason=RDMA_REASON, source=RDMA_SOURCE)
    if spec.jupyter:
        yield Pin(
            manager=manager, requirement="ipykernel", reason=JUPYTER_REASON, source=JUPYTER_SOURCE
        )
    if spec.fast_checkpoints:
        package = "xxhash" if manager == "pip" else "python-xxhash"
        yield Pin(
            manager=manager,
            requirement=f"{package}>=2",
            reason=XXHASH_REASON,
            source=XXHASH_SOURCE,
        )
    for requirement in spec.conda:
        yield Pin(manager="conda", requirement=requirement, reason=ASKED_FOR, source="spec.yml")
    for requirement in spec.pip:
        yield Pin(manager="pip", requirement=requirement, reason=ASKED_FOR, source="spec.yml")


def channels(spec: Spec, candidate: Candidate) -> tuple[str, ...]:
    """The channels in order of priority: those that the source needs first, then those of the
    request."""
    required = candidate.source.channels(candidate)
    requested = spec.channels or DEFAULT_CHANNELS
    return required + tuple(name for name in requested if name not in required)
