"""Scripts that lie beside the tests, run by an interpreter that has torch: as one process, or as ranks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provision_runtime.smoke.launcher import free_port
from tests.integration.smoke_process import PYTHON, environment

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
SETTINGS = {
    "PYTHONPATH": PATHS,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
}


def run(script: str, *arguments: str, python: str = PYTHON) -> dict[str, Any]:
    """What one process found."""
    return run_ranks(script, *arguments, world_size=1, python=python)[0]


def run_ranks(
    script: str, *arguments: str, world_size: int, python: str = PYTHON
) -> list[dict[str, Any]]:
    """What each rank found: a line that begins with `found`, and JSON."""
    shared = {
        **environment(),
        **SETTINGS,
        "WORLD_SIZE": str(world_size),
        "MASTER_PORT": str(free_port()),
    }
    command = [python, str(Path(__file__).with_name(script)), *arguments]
    children = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    return found_by(children)


def found_by(children: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """What each of some processes found; none is left."""
    try:
        outputs = [child.communicate(timeout=TIMEOUT_S) for child in children]
    finally:
        for child in children:
            with child:
                child.kill()
    assert all("found " in out for out, _ in outputs), outputs
    return [json.loads(out.rpartition("found ")[2]) for out, _ in outputs]
