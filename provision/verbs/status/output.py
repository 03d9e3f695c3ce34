"""The text of `provision status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.console import wrap_line
from provision.cli.text import days_old, environment_lines, fact_lines, home_path, short_size
from provision.core.project import project_root

if TYPE_CHECKING:
    from provision.verbs.status.status import MachineStatus

# What to do about an environment that is not current.
NEXT_COMMANDS = {
    "differs": "env diff {name}",
    "stale": "build {name}",
    "damaged": "env create {name}",
    "not installed": "build {name}",
}


def status_lines(
    status: MachineStatus, *, width: int | None, now: float | None = None
) -> list[str]:
    """This machine, its environments, and the command for each that needs attention."""
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
        (
            "facts",
            f"{str(status.facts).removeprefix('facts ')} ({days_old(status.facts.date, now)})",
        ),
    ]
    title = (
        f"provision {status.provision} on {status.host} ({status.platform}, Python {status.python})"
    )
    lines = [*wrap_line(title, width), *fact_lines(facts, width), ""]
    lines += environment_lines(status.environments, width=width, now=now)
    commands = [
        f"  provision {NEXT_COMMANDS[environment.state].format(name=environment.name)}"
        for environment in status.environments
        if environment.state in NEXT_COMMANDS and environment.project == project_root(status.envs)
    ]
    return [*lines, "", "next:", *commands] if commands else lines
