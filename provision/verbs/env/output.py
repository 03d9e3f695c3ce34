"""What is printed of the environments on this machine: lists, sizes, ages, package trees."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap
from provision.cli.text import (
    fact_lines,
    home_path,
    plain_value,
    short_age,
    short_size,
    short_verdict,
)
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.lockfile.tree import TreeNode
    from provision.verbs.env.env import Product
    from provision.verbs.env.show import EnvironmentDetails

ALL_MACHINES = 1000


def details_lines(
    details: EnvironmentDetails, *, width: int | None, sources: bool, now: float | None = None
) -> list[str]:
    """What an environment is, where it lies, and the reason for each requirement."""
    summary = details.summary
    now = time.time() if now is None else now
    state = f"{summary.state}: {summary.reason}" if summary.reason else summary.state
    build = ", ".join(f"{key} {value}" for key, value in details.build.items())
    facts = [("project", home_path(summary.project)), ("state", state), ("build", build)]
    request = ", ".join(f"{key} {plain_value(value)}" for key, value in details.request.items())
    facts.append(("request", request))
    facts.append(("folder", home_path(details.folder)))
    facts.append(("lock", _lock_text(details)))
    if summary.prefix:
        age = short_age(summary.installed_at, now)
        size = f"{short_size(summary.size)}, " if summary.size is not None else ""
        facts.append(("prefix", f"{home_path(summary.prefix)} ({size}{age})"))
    if summary.image:
        image = f"{details.image or summary.name} ({short_size(summary.image_size)})"
        stale = ", of an earlier lock" if summary.image == "stale" else ""
        facts.append(("image", image + stale))
    if details.kernel:
        facts.append(("kernel", details.kernel))
    facts.append(("smoke", short_verdict(summary, now, machines=ALL_MACHINES) or "not tested"))
    lines = [summary.name, *fact_lines(facts, width), ""]
    if details.requirements:
        lines += _requirement_lines(details, width=width, sources=sources)
    return lines


def _lock_text(details: EnvironmentDetails) -> str:
    if details.lock_is_current is None:
        return f"none: `provision lock {details.summary.name}` makes it"
    counts = [f"{count} {manager}" for manager, count in sorted(details.packages.items())]
    text = f"{' + '.join(counts)} packages"
    return text if details.lock_is_current else f"{text}, stale: the request changed since"


def _requirement_lines(
    details: EnvironmentDetails, *, width: int | None, sources: bool
) -> list[str]:
    rows = []
    for requirement in details.requirements:
        reason = requirement.reason
        if sources:
            reason += f" (source: {requirement.source})"
        rows.append((requirement.requirement, requirement.locked or "-", reason))
    lines = table(rows, ("requirement", "locked", "reason"), width=width).splitlines()
    if not sources:
        lines += ["", "-v adds the source of each reason."]
    return lines


def tree_lines(roots: Sequence[TreeNode], *, width: int | None) -> list[str]:
    """Trees of packages; `(*)` marks one whose requirements are listed above.

    width: of the terminal. A longer line is cut: `provision env show` has the whole reasons.
    """
    lines: list[str] = []
    for root in roots:
        lines.append(_node_text(root))
        lines += _branches(root.children, "")
    if width is None:
        return lines
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _branches(nodes: Sequence[TreeNode], indent: str) -> list[str]:
    lines = []
    for number, node in enumerate(nodes, start=1):
        is_last = number == len(nodes)
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{_node_text(node)}")
        lines += _branches(node.children, indent + ("    " if is_last else "│   "))
    return lines


def _node_text(node: TreeNode) -> str:
    text = f"{node.name} {node.version}"
    if node.manager == "conda":
        text += " [conda]"
    if node.requirement and not node.reason:
        text += f" ({node.requirement})"
    if node.is_repeated:
        text += " (*)"
    if node.reason:
        text += "  requested"
        if node.reason != "requested":
            text += f": {node.reason}"
    return text


def product_lines(products: Sequence[Product], verb_form: str, *, width: int | None) -> list[str]:
    """What of an environment is removed: a row each, then what that frees.

    width: of the terminal.
    """
    rows = []
    for product in products:
        size = short_size(product.size) if product.size else "-"
        freed = short_size(product.freed) if product.size else "-"
        rows.append((product.kind, size, freed, home_path(product.what)))
    lines = table(rows, ("kind", "size", "frees", "what"), width=width).splitlines()
    files = [product for product in products if product.freed is not None]
    all_freed = sum(product.freed or 0 for product in files)
    total = f"{verb_form} {format_count(len(products), 'item')}, frees {short_size(all_freed)}"
    if all_freed < sum(product.size for product in files):
        total += "; the rest is shared with caches or other environments"
    return [*lines, "", *wrap(total, width)]
