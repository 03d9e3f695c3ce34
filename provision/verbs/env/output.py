"""What is printed of the environments on this machine: sizes, package trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap
from provision.cli.text import home_path, short_size
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.lockfile.tree import TreeNode
    from provision.verbs.env.env import Product


def tree_lines(roots: Sequence[TreeNode], *, width: int | None) -> list[str]:
    """Trees of packages; `(*)` marks one whose requirements are listed above.

    width: of the terminal. A longer line is cut: `provision matrix explain` has the whole reasons.
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
