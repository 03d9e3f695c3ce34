"""`provision smoke --health-check`: the script with which Slurm tests a node."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from provision import render
from provision.cluster.inventory import NodeDefaults, read_inventory
from provision.resolver import spec as specs

# slurmd ends a HealthCheckProgram after 60 s, and the script tests a node that fails twice.
DEADLINE_S = 25
# Where most distributions have Slurm's commands.
SLURM_FOLDER = PurePosixPath("/usr/bin")


def health_check_script(name: str, prefix: Path | None, inventory: Path | None) -> str:
    """The script for an environment that was shipped, or that lies in a prefix on every node."""
    specs.check_name(name)
    remake = ["provision", "smoke", name, "--health-check"]
    defaults = read_inventory(inventory).defaults if inventory else NodeDefaults()
    folder = defaults.path / name
    if prefix is not None:
        folder = PurePosixPath(prefix.absolute())
        remake += ["--prefix", str(prefix)]
    if inventory is not None:
        remake += ["--inventory", str(inventory)]
    values = {
        "name": name,
        "store": str(defaults.path),
        "python": str(folder / "bin" / "python"),
        "slurm": str(SLURM_FOLDER),
        "deadline_s": DEADLINE_S,
        "drain_max": defaults.drain_max,
    }
    return render.render_node_script(render.HEALTH_CHECK, values, remake=remake)
