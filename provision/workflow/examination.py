"""Runs the doctor of the runtime on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.resources import files

from provision.core import process
from provision.core.errors import ToolFailed
from provision.core.json_text import parse_json
from provision_runtime.report.diagnosis import Diagnosis, ObservedFinding

TIMEOUT_S = 30.0


def examine_account(ids: Sequence[str]) -> list[ObservedFinding]:
    """The findings of these ids here, without an environment."""
    return examine("", ids)["findings"]


def examine(prefix: str, only: Sequence[str]) -> Diagnosis:
    """This machine, and the environment in a prefix; "" for none. only: ids of findings; empty for
    all."""
    arguments = ["--prefix", prefix]
    for id in only:
        arguments += ["--only", id]
    return run_doctor(arguments)


def run_doctor(arguments: Sequence[str]) -> Diagnosis:
    # The probes judge the variables that the user has. Python itself ignores them (-E): modules in
    # PYTHONPATH must not replace those that doctor imports.
    command = [sys.executable, "-E", "-S", str(files("provision_runtime")), "doctor", "--json"]
    result = process.run([*command, *arguments], env=os.environ, timeout_s=TIMEOUT_S, check=False)
    try:
        diagnosis: Diagnosis = parse_json(result.stdout)
    except ValueError as error:
        raise ToolFailed(command, result.returncode, result.stderr or result.stdout) from error
    return diagnosis
