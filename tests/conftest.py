"""Markers for what a test needs: run it, skip it with the reason, or fail if PROVISION_REQUIRE
(a comma-separated list of markers and commands) promised that the need is met.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no counterexample.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

ROOT = Path(__file__).parent.parent
SHARED_RECORDS = ROOT.parent / "shared" / "repodata" / "channels"


def pytest_sessionstart() -> None:
    """Run in the background of a script, we were started with Ctrl-C ignored, and so would be every child that a test interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="Rewrite the golden files with what is rendered now.",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, absent in ABSENT.items():
        if item.get_closest_marker(name) and (reason := absent()):
            absence(name, reason)
    for command in (command for marker in item.iter_markers("needs") for command in marker.args):
        if shutil.which(command) is None:
            absence(command, f"{command} is not installed")


def absence(part: str, reason: str) -> None:
    """Skip for want of a part, or fail where PROVISION_REQUIRE promised it."""
    if part in {name.strip() for name in os.environ.get("PROVISION_REQUIRE", "").split(",")}:
        pytest.fail(f"PROVISION_REQUIRE demands {part}, but {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@functools.cache
def no_docker() -> str | None:
    from provision.image import connect_engine

    client, reason = connect_engine()
    if client is None:
        return f"no Docker engine answers: {reason}"
    client.close()
    return None


@functools.cache
def no_index() -> str | None:
    from provision.adapters import uv
    from provision.core.errors import ProvisionError

    try:
        uv.resolve_versions(uv.ResolveRequest(requirements=("six",), python="3.11", glibc="2.28"))
    except ProvisionError as error:
        return f"the package index does not answer: {error}"
    return None


@functools.cache
def no_torch() -> str | None:
    """torch is wanted in an interpreter: PROVISION_TEST_PYTHON or our own; the index can provide an environment that has it."""
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    result = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    return (
        None
        if result.returncode == 0
        else f"{python} has no torch (name one that has in PROVISION_TEST_PYTHON)"
    )


@functools.cache
def no_records() -> str | None:
    return (
        None
        if SHARED_RECORDS.exists()
        else f"the conda records for development are not at {SHARED_RECORDS}"
    )


@functools.cache
def no_gpu() -> str | None:
    return None if Path("/dev/nvidiactl").exists() else "this machine has no NVIDIA driver"


@functools.cache
def no_browser() -> str | None:
    return (
        None
        if shutil.which("chromium")
        else "there is no chromium (Debian's package) to render pages with"
    )


@functools.cache
def no_slurm() -> str | None:
    from tests.integration.virtual_hosts import why_impossible

    return why_impossible("munged", "slurmctld", "slurmd", "sinfo", "srun")


@functools.cache
def no_sshd() -> str | None:
    from tests.integration.virtual_hosts import why_impossible

    return why_impossible("sshd", "ssh", "ssh-keygen")


ABSENT = {
    "browser": no_browser,
    "docker": no_docker,
    "index": no_index,
    "torch": no_torch,
    "conda": no_records,
    "gpu": no_gpu,
    "slurm": no_slurm,
    "sshd": no_sshd,
}
