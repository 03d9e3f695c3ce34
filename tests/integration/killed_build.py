"""Builds an image in a child that is killed before its n-th step on the disk, for every n or some, and looks at what is there then.

Usage: python killed_build.py FOLDER STRIDE. Every STRIDE-th n is tried.
A step is what the kernel is asked for: a file opened, a folder made, a name changed or linked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from provision.image import oci_layout
from tests.unit.image.test_image_layer_build import CHANGED, FIRST, WHEELS, Lab

WHEELS.update(dict.fromkeys(WHEELS, 5000))
STEPS = frozenset(
    {
        "open",
        "os.mkdir",
        "os.rename",
        "os.link",
        "os.remove",
        "os.rmdir",
        "shutil.rmtree",
        "os.utime",
    }
)


def killed_before(step: int, lab: Lab, versions: dict[str, str]) -> bool:
    """Build in a child of ours; whether it was killed, and did not come to its end before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = step

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS and any(
            str(lab.root / "images") in str(argument) for argument in arguments
        ):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    lab.build("toy", versions)
    os._exit(0)


def digest(layout: Path) -> str | None:
    written = oci_layout.read(layout)
    return written.manifest_digest if written else None


def main(root: Path, stride: int) -> None:
    old = Lab(root / "one").build("toy", FIRST)
    new = Lab(root / "other").build("toy", CHANGED).manifest_digest
    calls: dict[str, int] = {}
    for before in (None, old):
        for step in range(0, 10_000, stride):
            lab = Lab(root / "lab")
            shutil.rmtree(lab.root, ignore_errors=True)
            if before:
                shutil.copytree(before.layout, lab.root / "images" / "toy")
            killed = killed_before(step, lab, CHANGED)
            result = digest(lab.root / "images" / "toy")
            assert result in (None if before is None else before.manifest_digest, new) or (
                killed and result is None
            ), (step, result)
            state = f"{'from nothing' if before is None else 'over another'}: {'none' if result is None else 'old' if result != new else 'new'}"
            calls[state] = calls.get(state, 0) + 1
            image = lab.build("toy", CHANGED)
            assert image.manifest_digest == new, step
            assert [path.name for path in (lab.root / "images").iterdir()] == ["toy"], step
            if not killed:
                break
    print(json.dumps(calls))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
