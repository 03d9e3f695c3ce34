"""Scripts that lie beside the tests, run by an interpreter that has torch: as one process, or as ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.comm.addresses import free_port
from tests.integration.smoke_process import PYTHON, environment

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180
PROGRAM_TIMEOUT_S = 1800
DUMP_S = 2
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
SETTINGS = {
    "PYTHONPATH": PATHS,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
}


def run(script: str, *arguments: str, python: str = PYTHON) -> dict[str, Any]:
    """What one process found."""
    command = [python, str(Path(__file__).with_name(script)), *arguments]
    variables = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": str(free_port())}
    child = subprocess.Popen(
        command,
        env={**environment(), **SETTINGS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return found_by([child])[0]


def run_program(program: str, *arguments: str, before: Sequence[str] = ()) -> Any:
    """What a module of this folder printed last. before: a command that starts it, like strace."""
    result = subprocess.run(
        [*before, PYTHON, "-W", "ignore", "-m", f"tests.integration.{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def run_ranks(
    script: str | Path,
    *arguments: str,
    world_size: int,
    variables: Mapping[str, str] | None = None,
    python: str = PYTHON,
) -> list[dict[str, Any]]:
    """What each rank found: a line that begins with `found`, and JSON. torch is imported once.

    script: a path, or a name in this folder. variables: more of the environment.
    """
    shared = {"WORLD_SIZE": str(world_size), "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as outputs:
        program = str(Path(__file__).with_name("forked_ranks.py"))
        path = str(Path(__file__).parent / script)
        with subprocess.Popen(
            [python, program, str(world_size), outputs, path, *arguments],
            env={**environment(), **SETTINGS, **shared, **(variables or {})},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                _, errors = child.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGUSR2)  # each rank prints its stacks
                time.sleep(DUMP_S)
                os.killpg(child.pid, signal.SIGKILL)
                pytest.fail(f"after {TIMEOUT_S} s ranks still run:\n{child.communicate()[1]}")
            finally:
                with contextlib.suppress(ProcessLookupError):  # none is left
                    os.killpg(child.pid, signal.SIGKILL)
        printed = [(Path(outputs) / str(rank)).read_text() for rank in range(world_size)]
    assert all("found " in text for text in printed), (printed, errors)
    return [json.loads(text.rpartition("found ")[2]) for text in printed]


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
