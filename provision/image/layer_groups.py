"""Which packages of an environment share a layer of its image."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from provision.catalog.data_files import load
from provision.core.dataclass import frozen
from provision.core.types import LockedPackage

# Groups with a part of their own in a build: every other conda package, our files, and the project's.
PYTHON_GROUP, PROVISION_GROUP, CODE_GROUP = "python", "provision", "code"
BASE_GROUP = "base"


@frozen
class LayerGroup:
    """One layer: name patterns of the packages in it, and why they share it. at_least: bytes that
    the files of a wheel must have."""

    name: str
    conda: Sequence[str] = ()
    wheels: Sequence[str] = ()
    at_least: int = 0
    reason: str


# The base lies below all of them. A package belongs to the first group that matches it. The order
# goes from what is large and changes least to what is small and changes most, because an engine
# shares a layer between images only if all layers below it are the same.
GROUPS = tuple(LayerGroup(**row) for row in load("layer_groups.json")["groups"])
LARGE = max(group.at_least for group in GROUPS)


def group_of(package: LockedPackage, size: int = 0) -> str:
    """The group of a package. size: of a wheel's files."""
    name = canonicalize_name(package.name)
    if package.is_editable:
        return CODE_GROUP
    for group in GROUPS:
        patterns = group.conda if package.manager == "conda" else group.wheels
        matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if matches and size >= group.at_least:
            return group.name
    raise AssertionError(f"no group for {package.manager} package {name}")
