"""Probes: settings of pip, uv and conda that change what a build gets. Mirrors are no fault: they
serve the same files, which a lock proves."""

from __future__ import annotations

import configparser
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..report.credentials import without_credentials
from ..report.diagnosis import Evidence
from ..report.findings import Finding
from .probe import Observation, Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine

# Options of pip that change which packages are chosen, or where they go.
PIP_OPTIONS = (
    "constraint",
    "extra-index-url",
    "find-links",
    "no-binary",
    "no-deps",
    "only-binary",
    "pre",
    "prefix",
    "root",
    "target",
    "user",
)
UV_OPTIONS = (
    "constraint-dependencies",
    "exclude-newer",
    "extra-index-url",
    "find-links",
    "index-strategy",
    "no-binary",
    "override-dependencies",
    "prerelease",
    "resolution",
)
UV_VARIABLES = (
    "UV_CONSTRAINT",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX_STRATEGY",
    "UV_NO_BINARY",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
)
# Conda's: pins and packages that are added to every environment, other strictness, and virtual
# packages that are not this machine's.
CONDA_OPTIONS = (
    "aggressive_update_packages",
    "create_default_packages",
    "disallowed_packages",
    "pinned_packages",
    "ssl_verify",
    "use_only_tar_bz2",
)
CONDA_VARIABLES = ("CONDA_OVERRIDE_CUDA", "CONDA_OVERRIDE_GLIBC", "CONDA_PINNED_PACKAGES")
FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Setting:
    """source: a file or variable. command: what removes it."""

    source: str
    option: str
    value: str
    command: str


def pip(machine: Machine) -> Iterator[Setting]:
    for option in PIP_OPTIONS:
        variable = "PIP_" + option.upper().replace("-", "_")
        value = machine.environment.get(variable, "")
        if value.lower() not in FALSE:
            yield _setting(f"variable {variable}", option, value, f"unset {variable}")
    files = [
        "/etc/pip.conf",
        f"{machine.home}/.config/pip/pip.conf",
        f"{machine.home}/.pip/pip.conf",
    ]
    if machine.environment.get("PIP_CONFIG_FILE"):
        files.append(machine.environment["PIP_CONFIG_FILE"])
    for file in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(machine.read(file) or "")
        except configparser.Error:
            continue  # pip says so itself
        for section in parser.sections():
            for option, value in parser.items(section):
                name = option.replace("_", "-")
                if name in PIP_OPTIONS and value.lower() not in FALSE:
                    command = f"pip config unset {section}.{option}"
                    yield _setting(file, f"{section}.{option}", value, command)


def uv(machine: Machine) -> Iterator[Setting]:
    for variable in UV_VARIABLES:
        value = machine.environment.get(variable, "")
        if value.lower() not in FALSE:
            yield _setting(f"variable {variable}", variable, value, f"unset {variable}")
    for file in ("/etc/uv/uv.toml", f"{machine.home}/.config/uv/uv.toml"):
        for line in (machine.read(file) or "").splitlines():
            # Python has no reader of TOML before 3.11; these options are single lines.
            match = re.match(r"\s*([a-z-]+)\s*=\s*(.+)", line)
            if match and match[1] in UV_OPTIONS:
                yield _setting(
                    file, match[1], match[2], f"sed -i '/^{match[1]}/d' {shlex.quote(file)}"
                )


def conda(machine: Machine) -> Iterator[Setting]:
    for variable in CONDA_VARIABLES:
        value = machine.environment.get(variable, "")
        if value:
            yield _setting(f"variable {variable}", variable, value, f"unset {variable}")
    files = (
        "/etc/conda/.condarc",
        f"{machine.home}/.condarc",
        f"{machine.home}/.config/conda/.condarc",
    )
    for file in files:
        for line in (machine.read(file) or "").splitlines():
            # No reader of YAML is in the standard library; keys of these options begin lines.
            match = re.match(r"([a-z_]+):\s*(.*)", line)
            if not match:
                continue
            option, value = match[1], match[2].partition(" #")[0].strip()
            is_set = option in CONDA_OPTIONS and not (option == "ssl_verify" and value != "false")
            is_loose = option == "channel_priority" and value in ("disabled", "false")
            if is_set or is_loose:
                command = f"conda config --file {shlex.quote(file)} --remove-key {option}"
                yield _setting(file, option, value or "a list", command)


def _setting(source: str, option: str, value: str, command: str) -> Setting:
    return Setting(source, option, without_credentials(value), command)


def build_settings(machine: Machine) -> Iterator[Observation]:
    """All of them as one finding."""
    settings = [*pip(machine), *uv(machine), *conda(machine)]
    if not settings:
        return
    first = settings[0]
    message = f"{first.option} = {first.value} ({first.source})"
    if len(settings) > 1:
        message += f", and {len(settings) - 1} more"
    evidence = tuple(
        Evidence(setting.source, f"{setting.option} = {setting.value}") for setting in settings
    )
    commands = "\n".join(dict.fromkeys(setting.command for setting in settings))
    yield Observation(Finding("build-settings", message), evidence, commands)


PROBES = (Probe("build settings", ("build-settings",), build_settings),)
