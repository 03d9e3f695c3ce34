"""`provision smoke --health-check`: the script with which Slurm tests a node."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from provision import render
from provision.cluster.inventory import DEFAULT_PATH, read_inventory
from provision.resolver import spec as specs

# slurmd ends a HealthCheckProgram after 60 s, and the script tests a node that fails twice.
DEADLINE_S = 25
# Where most distributions have Slurm's commands.
SLURM_FOLDER = PurePosixPath("/usr/bin")


def health_check_script(
    name: str, prefix: Path | None, inventory: Path | None, drain_max: int | None
) -> str:
    """The script for an environment that was shipped, or that lies in a prefix on every node."""
    specs.check_name(name)
    remake = ["provision", "smoke", name, "--health-check"]
    path = read_inventory(inventory).defaults.path if inventory else DEFAULT_PATH
    folder = path / name
    if prefix is not None:
        folder = PurePosixPath(prefix.absolute())
        remake += ["--prefix", str(prefix)]
    if inventory is not None:
        remake += ["--inventory", str(inventory)]
    if drain_max is not None:
        remake += ["--drain-max", str(drain_max)]
    values = {
        "name": name,
        "store": str(path),
        "python": str(folder / "bin" / "python"),
        "slurm": str(SLURM_FOLDER),
        "deadline_s": DEADLINE_S,
        "drain_max": 1 if drain_max is None else drain_max,
    }
    return render.render_node_script(render.HEALTH_CHECK, values, remake=remake)
