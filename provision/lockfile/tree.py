"""Who needs whom in a lock: the packages of an environment as a tree, from either end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from provision.core.dataclass import frozen
from provision.core.package_names import package_name
from provision.core.types import LockedPackage, Manager, Pin

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


class PackageGraph:
    """The packages of one platform of a lock, and what each requires of the others."""

    def __init__(self, entries: Iterable[LockedPackage]) -> None:
        self._entries: dict[str, LockedPackage] = {}
        for entry in sorted(entries, key=lambda entry: entry.manager):
            # pip comes last: where both managers have a name, the wheel is what Python imports.
            self._entries[canonicalize_name(entry.name)] = entry

    def __contains__(self, name: str) -> bool:
        return canonicalize_name(name) in self._entries

    def names(self) -> list[str]:
        return sorted(self._entries)

    def requirements(self, name: str) -> list[tuple[str, str]]:
        """The packages that this one requires, with the constraint; no virtual packages."""
        rows = []
        for dependency in self._entries[name].depends:
            required, _, constraint = dependency.partition(" ")
            canonical = canonicalize_name(required)
            if canonical in self._entries and canonical != name:
                rows.append((canonical, "" if constraint == "*" else constraint))
        return sorted(rows)

    def node(
        self,
        name: str,
        requirement: str,
        *,
        reason: str = "",
        is_repeated: bool = False,
        children: Sequence[TreeNode] = (),
    ) -> TreeNode:
        entry = self._entries[name]
        return TreeNode(
            name=entry.name,
            version=entry.version,
            manager=entry.manager,
            requirement=requirement,
            reason=reason,
            is_repeated=is_repeated,
            children=tuple(children),
        )


def requested_packages(graph: PackageGraph, pins: Sequence[Pin]) -> dict[str, Pin]:
    """The pins by the package that each is about, in their order."""
    requested: dict[str, Pin] = {}
    for pin in pins:
        name = package_name(pin.requirement)
        if name in graph:
            requested[name] = pin
    return requested


def dependency_tree(graph: PackageGraph, pins: Sequence[Pin]) -> list[TreeNode]:
    """The requested packages, and below each what it needs."""
    expanded: set[str] = set()
    trees = []
    for name, pin in requested_packages(graph, pins).items():
        node = _grow(graph, name, pin.requirement, graph.requirements, {}, expanded)
        trees.append(replace(node, reason=pin.reason))
    return trees


def dependents_tree(graph: PackageGraph, pins: Sequence[Pin], package: str) -> TreeNode:
    """A package, and below it who needs it, up to what was requested.

    The requirement of a node is what it asks of the node above. KeyError without such a package.
    """
    dependents: dict[str, list[tuple[str, str]]] = {}
    for name in graph.names():
        for required, constraint in graph.requirements(name):
            dependents.setdefault(required, []).append((name, constraint))
    name = canonicalize_name(package)
    if name not in graph:
        raise KeyError(package)
    requested = requested_packages(graph, pins)
    reasons = {requested_name: pin.reason for requested_name, pin in requested.items()}
    return _grow(graph, name, "", lambda each: dependents.get(each, ()), reasons, set())


def _grow(
    graph: PackageGraph,
    name: str,
    requirement: str,
    neighbors: Neighbors,
    reasons: Mapping[str, str],
    expanded: set[str],
) -> TreeNode:
    """The tree from one package on. expanded: the packages whose neighbors a node already lists."""
    rows = neighbors(name)
    reason = reasons.get(name, "")
    if name in expanded and rows:
        return graph.node(name, requirement, reason=reason, is_repeated=True)
    expanded.add(name)
    children = [
        _grow(graph, neighbor, constraint, neighbors, reasons, expanded)
        for neighbor, constraint in rows
    ]
    return graph.node(name, requirement, reason=reason, children=children)
