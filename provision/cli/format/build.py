"""What `provision build` prints, and the summary of a command over many environments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from provision.cli.console import table
from provision.cli.format.smoke import smoke_lines
from provision.core.types import BuildResult, Outcome


def build_lines(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """What was made, in which stages, how its tests went, and the commands that use it."""
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
    lines = [", ".join(title), "", table(rows, ("stage", "status", "time", "what")), ""]
    for smoke_result in result.smoke:
        lines += [*smoke_lines(smoke_result), ""]
    return lines + _next_commands(result, docker_run)


def _next_commands(result: BuildResult, docker_run: Sequence[str]) -> list[str]:
    """Commands to copy."""
    prefix = shlex.quote(str(result.prefix.path))
    processes = "gpu" if result.resolution.cuda else "2"
    torchrun = f"{prefix}/bin/torchrun --standalone --nproc-per-node={processes} train.py"
    lines = [
        "next:",
        f"  shell     export PATH={prefix}/bin:$PATH CONDA_PREFIX={prefix} PYTHONNOUSERSITE=1",
        f"  job       {torchrun}",
    ]
    if result.kernel:
        name = result.kernel.display_name
        lines.append(f'  notebook  jupyter lab, then choose the kernel "{name}"')
    if result.image:
        lines.append(f"  image     {shlex.join(docker_run)}")
    return [*lines, f"  evidence  provision passport show {result.name}"]


def outcome_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Diffs first, then a row for each environment, then the number that failed."""
    diffs = [outcome.diff.rstrip() for outcome in outcomes if outcome.diff]
    rows = [
        (outcome.name, outcome.status, f"{outcome.seconds:.1f} s", outcome.detail)
        for outcome in outcomes
    ]
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    total = len(outcomes)
    verdict = f"{failed} of {total} failed" if failed else f"all {total} are fine"
    return [*diffs, table(rows, ("environment", "status", "time", "what")), "", verdict]
