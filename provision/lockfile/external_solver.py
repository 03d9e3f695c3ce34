"""conda's part solved by another executable, through the conda-lock command itself. What comes of it is looked at as always."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provision.adapters import conda
from provision.catalog import DATA
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ToolFailed,
    ToolMissing,
    Unsolvable,
)
from provision.core.mirrors import NO_MIRRORS, Mirrors, without_login
from provision.core.process import clean_environment, run
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage
from provision.lockfile.conda_lock_v1 import read
from provision.lockfile.conda_lock_v1_writer import FILE
from provision.lockfile.input_files import ENVIRONMENT, VIRTUAL_PACKAGES

SolverName = Literal["conda", "mamba", "micromamba"]
SOLVERS: tuple[SolverName, ...] = ("conda", "mamba", "micromamba")
_OURS = "Leave out --solver: provision's own solver needs no executable, and says what stands in the way."


@dataclass(frozen=True)
class ExternalSolver:
    """An executable that solves in place of our own solver."""

    name: SolverName
    executable: Path
    mirrors: Mirrors = NO_MIRRORS

    def solve(self, request: conda.SolveRequest) -> tuple[LockedPackage, ...]:
        """The packages, sorted by name. Such a solver knows no bounds: where its answer breaks one, the bound is asked for as well."""
        if request.as_of or request.prefer:
            said = "--as-of" if request.as_of else "--update"
            raise InvalidSpec(
                f"{said} is for provision's own solver, not for {self.name}.",
                advice=f"Leave out {said} or --solver.",
            )
        found = self._solve(request)
        there = {package.name: _candidate(package) for package in found}
        broken = tuple(
            bound for bound, _ in conda.unsatisfied_specs(request.bounds, there, optional=True)
        )
        return (
            self._solve(dataclasses.replace(request, specs=(*request.specs, *broken)))
            if broken
            else found
        )

    def _solve(self, request: conda.SolveRequest) -> tuple[LockedPackage, ...]:
        with temporary_directory("solver") as folder:
            for name, text in files(request, self.mirrors).items():
                (folder / name).write_text(text, encoding="utf-8")
            try:
                run(
                    command(self.name, self.executable, request, folder),
                    env=clean_environment(),
                    cwd=folder,
                    show=True,
                )
            except ToolFailed as error:
                raise self._failure(error, request) from error
            try:
                packages = read(folder / FILE, request.platform).by("conda")
            except IntegrityError as error:
                said = error.message.partition(": ")[2]
                raise IntegrityError(
                    f"What {self.name} answered cannot be locked: {said}", advice=_OURS
                ) from error
        own = {
            without_login(self.mirrors.actual_url(conda.channel_url(name))): conda.channel_url(name)
            for name in request.channels
        }
        found = tuple(
            sorted((_named(package, own) for package in packages), key=lambda package: package.name)
        )
        _check_channels(request.specs, found)
        return found

    def _failure(self, error: ToolFailed, request: conda.SolveRequest) -> ToolFailed | Unsolvable:
        if "Could not lock the environment" in error.tail:
            message = (
                f"{self.name} found no environment for {request.platform} (-v shows its words)."
            )
            return Unsolvable(message, advice=_OURS, details=error.tail)
        error.advice = _OURS
        return error


def find_solver(name: SolverName, mirrors: Mirrors) -> ExternalSolver:
    """The executable of that name on PATH, or ToolMissing."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(
            f"--solver {name} needs the executable `{name}`, and PATH has none.",
            advice=f"Install it. {_OURS}",
        )
    return ExternalSolver(name, Path(found), mirrors)


def files(request: conda.SolveRequest, mirrors: Mirrors) -> dict[str, str]:
    """What conda-lock is given: conda's part alone, with channels where they are really read. (JSON is YAML.)"""
    environment = {
        "channels": [mirrors.actual_url(conda.channel_url(name)) for name in request.channels]
        + ["nodefaults"],
        "dependencies": [_spec(spec, mirrors) for spec in request.specs],
    }
    machine = {"subdirs": {request.platform: {"packages": dict(request.virtual_packages)}}}
    return {
        ENVIRONMENT: json.dumps(environment, indent=1) + "\n",
        VIRTUAL_PACKAGES: json.dumps(machine, indent=1) + "\n",
    }


def _spec(spec: str, mirrors: Mirrors) -> str:
    """`channel::package` means nothing to an executable that reads that channel elsewhere; where it came from is looked at instead."""
    channel, separator, rest = spec.rpartition("::")
    return (
        rest
        if separator
        and mirrors.actual_url(conda.channel_url(channel)) != conda.channel_url(channel)
        else spec
    )


def _check_channels(specs: Sequence[str], packages: Sequence[LockedPackage]) -> None:
    urls = {package.name: package.url for package in packages}
    for spec in specs:
        channel, separator, _ = spec.rpartition("::")
        url = urls.get(conda.spec_name(spec), "")
        if separator and not url.startswith(conda.channel_url(channel)):
            raise Unsolvable(
                f"`{spec}` was answered with {url or 'nothing'}, which is of another channel.",
                advice=_OURS,
            )


def command(
    name: SolverName, executable: Path, request: conda.SolveRequest, folder: Path
) -> list[str | Path]:
    """The conda-lock command that came with us, as it would be typed."""
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "conda_lock",
        "lock",
        "--log-level",
        "WARNING",
        "--conda",
        executable,
    ]
    argv += [
        "--mamba" if name == "mamba" else "--no-mamba",
        "--micromamba" if name == "micromamba" else "--no-micromamba",
    ]
    argv += [
        "--platform",
        request.platform,
        "--file",
        folder / ENVIRONMENT,
        "--virtual-package-spec",
        folder / VIRTUAL_PACKAGES,
    ]
    names = (
        (DATA / "pypi-conda-names.yml").absolute().as_uri()
    )  # the table that conda-lock would fetch from the network
    return [*argv, "--pypi_to_conda_lookup_file", names, "--lockfile", folder / FILE]


def _named(package: LockedPackage, own: Mapping[str, str]) -> LockedPackage:
    """By its channel's own URL. (conda-lock puts variables where an address has a password.)"""
    url = without_login(package.url)
    place = next((place for place in own if url.startswith(place)), None)
    return dataclasses.replace(package, url=own[place] + url[len(place) :] if place else url)


def _candidate(package: LockedPackage) -> conda.PackageBuild:
    return conda.PackageBuild(name=package.name, version=package.version, build=package.build)
