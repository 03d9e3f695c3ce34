"""Paths on this machine that commands run programs from or write to: whether another user has a hand
in them."""

from __future__ import annotations

from pathlib import Path

from provision.core.errors import SystemRefused
from provision.core.paths import Folders
from provision_runtime.node.trust import Trust


def require_trusted_path(folders: Folders, path: Path, inventory: Path | None = None) -> None:
    """Raise SystemRefused if another user could change what runs from a path or is written there.

    inventory: of the lab, whose `trusted_group` may; by default the nodes.yml next to the envs
    folder.
    """
    problem = Trust().path_problem(str(path))
    if problem is None:
        return
    from provision.cluster.inventory import find_inventory, read_inventory  # takes long to import

    inventory = find_inventory(folders.envs, inventory)
    group = read_inventory(inventory).defaults.trusted_group if inventory else ""
    if group:
        problem = Trust(group).path_problem(str(path))
    if problem is not None:
        raise SystemRefused(
            f"{path} is not safe: {problem}.",
            advice="Who may write there decides what you run. Forbid it to others (chmod go-w), or "
            "choose another folder.",
        )


def require_trusted_prefix(folders: Folders, path: Path, inventory: Path | None = None) -> None:
    """The same of an environment that is not in the usual folder; of that one every command warns."""
    if not path.is_relative_to(folders.data):
        require_trusted_path(folders, path / "bin" / "python", inventory)
