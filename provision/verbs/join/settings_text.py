"""The settings file that a lab gives its members. Pure."""

from __future__ import annotations

import json

from provision.workflow.lab_definition import Lab

_HEADER = """\
# Made by `provision join` from lab.yml of {name}; join writes it anew.
# What differs for you goes into settings.yml next to this file, which has precedence.
"""


def joined_settings(lab: Lab) -> str:
    """The text of joined.yml. JSON's strings are YAML's."""
    lines = [_HEADER.format(name=lab.name)]
    folders = {**lab.folders, "envs": lab.envs}
    for key, path in sorted(folders.items()):
        lines.append(f"{key}: {json.dumps(str(path))}\n")
    for key, texts in (("mirrors", lab.mirrors), ("smoke", lab.smoke)):
        if texts:
            lines.append(f"{key}:\n")
            lines += [f"- {json.dumps(text)}\n" for text in texts]
    if lab.sync is not None:
        lines.append(f"sync: {json.dumps(lab.sync)}\n")
    if lab.facts:
        lines.append(f"facts: {json.dumps(lab.facts)}\n")
    return "".join(lines)
