"""Ansible's inventory: a file with the JSON of `ansible-inventory --list`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from provision.core.errors import InvalidSpec
from provision.core.schema import InvalidDocument, parse_document

META = "_meta"
# What ssh would have to know too, and reads only from its own configuration; with harmless values.
# Each under all names that Ansible's connection plugin `ssh` takes.
_FOR_SSH = {
    "ansible_connection": ("ssh", "smart", "paramiko"),
    "ansible_private_key_file": ("",),
    "ansible_ssh_private_key_file": ("",),
    "ansible_ssh_args": ("",),
    "ansible_ssh_common_args": ("",),
    "ansible_ssh_extra_args": ("",),
}

SSH_PORT = "22"
# It may not begin with a dash: ssh would take it for an option.
_FOR_ADDRESS = re.compile("[A-Za-z0-9_][A-Za-z0-9_.:-]*")


class AnsibleHost(TypedDict):
    """A host of an inventory. address: as ssh takes it, with a port as a URI; rack, zone: empty if unknown."""

    name: str
    address: str
    rack: str
    zone: str


def read_inventory(path: Path) -> dict[str, Any]:
    """The groups of an inventory, and `_meta` with the variables of its hosts. Raises InvalidSpec, with
    the file's name."""
    try:
        document: dict[str, Any] = parse_document(path.read_bytes(), "ansible-inventory")
    except (OSError, InvalidDocument) as error:
        raise InvalidSpec(
            f"{path} is not output of `ansible-inventory --list`: {error}.",
            advice=f"Where Ansible is: ansible-inventory -i INVENTORY --list > {path.stem}.json",
        ) from error
    return document


def hosts_of_group(document: Mapping[str, Any], group: str, source: Path) -> list[AnsibleHost]:
    """The hosts of a group and of its children, or the one host of this name: of each its name,
    the address that ssh connects to, with the user, and rack and zone. source: for messages.
    Raises InvalidSpec for an unknown group, and for a variable that ssh would need and cannot get
    from here."""
    variables = document[META].get("hostvars", {})
    if group in document:
        hosts = list(dict.fromkeys(_names(document, group, set())))
    elif group in host_names(document):
        hosts = [group]
    else:
        names = ", ".join(name for name in document if name != META)
        raise InvalidSpec(f"{source} has no group `{group}`.", advice=f"Its groups: {names}.")
    return [_host(name, variables.get(name, {}), source) for name in hosts]


def host_names(document: Mapping[str, Any]) -> set[str]:
    groups = [group for name, group in document.items() if name != META]
    return {host for group in groups for host in group.get("hosts", ())}


def _names(document: Mapping[str, Any], group: str, visited: set[str]) -> Iterator[str]:
    if group not in visited:
        visited.add(group)
        members = document.get(group, {})
        yield from members.get("hosts", ())
        for child in members.get("children", ()):
            yield from _names(document, child, visited)


def _host(name: str, variables: Mapping[str, Any], source: Path) -> AnsibleHost:
    unusable = [
        key for key, default in _FOR_SSH.items() if variables.get(key, default[0]) not in default
    ]
    if unusable:
        raise InvalidSpec(
            f"{source}: {name} has {', '.join(unusable)}, which provision does not pass on to ssh.",
            advice=f"Write it below `Host {name}` in ~/.ssh/config, and remove it from the inventory.",
        )
    address, user, port = (
        str(variables.get(f"ansible_{kind}") or variables.get(f"ansible_ssh_{kind}") or default)
        for kind, default in (("host", name), ("user", ""), ("port", SSH_PORT))
    )
    for value in filter(None, (address, user, port)):
        if not _FOR_ADDRESS.fullmatch(value):
            raise InvalidSpec(
                f"{source}: {name} has `{value}`, which is not a name, address or port that ssh takes.",
                advice="ansible-inventory does not fill in templates: write the value itself.",
            )
    login = f"{user}@" if user else ""
    destination = f"{login}{address}"
    if port != SSH_PORT:
        # An address of IPv6 has colons itself.
        destination = f"ssh://{login}{f'[{address}]' if ':' in address else address}:{port}"
    # A variable of this name may hold something else.
    labels = {
        kind: str(value) for kind, value in variables.items() if isinstance(value, (str, int))
    }
    return AnsibleHost(
        name=name,
        address=destination,
        rack=labels.get("rack", ""),
        zone=labels.get("zone", ""),
    )
