"""Solves conda's part with another executable, through the conda-lock command.

The result is checked like any other.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provision.adapters import conda
from provision.catalog import DATA
from provision.core.credentials import without_login
from provision.core.errors import IntegrityError, InvalidSpec, ToolFailed, ToolMissing, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.process import clean_environment, run
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage
from provision.lockfile.conda_lock_v1 import FILE, read

SolverName = Literal["conda", "mamba", "micromamba"]
SOLVERS: tuple[SolverName, ...] = ("conda", "mamba", "micromamba")
_USE_OURS = (
    "Leave out --solver: provision's own solver needs no executable, and explains a conflict."
)


@dataclass(frozen=True)
class ExternalSolver:
    """An executable that solves instead of our own solver. show_bars: its own, on a terminal."""

    name: SolverName
    executable: Path
    mirrors: Mirrors = NO_MIRRORS
    show_bars: bool = False

    def solve(self, request: conda.SolveRequest) -> tuple[LockedPackage, ...]:
        """The packages, sorted by name.

        An executable takes no bounds: if its answer breaks some, it solves again with those as
        requirements.
        """
        if request.as_of or request.prefer:
            option = "--as-of" if request.as_of else "--update"
            raise InvalidSpec(
                f"{option} is for provision's own solver, not for {self.name}.",
                advice=f"Leave out {option} or --solver.",
            )
        packages = self._solve(request)
        candidates = {
            package.name: conda.PackageBuild(
                name=package.name, version=package.version, build=package.build
            )
            for package in packages
        }
        violations = conda.unsatisfied_specs(request.bounds, candidates, optional=True)
        broken_bounds = tuple(bound for bound, _ in violations)
        if not broken_bounds:
            return packages
        return self._solve(dataclasses.replace(request, specs=(*request.specs, *broken_bounds)))

    def _solve(self, request: conda.SolveRequest) -> tuple[LockedPackage, ...]:
        with temporary_directory("solver") as folder:
            for name, text in solver_files(request, self.mirrors).items():
                (folder / name).write_text(text, encoding="utf-8")
            command = solver_command(self.name, self.executable, request, folder)
            try:
                run(command, env=clean_environment(), cwd=folder, show=self.show_bars)
            except ToolFailed as error:
                if "Could not lock the environment" not in error.tail:
                    error.advice = _USE_OURS
                    raise
                raise Unsolvable(
                    f"{self.name} found no environment for {request.platform} "
                    "(-v shows its output).",
                    advice=_USE_OURS,
                    details=error.tail,
                ) from error
            try:
                packages = read(folder / FILE, request.platform).by("conda")
            except IntegrityError as error:
                problem = error.message.partition(": ")[2]
                raise IntegrityError(
                    f"The answer of {self.name} cannot be locked: {problem}", advice=_USE_OURS
                ) from error
        packages = tuple(self._canonical(package, request.channels) for package in packages)
        _check_channels(request.specs, packages)
        return tuple(sorted(packages, key=lambda package: package.name))

    def _canonical(self, package: LockedPackage, channels: Sequence[str]) -> LockedPackage:
        """The package with its channel's own URL.

        conda-lock puts variables where a URL has a password.
        """
        url = without_login(package.url)
        for channel in channels:
            channel_url = conda.channel_url(channel)
            mirror_url = without_login(self.mirrors.actual_url(channel_url))
            if url.startswith(mirror_url):
                return dataclasses.replace(package, url=channel_url + url[len(mirror_url) :])
        return dataclasses.replace(package, url=url)


def find_solver(name: SolverName, mirrors: Mirrors, *, show_bars: bool = False) -> ExternalSolver:
    """The executable of that name on PATH, or ToolMissing."""
    executable = shutil.which(name)
    if executable is None:
        raise ToolMissing(
            f"--solver {name} needs the executable `{name}`, which is not on PATH.",
            advice=f"Install it. {_USE_OURS}",
        )
    return ExternalSolver(name, Path(executable), mirrors, show_bars)


def solver_files(request: conda.SolveRequest, mirrors: Mirrors) -> dict[str, str]:
    """conda-lock's input files: conda's part only, with channels at the URLs that are really read.

    JSON is YAML.
    """
    channels = [mirrors.actual_url(conda.channel_url(channel)) for channel in request.channels]
    environment = {
        "channels": channels,
        "dependencies": [_spec(spec, mirrors) for spec in request.specs],
    }
    machine = {"subdirs": {request.platform: {"packages": dict(request.virtual_packages)}}}
    return {
        ENVIRONMENT: json.dumps(environment, indent=1) + "\n",
        VIRTUAL_PACKAGES: json.dumps(machine, indent=1) + "\n",
    }


def _spec(spec: str, mirrors: Mirrors) -> str:
    """The spec, without its channel if a mirror serves that: the executable would not recognize the
    name.

    `_check_channels` checks afterwards where the package came from.
    """
    channel, separator, rest = spec.rpartition("::")
    if separator and mirrors.actual_url(conda.channel_url(channel)) != conda.channel_url(channel):
        return rest
    return spec


def _check_channels(specs: Sequence[str], packages: Sequence[LockedPackage]) -> None:
    urls = {package.name: package.url for package in packages}
    for spec in specs:
        channel, separator, _ = spec.rpartition("::")
        url = urls.get(conda.spec_name(spec), "")
        if separator and not url.startswith(conda.channel_url(channel)):
            raise Unsolvable(
                f"The answer to `{spec}` is {url or 'nothing'}, which is not from that channel.",
                advice=_USE_OURS,
            )


def solver_command(
    name: SolverName, executable: Path, request: conda.SolveRequest, folder: Path
) -> list[str | Path]:
    """The command line of the conda-lock that is installed with us."""
    # The table that conda-lock would otherwise fetch from the network.
    names = DATA / "pypi-conda-names.yml"
    return [
        sys.executable,
        *("-m", "conda_lock", "lock"),
        *("--log-level", "WARNING"),
        *("--conda", executable),
        "--mamba" if name == "mamba" else "--no-mamba",
        "--micromamba" if name == "micromamba" else "--no-micromamba",
        *("--platform", request.platform),
        *("--file", folder / ENVIRONMENT),
        *("--virtual-package-spec", folder / VIRTUAL_PACKAGES),
        *("--pypi_to_conda_lookup_file", names),
        *("--lockfile", folder / FILE),
    ]
