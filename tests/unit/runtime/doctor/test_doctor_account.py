"""A user's home, quotas, shell start files, and what comes before the packages of environments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision_runtime.doctor.account import (
    home,
    quotas,
)
from provision_runtime.doctor.machine import Machine
from provision_runtime.doctor.packages import contamination
from tests.programs import write_program

# As quota(1) of quota-tools 4 writes it with -w -p; the numbers are made up.
QUOTA = """\
Disk quotas for user alice (uid 1000):\x20
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/home       10485760* 10485760 12582912 1795441800   99000  100000  120000       0
/dev/sdb1         52000       0       0       0     301       0       0       0
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "home" / "alice").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    return Machine(tmp_path, {"HOME": "/home/alice"}, "/home/alice")


def observed(probe: Callable[[Machine], object], machine: Machine) -> list[tuple[str, str]]:
    """Ids and messages."""
    return [(each["id"], each["message"]) for each in probe(machine)]  # type: ignore[attr-defined]


def test_a_full_quota_and_one_that_is_nearly_full(machine: Machine) -> None:
    tool = machine.path("/bin/quota")
    write_program(tool, f"#!/bin/sh\ncat <<'END'\n{QUOTA}END\nexit 1\n")
    assert observed(quotas, machine) == [
        ("quota-full", "the quota of nas:/home is used up: 10 GiB of 10 GiB"),
        ("quota-low", "the quota of nas:/home is nearly used up: 99000 of 100000 files"),
    ]
    write_program(tool, "#!/bin/sh\necho 'Disk quotas for user alice (uid 1000): none'\n")
    assert observed(quotas, machine) == []
    tool.unlink()
    assert observed(quotas, machine) == []


def test_a_home_that_is_missing(machine: Machine) -> None:
    assert observed(home, machine) == []
    machine.path("/home/alice").rmdir()
    message = "the home /home/alice cannot be written: there is no such folder"
    assert observed(home, machine) == [("home-unwritable", message)]


def make_files(machine: Machine, *paths: str) -> None:
    for path in paths:
        machine.path(path).parent.mkdir(parents=True, exist_ok=True)
        machine.path(path).write_text("")


def test_what_would_come_before_any_environment(machine: Machine) -> None:
    site_packages = "/home/alice/.local/lib/python3.11/site-packages"
    make_files(machine, f"{site_packages}/six.py")
    assert observed(contamination, machine) == []
    make_files(machine, f"{site_packages}/numpy/__init__.py")
    make_files(machine, "/code/mine/__init__.py", "/cuda/lib64/libcudnn.so.8")
    variables = {"PYTHONPATH": "/code", "LD_LIBRARY_PATH": "/nowhere:/cuda/lib64"}
    machine.environment.update(variables)  # type: ignore[attr-defined]
    assert [id for id, _ in observed(contamination, machine)] == [
        "user-site-on-path",
        "pythonpath-on-path",
        "library-path",
    ]
