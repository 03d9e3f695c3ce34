"""What the files of a project state: the model that every reader fills and `request` decides on.

A reader is a pure function of a file's text. It gives one statement or more for each line or key
that means something, and decides nothing: versions, markers and contradictions are `request`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "pip",  # a requirement as `core.requirement_lines` reads it, with its marker
    "constraint",  # the same, which binds a package if another statement requests it
    "conda",  # a MatchSpec: name, version and build
    "python",  # a version specifier of PEP 440: >=3.9,<3.12; alternatives are separated by |
    "cuda",  # the same of CUDA: 12.1, ==12.*, >=11.3; `cpu` is a build without CUDA
    "channel",  # a conda channel by name or address
    "index",  # the address of a package index
    "find-links",  # an address or a folder that lists wheels
    "platform",  # a platform of conda: linux-64
    "include",  # another file of requirements, relative to this one
    "constraints",  # another file of constraints
    "name",  # the project's or environment's
    "note",  # says something to the reader, and requests nothing; `next_step` may
    "ignored",  # requests nothing of an environment; `reason` says why
    "unknown",  # not understood; `reason` says what is wrong with it
]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What one line or key of a file states.

    text: as written, without logins. reason: why a value was translated, ignored or not understood.
    next_step: a command or an edit that works as printed. packages: the only ones that an index or
    find-links serves. credential: what was taken out, and where it belongs. exported: from a list
    of everything that is installed, which does not say what was requested.
    """

    file: str
    line: int | None
    text: str
    kind: Kind
    value: str = ""
    reason: str = ""
    next_step: str = ""
    packages: tuple[str, ...] = ()
    credential: str = ""
    exported: bool = False

    def because(self, reason: str, next_step: str = "", *, kind: Kind | None = None) -> Statement:
        """The same statement with a reason, and perhaps of another kind."""
        return replace(self, kind=kind or self.kind, reason=reason, next_step=next_step)
