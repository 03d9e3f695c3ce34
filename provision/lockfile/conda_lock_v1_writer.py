"""Writing conda-lock.yml (v1): byte for byte what conda-lock's own models and writer make of the same packages, but for the first
lines (a test compares them). Importing conda-lock would take as long as all else."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, Literal

from provision.core.types import LockedPackage, Platform
from provision.lockfile.content_hash import content_hashes
from provision.lockfile.input_files import ENVIRONMENT, LockInputs

FILE = "conda-lock.yml"

PythonSource = Literal["channel", "host"]

# Keys of the lock's metadata.custom_metadata; conda-lock carries them along untouched.
PYTHON_FROM, PORTABLE, INPUTS = (
    "provision_python_from",
    "provision_portable",
    "provision_inputs_sha256",
)
AS_OF, SOLVER = "provision_as_of", "provision_solver"

HEADER = """\
# Every package of this environment, by URL and hash. Made by provision in the format of conda-lock (version 1); do not edit it.
# Make the environment from it:  provision env create NAME, or  conda-lock install --prefix FOLDER conda-lock.yml
# Move one package:              provision lock NAME --update PACKAGE
# Make it anew:                  provision lock NAME --relock
"""


Content = dict[str, Any]


def lock_text(
    wanted: LockInputs,
    packages: Sequence[LockedPackage],
    *,
    python_from: PythonSource,
    solver: str | None = None,
) -> str:
    """The lock file of these packages, of all platforms. solver: the executable that solved, if it was not ours."""
    return emitted(content(wanted, packages, python_from=python_from, solver=solver))


def content(
    wanted: LockInputs,
    packages: Sequence[LockedPackage],
    *,
    python_from: PythonSource,
    solver: str | None = None,
) -> Content:
    """What that file says."""
    portable = python_from == "channel" and not any(
        package.url.startswith("file:") for package in packages
    )
    custom = {PYTHON_FROM: python_from, PORTABLE: str(portable).lower(), INPUTS: wanted.sha256}
    custom |= {AS_OF: wanted.as_of} if wanted.as_of else {}
    custom |= {SOLVER: solver} if solver else {}
    listed = sorted(
        (package for package in packages if not package.name.startswith("__")), key=_key
    )
    return {
        "version": 1,
        "metadata": _metadata(wanted, custom),
        "package": [_entry(package) for package in listed],
    }


def emitted(content: Content) -> str:
    """The file's text."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, 5 times as fast
    return HEADER + str(yaml.dump(content, Dumper=dumper, sort_keys=False))


def _key(package: LockedPackage) -> tuple[str, str, Platform]:
    return package.manager, package.name, package.platform


def _metadata(wanted: LockInputs, custom: dict[str, str]) -> dict[str, Any]:
    return {
        "content_hash": dict(content_hashes(wanted)),
        "channels": [{"url": channel, "used_env_vars": []} for channel in wanted.channels],
        "platforms": list(wanted.machines),
        "sources": [ENVIRONMENT],
        "custom_metadata": custom,
    }


def _entry(package: LockedPackage) -> dict[str, Any]:
    hashes = {"md5": package.md5, "sha256": package.sha256}
    return {
        "name": package.name,
        "version": package.version,
        "manager": package.manager,
        "platform": package.platform,
        "dependencies": dict(sorted(_dependencies(package).items())),
        "url": package.url,
        "hash": {name: value for name, value in hashes.items() if value},
        **({"source": {"type": "url", "url": package.url}} if package.direct else {}),
        **({"build": package.build} if package.build else {}),
        "category": "main",
        "optional": False,
    }


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint, as conda-lock holds them. Wheels' constraints are uv's business; the edge is what is kept."""
    found: dict[str, str] = {}
    for text in package.depends:
        name, _, bound = text.partition(" ")
        found[name] = _both(found.get(name, ""), bound) if package.manager == "conda" else "*"
    return {name: bound for name, bound in found.items() if name}


def _both(one: str, other: str) -> str:
    """Two constraints of one package in one: `3.11.* *_cp311` and `>=3` are `3.11.*,>=3 *_cp311`. conda reads no parentheses here, so
    alternatives are multiplied out. Of two build strings the narrower is kept; two of which neither is, no channel was seen to ask."""
    if not one or not other or one == other:
        return one or other
    (versions, build), (more, other_build) = (bound.partition(" ")[::2] for bound in (one, other))
    joined = "|".join(
        _each_once(f"{mine},{theirs}") for mine in versions.split("|") for theirs in more.split("|")
    )
    narrower = other_build if not build or fnmatch.fnmatchcase(other_build, build) else build
    return f"{joined} {narrower}".strip()


def _each_once(versions: str) -> str:
    """`>=3,<4` of `>=3,,<4,>=3`; a bare `*` says nothing beside others."""
    parts = list(dict.fromkeys(part for part in versions.split(",") if part))
    return ",".join([part for part in parts if part != "*"] or parts)
