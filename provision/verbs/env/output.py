"""What is printed of the environments on this machine: package trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.lockfile.tree import TreeNode


def tree_lines(roots: Sequence[TreeNode], *, width: int | None) -> list[str]:
    """Trees of packages; `(*)` marks one whose requirements are listed above.

    width: of the terminal. A longer line is cut: `provision matrix explain` has the whole reasons.
    """
    lines = []
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
