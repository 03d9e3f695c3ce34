"""Ansible's inventory: the JSON of `ansible-inventory --list`, read from a file or from the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core import process
from provision.core.errors import InvalidSpec, ToolFailed, ToolMissing
from provision.core.json_text import parse_json

COMMAND_TIMEOUT_S = 60.0
# Of a host, and never a group's name.
_META = "_meta"
# What ssh must know too, and reads from its own configuration only.
_SSH_VARIABLES = (
    "ansible_ssh_private_key_file",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
)


@dataclass(frozen=True, kw_only=True)
class AnsibleHost:
    """address: what ssh connects to, with the user. rack, zone: variables of these names."""

    name: str
    address: str
    rack: str
    zone: str


def read_inventory(path: Path) -> Mapping[str, Any]:
    """The groups of an inventory, and `_meta` with the variables of its hosts. Files other than .json
    are read by ansible-inventory. Raises InvalidSpec, with the file's name, and ToolMissing."""
    if path.suffix == ".json":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSpec(f"{path} cannot be read: {error}.") from error
    else:
        text = _run(path)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InvalidSpec(f"{path}: {error}.") from error
    hosts = document.get(_META, {}) if isinstance(document, dict) else None
    if not isinstance(hosts, dict) or not isinstance(hosts.get("hostvars", {}), dict):
        raise InvalidSpec(
            f"{path} is not what `ansible-inventory --list` prints.",
            advice=f"ansible-inventory -i INVENTORY --list > {path.with_suffix('.json').name}",
        )
    return document


def _run(path: Path) -> str:
    command = ["ansible-inventory", "-i", str(path), "--list"]
    try:
        return process.run(command, timeout_s=COMMAND_TIMEOUT_S).stdout
    except ToolMissing as error:
        raise ToolMissing(
            f"There is no `ansible-inventory` here, which reads {path}.",
            advice=f"Where it is: {' '.join(command)} > inventory.json; then name that file.",
        ) from error
    except ToolFailed as error:
        raise InvalidSpec(
            f"ansible-inventory does not read {path}: {error.tail.strip()}"
        ) from error


def group_names(document: Mapping[str, Any]) -> list[str]:
    return [name for name in document if name != _META]


def hosts_of_group(document: Mapping[str, Any], group: str, source: Path) -> list[AnsibleHost]:
    """The hosts of a group and of its children. source: for messages. Raises InvalidSpec for an unknown
    group, and for a variable that ssh would need and cannot get from here."""
    if group not in group_names(document):
        names = ", ".join(group_names(document))
        raise InvalidSpec(f"{source} has no group `{group}`.", advice=f"Its groups: {names}.")
    variables = document.get(_META, {}).get("hostvars", {})
    names: dict[str, None] = {}
    pending, seen = [group], {group}
    while pending:
        members = document.get(pending.pop(0), {})
        names.update(dict.fromkeys(members.get("hosts", ())))
        for child in members.get("children", ()):
            if child not in seen:
                seen.add(child)
                pending.append(child)
    return [_host(name, variables.get(name, {}), source) for name in names]


def _host(name: str, variables: Mapping[str, Any], source: Path) -> AnsibleHost:
    unusable = [key for key in _SSH_VARIABLES if variables.get(key)]
    if str(variables.get("ansible_port", 22)) != "22":
        unusable.append("ansible_port")
    if variables.get("ansible_connection", "ssh") not in ("ssh", "smart", "paramiko"):
        unusable.append("ansible_connection")
    if unusable:
        raise InvalidSpec(
            f"{source}: {name} has {', '.join(unusable)}, which provision does not pass on to ssh.",
            advice=f"Write it for `Host {name}` into ~/.ssh/config, and take it out of the inventory.",
        )
    user = variables.get("ansible_user")
    address = str(variables.get("ansible_host", name))
    return AnsibleHost(
        name=name,
        address=f"{user}@{address}" if user else address,
        rack=str(variables.get("rack", "")),
        zone=str(variables.get("zone", "")),
    )
