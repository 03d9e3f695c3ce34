"""Requirements in conda's language."""

from __future__ import annotations

import re
from collections.abc import Iterable


def spec_errors(specs: Iterable[str]) -> list[str]:
    """The mistakes in conda requirements, one sentence each."""
    import rattler

    mistakes = []
    for spec in specs:
        try:
            rattler.MatchSpec(spec)
        except Exception as error:
            mistakes.append(f"`{spec}` is not a conda requirement: {str(error).splitlines()[0]}.")
    return mistakes


def spec_name(spec: str) -> str:
    """The package that a requirement is about."""
    return re.split(r"[\s=<>!~\[]", spec.rpartition("::")[2].strip(), maxsplit=1)[0].lower()


def without_version(spec: str) -> str:
    """The same package from the same channel, in any version."""
    channel, separator, _ = spec.rpartition("::")
    return f"{channel}{separator}{spec_name(spec)}"


def without_build(spec: str) -> str:
    """The same version in any build: `name=1.2=py_0` and `name ==1.2 py_0` are the two ways to ask for one."""
    channel, separator, rest = spec.rpartition("::")
    import rattler

    version = rattler.MatchSpec(rest).version
    return f"{channel}{separator}{spec_name(spec)}" + (f" {version}" if version else "")


def pins_build(spec: str) -> bool:
    """Whether a requirement says which build of a version it wants."""
    import rattler

    return rattler.MatchSpec(spec.rpartition("::")[2]).build is not None


def is_version(text: str) -> bool:
    """Whether it is a version, perhaps with a build string after a space: how a virtual package is described."""
    import rattler

    try:
        rattler.Version(text.partition(" ")[0])
    except Exception:
        return False
    return True
