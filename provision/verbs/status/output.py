"""The text of `provision status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.console import wrap_line
from provision.cli.text import environment_lines, fact_lines, home_path, short_size

if TYPE_CHECKING:
    from provision.verbs.status.status import MachineStatus


def status_lines(
    status: MachineStatus, *, width: int | None, now: float | None = None
) -> list[str]:
    """This machine and its environments."""
    machine = status.machine
    gpus = f"none: {machine.why}" if machine.why else "none"
    if machine.gpus:
        gpus = f"{', '.join(machine.gpus)}; driver {machine.driver}"
    engine = f"Docker {status.engine}" if status.engine else f"none: {status.no_engine}"
    data = status.data
    disk = f"{short_size(data.free)} free of {short_size(data.total)}"
    facts = [
        ("GPUs", gpus),
        ("engine", engine),
        ("disk", f"{disk} for {home_path(data.path)}"),
        ("envs", home_path(status.envs)),
    ]
    title = (
        f"provision {status.provision} on {status.host} ({status.platform}, Python {status.python})"
    )
    lines = [*wrap_line(title, width), *fact_lines(facts, width), ""]
    return lines + environment_lines(status.environments, width=width, now=now)
