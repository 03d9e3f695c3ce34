"""Runs the doctor of the runtime on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from provision.core import process
from provision.core.errors import ToolFailed
from provision.core.json_text import parse_json

# A deep look imports torch, which can take minutes from a cold network file system.
TIMEOUT_S = 30.0

DEEP_TIMEOUT_S = 400.0


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """only: ids of findings; empty for all."""

    only: tuple[str, ...] = ()
    is_deep: bool = False

    @property
    def timeout_s(self) -> float:
        return DEEP_TIMEOUT_S if self.is_deep else TIMEOUT_S


def examine_account(ids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The findings of these ids here, without an environment."""
    document = _examine("", DoctorRequest(only=tuple(ids)))
    findings: list[Mapping[str, Any]] = document["findings"]
    return findings


def _examine(prefix: str, request: DoctorRequest) -> dict[str, Any]:
    arguments = ["--prefix", prefix, "--json"]
    if request.is_deep:
        arguments.append("--deep")
    for id in request.only:
        arguments += ["--only", id]
    return _run_doctor(arguments, request.timeout_s)


def _run_doctor(arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
    # The probes judge the variables that the user has. Python itself ignores its own (-E): modules in
    # PYTHONPATH must not replace those that doctor imports.
    command = [sys.executable, "-E", "-S", str(files("provision_runtime")), "doctor"]
    result = process.run([*command, *arguments], env=os.environ, timeout_s=timeout_s, check=False)
    try:
        document: dict[str, Any] = parse_json(result.stdout)
    except ValueError as error:
        raise ToolFailed(command, result.returncode, result.stderr or result.stdout) from error
    return document
