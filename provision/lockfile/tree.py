"""Who needs whom in a lock: the packages of an environment as a tree, from either end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from packaging.utils import canonicalize_name

from provision.core.dataclass import frozen
from provision.core.package_names import package_name
from provision.core.types import LockedPackage, Manager, Pin

Packages = Mapping[str, LockedPackage]  # by canonical name
# The packages one step on from a package, each with the constraint between the two.
Neighbors = Callable[[str], Sequence[tuple[str, str]]]


@frozen
class TreeNode:
    """A package in its place in a tree.

    requirement: what the node above asks of it, or the request's own requirement. reason: why it
    was requested, empty for what another package brought. is_repeated: its children are listed at
    an earlier place.
    """

    name: str
    version: str
    manager: Manager
    requirement: str
    reason: str = ""
    is_repeated: bool = False
    children: tuple[TreeNode, ...] = ()


def packages_by_name(entries: Iterable[LockedPackage]) -> dict[str, LockedPackage]:
    """The packages of one platform by their canonical names. Where both managers have a name, the
    wheel is what Python imports."""
    by_manager = sorted(entries, key=lambda entry: entry.manager)
    return {canonicalize_name(entry.name): entry for entry in by_manager}


def dependency_tree(packages: Packages, pins: Sequence[Pin]) -> list[TreeNode]:
    """The requested packages, and below each what it needs."""
    expanded: set[str] = set()
    trees = []
    for name, pin in _requested(packages, pins).items():
        node = _grow(packages, name, pin.requirement, partial(_needs, packages), {}, expanded)
        trees.append(replace(node, reason=pin.reason))
    return trees


def dependents_tree(packages: Packages, pins: Sequence[Pin], name: str) -> TreeNode:
    """A package, and below it who needs it, up to what was requested. name: canonical.

    The requirement of a node is what it asks of the node above.
    """
    dependents: dict[str, list[tuple[str, str]]] = {}
    for dependent in sorted(packages):
        for needed, constraint in _needs(packages, dependent):
            dependents.setdefault(needed, []).append((dependent, constraint))
    reasons = {requested: pin.reason for requested, pin in _requested(packages, pins).items()}
    return _grow(packages, name, "", lambda package: dependents.get(package, ()), reasons, set())


def _needs(packages: Packages, name: str) -> list[tuple[str, str]]:
    """The packages that this one requires, with the constraint; no virtual packages."""
    rows = []
    for dependency in packages[name].depends:
        required, _, constraint = dependency.partition(" ")
        canonical = canonicalize_name(required)
        if canonical in packages and canonical != name:
            rows.append((canonical, "" if constraint == "*" else constraint))
    return sorted(rows)


def _requested(packages: Packages, pins: Sequence[Pin]) -> dict[str, Pin]:
    """The pins by the package that each is about, in their order."""
    named = {package_name(pin.requirement): pin for pin in pins}
    return {name: pin for name, pin in named.items() if name in packages}


def _grow(
    packages: Packages,
    name: str,
    requirement: str,
    neighbors: Neighbors,
    reasons: Mapping[str, str],
    expanded: set[str],
) -> TreeNode:
    """The tree from one package on. expanded: the packages whose neighbors a node already lists."""
    rows = neighbors(name)
    is_repeated = name in expanded and bool(rows)
    expanded.add(name)
    children = []
    for neighbor, constraint in () if is_repeated else rows:
        children.append(_grow(packages, neighbor, constraint, neighbors, reasons, expanded))
    package = packages[name]
    return TreeNode(
        name=package.name,
        version=package.version,
        manager=package.manager,
        requirement=requirement,
        reason=reasons.get(name, ""),
        is_repeated=is_repeated,
        children=tuple(children),
    )
