"""Runs the doctor of the runtime on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.resources import files

from provision.core import process
from provision.core.dataclass import frozen
from provision.core.errors import ToolFailed
from provision.core.json_text import parse_json
from provision_runtime.report.diagnosis import Diagnosis, ObservedFinding

# A deep look imports torch, which can take minutes from a cold network file system.
TIMEOUT_S, DEEP_TIMEOUT_S = 30.0, 400.0


@frozen
class DoctorRequest:
    """only: ids of findings; empty for all."""

    only: tuple[str, ...] = ()
    is_deep: bool = False

    @property
    def timeout_s(self) -> float:
        return DEEP_TIMEOUT_S if self.is_deep else TIMEOUT_S


def examine_account(ids: Sequence[str]) -> list[ObservedFinding]:
    """The findings of these ids here, without an environment."""
    return examine("", DoctorRequest(only=tuple(ids)))["findings"]


def examine(prefix: str, request: DoctorRequest) -> Diagnosis:
    """This machine, and the environment in a prefix; "" for none."""
    arguments = ["--prefix", prefix, *(["--deep"] if request.is_deep else [])]
    for id in request.only:
        arguments += ["--only", id]
    return run_doctor(arguments, request.timeout_s)


def run_doctor(arguments: Sequence[str], timeout_s: float = TIMEOUT_S) -> Diagnosis:
    # The probes judge the variables that the user has. Python itself ignores them (-E): modules in
    # PYTHONPATH must not replace those that doctor imports.
    command = [sys.executable, "-E", "-S", str(files("provision_runtime")), "doctor", "--json"]
    result = process.run([*command, *arguments], env=os.environ, timeout_s=timeout_s, check=False)
    try:
        diagnosis: Diagnosis = parse_json(result.stdout)
    except ValueError as error:
        raise ToolFailed(command, result.returncode, result.stderr or result.stdout) from error
    return diagnosis
