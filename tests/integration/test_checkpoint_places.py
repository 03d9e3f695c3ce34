"""Disks that are really full or read-only, links that the kernel refuses, a clock that goes back. The cases are in checkpoint_places.py,
which runs where torch is, in a mount namespace of its own, so nothing of its mounts is left."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.integration.scripts import run_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.mounts,
]


@pytest.mark.exhaustive
def test_full_read_only_linkless_disks_and_clock_going_back(tmp_path: Path) -> None:
    has_loop = Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None
    arguments = [str(tmp_path), *(["loop"] if has_loop else [])]
    unshare = ("unshare", "--mount", "--propagation", "private")
    lines = run_program("checkpoint_places", *arguments, before=unshare)
    assert lines.pop("full ext4", [errno.ENOSPC] * 2) == [errno.ENOSPC] * 2
    written = lines.pop("without links")
    assert written > 3_000_000
    assert lines == {
        "full tmpfs": [errno.ENOSPC] * 2,
        "read-only": [errno.EROFS] * 2,
        "clock": [20, 20],
    }
