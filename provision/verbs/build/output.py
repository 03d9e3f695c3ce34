"""The text of `provision build`."""

from __future__ import annotations

from provision.cli.console import table, wrap
from provision.cli.smoke_output import smoke_lines
from provision.core.types import BuildResult, HostGpus


def build_lines(
    result: BuildResult, machine: HostGpus, *, width: int | None = None, brief: bool = False
) -> list[str]:
    """What was made, in which stages, how its tests went, and the commands that use it.

    machine: this one, on which the commands are to work. width: of the terminal. brief: see
    `smoke_lines`.
    """
    resolution = result.resolution
    title = [f"{result.name}: torch {resolution.local_version}", f"Python {resolution.python}"]
    if resolution.nccl:
        title.append(f"NCCL {resolution.nccl}")
    if resolution.driver_floor:
        title.append(f"driver >= {resolution.driver_floor}")
    rows = [
        (record.stage, record.status, f"{record.seconds:.1f} s", record.detail)
        for record in result.stages
    ]
    lines = wrap(", ".join(title), width)
    if result.changed_nothing:
        tested = "; smoke test repeated" if result.smoke else ""
        lines.append(f"nothing changed{tested}")
    lines += ["", table(rows, ("stage", "status", "time", "what"), width=width), ""]
    for smoke_result in result.smoke:
        lines += [*smoke_lines(smoke_result, brief=brief), ""]
    return lines + _next_commands(result, machine)


def _next_commands(result: BuildResult, machine: HostGpus) -> list[str]:
    name = result.name
    processes = "gpu" if result.resolution.cuda and machine.gpus else "2"
    lines = [
        "next:",
        f"  shell     provision shell {name}",
        f"  run       provision run {name} -- torchrun --standalone \\",
        f"                --nproc-per-node={processes} train.py",
        f"  add       provision add {name} PACKAGE",
    ]
    if result.kernel:
        lines.append(f"  notebook  provision notebook {name}")
    if result.image:
        lines.append(f"  image     provision run {name} --image -- python train.py")
    return [*lines, f"  evidence  provision passport show {name}"]
