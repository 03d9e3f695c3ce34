"""What mounts environments again after a restart of a node: the script that a ship leaves there."""

from __future__ import annotations

import subprocess

import pytest

from provision import render

REMAKE = ("provision", "ship", "NAME", "--boot-unit")


@pytest.mark.needs("shellcheck")
def test_script_is_sound() -> None:
    script = render.render_node_script(render.MOUNT_SCRIPT, {}, remake=REMAKE)
    subprocess.run(["shellcheck", "-"], input=script, text=True, check=True)


def test_unit_starts_the_script_that_the_node_gets() -> None:
    from provision_runtime.node import boot

    unit = render.render_node_script(render.MOUNT_UNIT, {}, remake=REMAKE)
    assert f"ExecStart={boot.SCRIPT}\n" in unit
    script = render.render_node_script(render.MOUNT_SCRIPT, {}, remake=REMAKE)
    assert f"done <{boot.STORES}\n" in script
