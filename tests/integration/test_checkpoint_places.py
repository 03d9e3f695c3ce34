"""Disks that are really full or read-only, links that the kernel refuses, a clock that goes back. The cases are in checkpoint_places.py,
which runs where torch is, in a mount namespace of its own, so nothing of its mounts is left."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.smoke_process import PYTHON, environment

PROJECT = Path(__file__).parents[2]
TIMEOUT_S = 300

pytestmark = [
    pytest.mark.torch,
    pytest.mark.mounts,
]


def test_full_read_only_linkless_disks_and_clock_going_back(tmp_path: Path) -> None:
    has_loop = Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None
    program = [
        PYTHON,
        "-W",
        "ignore",
        "-m",
        "tests.integration.checkpoint_places",
        str(tmp_path),
        *(["loop"] if has_loop else []),
    ]
    command = ["unshare", "--mount", "--propagation", "private", *program]
    variables = environment() | {"PYTHONPATH": str(PROJECT)}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=PROJECT,
        env=variables,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    lines = json.loads(result.stdout.splitlines()[-1])
    assert lines.pop("full ext4", [errno.ENOSPC] * 2) == [errno.ENOSPC] * 2
    written = lines.pop("without links")
    assert written > 3_000_000
    assert lines == {
        "full tmpfs": [errno.ENOSPC] * 2,
        "read-only": [errno.EROFS] * 2,
        "clock": [20, 20],
    }
