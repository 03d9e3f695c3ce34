"""What the measurement ran on, as far as expected figures and baselines depend on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...bandwidth import baseline, reference
from ...checks import expectation

if TYPE_CHECKING:
    from ...session import Session

CARDS = Path("/sys/class/infiniband")


def of(session: Session, hosts: int) -> reference.Hardware:
    nvls = session.backend == "nccl" and reference.with_nvls(os.environ, _nccl(session))
    return reference.Hardware(
        device_name(session), session.place.world_size, hosts, fabric(), nvls, session.backend
    )


def identity(session: Session, hosts: int) -> baseline.Identity:
    import torch

    nccl = _nccl(session) if session.backend == "nccl" else None
    device = device_name(session) if session.on_gpu else cpu_name()
    return baseline.Identity(
        session.backend, device, session.place.world_size, hosts, torch.__version__, nccl
    )


def device_name(session: Session) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if session.on_gpu else "cpu"


def cpu_name() -> str:
    """The model, and how many cores may be used: half as many is another machine."""
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores"


def fabric(cards: Path = CARDS) -> str:
    """The driver of the RDMA cards, which tells EFA from InfiniBand; empty where there are none."""
    drivers = sorted({path.resolve().name for path in cards.glob("*/device/driver")})
    return ",".join(drivers)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    return next(
        (
            line.partition(":")[2].strip()
            for line in lines
            if line.startswith(("model name", "CPU part"))
        ),
        "cpu",
    )


def _nccl(session: Session) -> str | None:
    return expectation.nccl_version(session.facts["torch"])
