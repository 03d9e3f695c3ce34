"""What a line or a key of a file states: the one model of everything that is read to find out what
somebody requests. `requirement_lines` and the readers in `project_files` make it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from packaging.markers import Marker

from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM, Platform

Kind = Literal[
    "pip",  # a requirement, with its marker
    "constraint",  # the same, which binds a package if another statement requests it
    "conda",  # a MatchSpec: name, version and build
    "python",  # a version specifier of PEP 440: >=3.9,<3.12; alternatives are separated by |
    "cuda",  # the same of CUDA: 12.1, ==12.*, >=11.3; `cpu` is a build without CUDA
    "channel",  # a conda channel by name or address
    "index",  # the address of a package index; of pip's lines, of the only one
    "extra-index",  # that of a further one, in pip's lines
    "find-links",  # an address or a folder that lists wheels
    "platform",  # a platform of conda: linux-64
    "include",  # another file of requirements, relative to this one
    "constraints",  # another file of constraints
    "name",  # the project's or environment's
    "note",  # says something to the reader, and requests nothing; `next_step` may
    "ignored",  # requests nothing of an environment; `reason` says why
    "unknown",  # not understood; `reason` says what is wrong with it
]


# os_name, sys_platform, platform_system and platform_machine as Python has them (PEP 508).
_SYSTEMS = {
    "linux-64": ("posix", "linux", "Linux", "x86_64"),
    "linux-aarch64": ("posix", "linux", "Linux", "aarch64"),
    "linux-ppc64le": ("posix", "linux", "Linux", "ppc64le"),
    "osx-64": ("posix", "darwin", "Darwin", "x86_64"),
    "osx-arm64": ("posix", "darwin", "Darwin", "arm64"),
    "win-64": ("nt", "win32", "Windows", "AMD64"),
}


@frozen
class PipRequirement:
    """One requirement of pip.

    name: as written; empty where only the package itself says it. source: where it is, if not in an
    index: a git address (`git+...`), the address of an archive, or a path as written. Without
    logins.
    """

    name: str = ""
    extras: tuple[str, ...] = ()
    specifier: str = ""
    source: str = ""
    marker: str = ""
    editable: bool = False

    @property
    def is_path(self) -> bool:
        """Whether the source is a file or folder of this machine."""
        return bool(self.source) and ("://" not in self.source or self.source.startswith("file:"))

    def __str__(self) -> str:
        """The text from which the parser reads the same. With a name it is PEP 508's."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        if self.editable:
            text = f"-e {self.source}{extras}"
        elif not self.name:
            text = f"{self.source}{extras}"
        elif self.source:
            text = f"{self.name}{extras} @ {self.source}"
        else:
            text = f"{self.name}{extras}{self.specifier}"
        if self.marker and self.source:
            return f"{text} ; {self.marker}"
        if self.marker:
            return f"{text}; {self.marker}"
        return text

    def applies(self, python: str, platform: Platform = PLATFORM) -> bool:
        """Whether its marker holds for a minor version of Python on a platform."""
        return marker_holds(self.marker, python, platform)


@frozen
class Statement:
    """What one line or key of a file states. One with several options has a statement for each.

    line: where it begins, from 1. text: as written, without comments and logins. value: of a
    requirement, its text; of an option or a key, its value. requirement: of pip's lines. reason: why
    it was translated, ignored or not understood. next_step: a command or an edit that works as
    printed. packages: the only ones that an index or find-links serves. credential: what was taken
    out, and where it belongs. exported: from a list of everything that is installed, which does not
    say what was requested.
    """

    file: str
    line: int | None
    text: str
    kind: Kind
    value: str = ""
    requirement: PipRequirement | None = None
    reason: str = ""
    next_step: str = ""
    packages: tuple[str, ...] = ()
    credential: str = ""
    exported: bool = False

    def because(self, reason: str, next_step: str = "", *, kind: Kind | None = None) -> Statement:
        """The same statement with a reason, and perhaps of another kind."""
        return replace(self, kind=kind or self.kind, reason=reason, next_step=next_step)


def marker_holds(marker: str, python: str, platform: Platform = PLATFORM) -> bool:
    """Whether a marker holds for a minor version of Python on a platform of conda."""
    return not marker or Marker(marker).evaluate(marker_environment(f"{python}.0", platform))


def marker_environment(python: str, platform: str) -> dict[str, str]:
    """The values of a marker's variables, for a release of CPython on a platform of conda. Raises
    KeyError for a platform without Python."""
    os_name, sys_platform, system, machine = _SYSTEMS[platform]
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": os_name,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",  # of the machine that it will run on, which is unknown
        "platform_system": system,
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": sys_platform,
        "extra": "",
    }
