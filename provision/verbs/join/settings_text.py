"""The settings file that a lab gives its members. Pure."""

from __future__ import annotations

import json

from provision.workflow.lab_definition import Lab

_HEADER = """\
# Made by `provision join` from lab.yml of {name}; join overwrites it.
# What differs for you goes into settings.yml next to this file, which has precedence.
"""


def joined_settings(lab: Lab) -> str:
    """The text of joined.yml. What JSON writes is YAML."""
    values: dict[str, object] = {
        **{key: str(path) for key, path in sorted(lab.folders.items())},
        "envs": str(lab.envs),
        "mirrors": lab.mirrors,
        "smoke": lab.smoke,
        "sync": lab.sync,
        "facts": lab.facts,
    }
    stated = {key: value for key, value in values.items() if value or value is False}
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in stated.items()]
    return _HEADER.format(name=lab.name) + "".join(lines)
